"""Files that are complete or not there, whatever is killed; and locks on files."""

import fcntl
import os
import uuid
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file that appears only when it is complete, even after a power failure.

    Until then it has another name, which no other process uses, on this machine or another.
    """
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        write(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_text_atomically(path: Path, text: str) -> None:
    """The same for a text, in UTF-8."""
    write_atomically(path, lambda partial: partial.write_text(text, "utf-8"))


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
        """Release the lock, unless a child process holds it."""
        self._file.close()
