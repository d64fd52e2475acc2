"""Files and directories that are complete or not there, whatever is killed; and locks.

While a directory is written, its temporary directory is locked, so the next writer can tell it from
one that a killed process left behind. Who looks for such directories holds a lock on the parent.
"""

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sentiment_service.errors import OTHER_DISK, UserError

FULL = (errno.ENOSPC, errno.EDQUOT)
# A write that did not fit has taken all but the last blocks of the disk.
LEAST_FREE_BYTES = 2**20


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file that appears only when it is complete, even after a power failure.

    Until then it has another name, which no other process uses, on this machine or another.
    """
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        write(partial)
        sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_text_atomically(path: Path, text: str) -> None:
    """The same for a text, in UTF-8."""
    write_atomically(path, lambda partial: partial.write_text(text, "utf-8"))


@contextmanager
def atomic_directory(output: Path) -> Iterator[Path]:
    """Yield a temporary directory to fill; rename it to ``output``, or remove it on an error."""
    output.parent.mkdir(parents=True, exist_ok=True)
    directory = output.with_name(f".{output.name}.partial")
    old = output.with_name(f".{output.name}.old")
    with ExitStack() as stack:
        with _locked(output.parent):
            _remove_leftovers(directory, old, output)
            directory.mkdir()
            stack.enter_context(_locked(directory))
        try:
            with full_disk_named(directory):
                yield directory
                for path in (*directory.rglob("*"), directory):
                    sync(path)
            with _locked(output.parent):
                if output.exists():
                    output.rename(old)
                directory.rename(output)
                shutil.rmtree(old, ignore_errors=True)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise


def _remove_leftovers(directory: Path, old: Path, output: Path) -> None:
    """Remove what a killed process has left, or put back what it had moved aside."""
    if old.exists():
        if output.exists():
            shutil.rmtree(old)
        else:  # killed between the two renames
            old.rename(output)
    try:
        with suppress(FileNotFoundError), _locked(directory, wait=False):
            shutil.rmtree(directory)
    except BlockingIOError:
        raise UserError(
            f"another command is writing to {output}; wait for its end, or choose another --output"
        ) from None


def sync(path: Path) -> None:
    """Write it to the disk, so that a name that is kept never leads to half a file."""
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
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        free = shutil.disk_usage(directory).free
        is_full = getattr(error, "errno", None) in FULL or os.strerror(errno.ENOSPC) in str(error)
        if not is_full and free >= LEAST_FREE_BYTES:
            raise
        raise UserError(
            f"there is too little room on the disk of {directory.parent} ({free / 1e6:.1f} MB are "
            f"free): free some space there, or {OTHER_DISK}"
        ) from error


@contextmanager
def _locked(directory: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a directory, which the end of the process would release."""
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


class FileLock:
    """A lock on a file that exists as long as the lock. The end of the process releases it."""

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        """Make the file and lock it.

        Raises:
            BlockingIOError: another process has the lock, and ``wait`` is false; or the file was
                replaced a moment ago.
        """
        self._path = path
        self._file = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if not self.is_held():
                raise BlockingIOError
        except BaseException:
            self._file.close()
            raise

    def is_held(self) -> bool:
        """Whether the file at the path is still the one that was locked."""
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._file.fileno()))

    def fileno(self) -> int:
        """The file descriptor. A child process that inherits it holds the lock, too."""
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
