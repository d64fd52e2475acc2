"""Writes a directory completely or not at all, and cleans up after killed exports.

While an export runs, its temporary directory beside the output is locked, so the next export can
tell it from one that a killed export left behind. Whoever looks for such directories, or renames
one, holds a lock on the parent directory for this short time.
"""

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from app.errors import OTHER_DISK, UserError

PARTIAL, OLD = ".partial", ".old"
FULL = (errno.ENOSPC, errno.EDQUOT)
# A write that did not fit has taken all but the last blocks of the disk.
LEAST_FREE_BYTES = 2**20


@contextmanager
def atomic_directory(output: Path) -> Iterator[Path]:
    """Yield a temporary directory to fill; rename it to ``output``, or remove it on an error.

    Raises:
        UserError: another process is writing to ``output``, or its disk is full.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        with _locked(output.parent):
            _remove_leftovers(output)
            directory = Path(tempfile.mkdtemp(PARTIAL, f".{output.name}-", output.parent))
            stack.enter_context(_locked(directory))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
            directory.chmod(0o755)
        with full_disk_named(directory):
            yield directory
            _write_back(directory)
        with _locked(output.parent):
            if output.exists():
                old = directory.with_suffix(OLD)
                output.rename(old)
                directory.rename(output)
                shutil.rmtree(old)
            else:
                directory.rename(output)


def _write_back(directory: Path) -> None:
    """Write all files to the disk, so that a name that is kept never leads to half a file."""
    for path in (*directory.rglob("*"), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def full_disk_named(directory: Path) -> Iterator[None]:
    """Name the disk if what is done in this context fails because the disk is full.

    The libraries that write weights and graphs have words of their own for that, and some of them
    notice only when they read the file again. Use this inside of what removes files after an
    error, because the disk has room again then.

    Raises:
        UserError: the disk of ``directory`` is full.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        free = shutil.disk_usage(directory).free
        if getattr(error, "errno", None) not in FULL and free >= LEAST_FREE_BYTES:
            raise
        raise UserError(
            f"there is too little room on the disk of {directory.parent} ({free / 1e6:.1f} MB are "
            f"free): free some space there, or {OTHER_DISK}"
        ) from error


@contextmanager
def _locked(directory: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a directory, which the end of the process would release.

    Raises:
        BlockingIOError: another process has it, and ``wait`` is false.
    """
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _remove_leftovers(output: Path) -> None:
    for old in _leftovers(output, OLD):
        if output.exists():
            shutil.rmtree(old)
        else:  # the export was killed between the two renames
            old.rename(output)
    for partial in _leftovers(output, PARTIAL):
        try:
            with suppress(FileNotFoundError), _locked(partial, wait=False):
                shutil.rmtree(partial)
        except BlockingIOError:
            raise UserError(
                f"another command is writing to {output}; wait for its end, or choose another "
                "--output"
            ) from None


def _leftovers(output: Path, suffix: str) -> list[Path]:
    """The directories that exports to ``output`` left behind, and none of another output's."""
    # The middle is what mkdtemp makes up. It has no hyphen, so this does not match what belongs
    # to an output whose name begins with that of this one and a hyphen.
    ours = re.compile(rf"\.{re.escape(output.name)}-[a-z0-9_]{{8}}{re.escape(suffix)}")
    return [
        path
        for path in output.parent.iterdir()
        if ours.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
    ]
