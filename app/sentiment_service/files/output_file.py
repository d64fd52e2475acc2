"""The output of a run, which can be continued after its last finished chunk."""

import errno
import hashlib
import json
import logging
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sentiment_service.atomic_files import FileLock, sync
from sentiment_service.errors import CannotContinue, UserError
from sentiment_service.files.results import ResultItem, Tally
from sentiment_service.files.table import Chunk, Output

# An attribute of a complete file, with the identity of its run. Not all file systems have any.
ATTRIBUTE = "user.sentiment.run"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SavedChunk:
    """A finished chunk: where it ends in the file, its digest, and the counts of its results."""

    end: int
    sha256: str
    tally: dict[str, Any]


class OutputFile:
    """A file that appears when it is complete, and what a run has finished of it until then.

    ``FILE.partial`` has the finished chunks, one after the other; the run that writes it holds its
    lock. ``FILE.progress`` has a line of JSON about the run, and one for each finished chunk, which
    is written when the chunk is on the disk. What else is in ``FILE.partial`` is cut off.

    A file that is replaced leaves its permissions to the new one.
    """

    def __init__(self, target: Path) -> None:
        """Lock the file for this run until the context is left."""
        if target.is_symlink():
            target = Path(os.path.realpath(target))
        self.target = target
        self.partial, self._progress = Path(f"{target}.partial"), Path(f"{target}.progress")
        self._new = Path(f"{self._progress}.tmp")
        if self.partial.is_dir():
            raise UserError(
                f"{self.partial} is a directory, as older versions wrote it, and cannot be "
                "continued; delete it to start anew"
            )
        try:
            self._lock = FileLock(self.partial)
        except BlockingIOError:
            raise UserError(
                f"another run is writing to {target}; wait for its end, or choose another --output"
            ) from None
        self._file = self.partial.open("r+b", buffering=0)
        self._begun, self._end = False, 0
        self.saved: list[SavedChunk] = []  # by earlier runs
        try:
            self._keep_mode(self.partial, stat.S_IRUSR | stat.S_IWUSR)
            self._identity = self._read_progress()
        except BaseException:
            if not self.partial.stat().st_size:
                self.partial.unlink()
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave what can be continued, and nothing else."""
        if self._lock.is_held():
            if not self.saved_rows:
                self._file.truncate(0)
                self._remove()
            elif self._begun:
                self._file.truncate(self._end)
        self._close()

    def begin(self, output: Output, identity: dict[str, Any], *, resume: bool) -> Tally:
        """Start, or continue after the ``saved`` chunks, whose counts are returned.

        ``identity`` has JSON values that tell the run from one with another input or other options.
        Without ``input``, the run cannot be continued.
        """
        self._output, self._resumable = output, "input" in identity
        identity = _as_json(identity)
        if self.saved and (change := _change(self._identity, identity)):
            raise UserError(
                f"{self.partial} cannot be continued: {change}; choose another --output, or "
                "delete the file to start anew"
            )
        self._identity = identity
        if self.saved:
            if not resume:
                raise UserError(
                    f"{self.partial} holds the results of an unfinished run; add --resume to "
                    "continue it, or delete the file to start anew"
                )
            self._keep_undamaged()
        self._end = self.saved[-1].end if self.saved else 0
        self._file.truncate(self._end)
        lines = [json.dumps(identity), *(json.dumps(vars(chunk)) for chunk in self.saved)]
        self._new.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        sync(self._new)
        self._new.replace(self._progress)
        self._log = self._progress.open("ab", buffering=0)
        self._begun = True
        if not self.saved:
            self._write(output.header)
        total = Tally()
        for chunk in self.saved:
            total.add(Tally(**chunk.tally))
        return total

    @property
    def saved_rows(self) -> int:
        """The rows that the next run can continue after.

        They are counted in the file: Ctrl-C may come just when a chunk's line is written.
        """
        if not self._lock.is_held():
            return 0
        return _rows(self._chunks(self._lines()[1:]))

    def check_complete(self, identity: dict[str, Any]) -> None:
        """Return if the complete file is of a run with this identity, or no file can have one."""
        try:
            made = _json_line(os.getxattr(self.target, ATTRIBUTE))
        except AttributeError:  # this system has none
            return
        except OSError as error:
            if error.errno != errno.ENODATA:  # this file system has none
                return
            made = {}
        if not made:
            raise UserError(
                f"{self.target} is not known to be an output of this run; --overwrite classifies "
                "again, or choose another --output"
            )
        if change := _change(made, _as_json(identity)):
            raise UserError(
                f"{self.target} is complete, but of another run: {change}; --overwrite classifies "
                "again, or choose another --output"
            )

    def add(self, chunk: Chunk, results: Sequence[ResultItem], tally: Tally) -> None:
        if not self._lock.is_held():
            raise CannotContinue(f"{self.partial} was removed during the run")
        content = self._output.chunk(chunk, results)
        self._write(content)
        if self._resumable:
            saved = SavedChunk(self._end, hashlib.sha256(content).hexdigest(), vars(tally))
            self._log.write(f"{json.dumps(vars(saved))}\n".encode())

    def finish(self) -> None:
        """Give the file its name, at which it is complete."""
        complete = self._output.finish(self.partial)
        with suppress(AttributeError, OSError):
            os.setxattr(complete, ATTRIBUTE, f"{json.dumps(self._identity)}\n".encode())
        self._keep_mode(complete)
        sync(complete)
        complete.replace(self.target)
        if complete != self.partial:
            self._file.truncate(0)
        self._remove()

    def _keep_mode(self, path: Path, needed: int = 0) -> None:
        """Give the file the permissions of the one that it will replace, and those ``needed``."""
        with suppress(FileNotFoundError):
            mode = stat.S_IMODE(self.target.stat().st_mode) | needed
            if mode != stat.S_IMODE(path.stat().st_mode):
                path.chmod(mode)

    def _remove(self) -> None:
        """Remove all but the target; at last ``FILE.partial``, which has the lock, and is empty by
        then.
        """
        for path in (self._new, Path(f"{self.partial}.tmp"), self._progress, self.partial):
            path.unlink(missing_ok=True)

    def _read_progress(self) -> dict[str, Any]:
        """What the unfinished run is of, if there is one; its chunks are ``saved`` then."""
        lines = self._lines()
        identity = _json_line(lines[0]) if lines else {}
        if identity.get("run") is None and (lines or self.partial.stat().st_size):
            other = self._progress if lines else self.partial
            raise UserError(
                f"{other} is not of a run that can be continued; delete it, or choose another "
                "--output"
            )
        self.saved = self._chunks(lines[1:])
        return identity

    def _lines(self) -> list[bytes]:
        """The lines of ``FILE.progress``; none if there is no such file."""
        try:
            return self._progress.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []

    def _chunks(self, lines: list[bytes]) -> list[SavedChunk]:
        """The finished chunks of which these lines are, if ``FILE.partial`` has them."""
        size = self.partial.stat().st_size
        chunks = []
        for line in lines:
            try:
                chunk = SavedChunk(**_json_line(line))
                Tally(**chunk.tally)
            except TypeError:  # half a line, or one of another version
                break
            if chunk.end > size:
                break
            chunks.append(chunk)
        return chunks

    def _keep_undamaged(self) -> None:
        """Forget the first damaged chunk and those after it."""
        start = self._file.seek(len(self._output.header))
        for number, chunk in enumerate(self.saved):
            content = self._file.read(chunk.end - start)
            start = chunk.end
            if hashlib.sha256(content).hexdigest() != chunk.sha256:
                del self.saved[number:]
                logger.warning(
                    "%s is damaged; its rows after the first %d are classified again",
                    *(self.partial, _rows(self.saved)),
                )
                return

    def _write(self, content: bytes) -> None:
        self._file.seek(self._end)
        rest = memoryview(content)
        while rest:
            rest = rest[self._file.write(rest) :]
        os.fsync(self._file.fileno())
        self._end += len(content)

    def _close(self) -> None:
        if self._begun:
            self._log.close()
        self._file.close()
        self._lock.close()


def _rows(chunks: Sequence[SavedChunk]) -> int:
    return sum(chunk.tally["rows"] for chunk in chunks)


def _as_json(identity: dict[str, Any]) -> dict[str, Any]:
    """The identity of a run as it is read again: with lists in the place of tuples."""
    whole: dict[str, Any] = json.loads(json.dumps({"run": "sentiment classify", **identity}))
    return whole


def _change(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What tells two runs apart; empty if nothing does."""
    changes = (
        f"{name} was {before.get(name)!r} and is {now.get(name)!r} now"
        for name in {**now, **before}
        if before.get(name) != now.get(name)
    )
    return next(changes, "")


def _json_line(line: bytes) -> dict[str, Any]:
    """The object in a line; empty if the line was not written to its end, or is something else."""
    try:
        value = json.loads(line) if line.endswith(b"\n") else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
