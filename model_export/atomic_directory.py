"""Puts a finished directory in its place, and cleans up behind an export that was killed."""

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PARTIAL, OLD = ".partial", ".old"


@contextmanager
def atomic_directory(output: Path) -> Iterator[Path]:
    """A directory to fill, renamed to ``output`` if nothing fails and removed if it does.

    It is locked while its process lives, so that the next export to ``output`` can tell what
    a killed one left behind.
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
    pattern = f".{glob.escape(output.name)}-*"
    for old in output.parent.glob(pattern + OLD):
        if output.exists():
            shutil.rmtree(old)
        else:  # killed between the two renames: the new one never came
            old.rename(output)
    for partial in output.parent.glob(pattern + PARTIAL):
        lock = os.open(partial, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(partial)
        except BlockingIOError:  # another export, still at work
            continue
        finally:
            os.close(lock)
