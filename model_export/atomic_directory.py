"""Writes a directory completely or not at all, and cleans up after killed exports."""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL, OLD = ".partial", ".old"


@contextmanager
def atomic_directory(output: Path) -> Iterator[Path]:
    """Yield a temporary directory to fill; rename it to ``output``, or remove it on an error.

    The directory stays locked while its process lives. So the next export to ``output`` can
    tell a directory that a killed export left behind from one that is still in use.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(output)
    directory = Path(tempfile.mkdtemp(PARTIAL, f".{output.name}-", output.parent))
    directory.chmod(0o755)
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory
        if output.exists():
            old = directory.with_suffix(OLD)
            output.rename(old)
            directory.rename(output)
            shutil.rmtree(old)
        else:
            directory.rename(output)
    finally:
        os.close(lock)
        shutil.rmtree(directory, ignore_errors=True)


def _remove_leftovers(output: Path) -> None:
    for old in _leftovers(output, OLD):
        if output.exists():
            shutil.rmtree(old)
        else:  # the export was killed between the two renames
            old.rename(output)
    for partial in _leftovers(output, PARTIAL):
        lock = os.open(partial, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(partial)
        except BlockingIOError:  # another export is still using it
            continue
        finally:
            os.close(lock)


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
