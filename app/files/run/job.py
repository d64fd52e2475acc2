"""Write a file of results in parts, so that an interrupted run can be continued.

``FILE.partial/`` holds the parts until the file is complete.
"""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.atomic_files import FileLock, write_atomically
from app.engine.model.bundle import sha256
from app.errors import CannotContinue, UserError
from app.files.run.table_classifier import ResultItem
from app.files.tables.outputs import Output
from app.files.tables.table import Chunk

IDENTITY, WHOLE, LOCK = "job.json", "whole.part", "lock"
# What tells the input of a run.
INPUT_FACTS = ("input", "size", "mtime_ns")

logger = logging.getLogger(__name__)


@dataclass
class Tally:
    """Counts of rows, labels, errors and truncated texts."""

    rows: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    truncated: int = 0

    @classmethod
    def of(cls, results: Sequence[ResultItem]) -> "Tally":
        """The counts of these results."""
        predictions = [result for result in results if "error" not in result]
        return cls(
            rows=len(results),
            labels=Counter(prediction["label"] for prediction in predictions),
            errors=len(results) - len(predictions),
            truncated=sum(prediction["truncated"] for prediction in predictions),
        )

    def add(self, other: "Tally") -> None:
        """Add the counts of another tally."""
        self.rows += other.rows
        self.labels.update(other.labels)
        self.errors += other.errors
        self.truncated += other.truncated


class Job:
    """Writes the file ``path`` from chunks. A run killed at any moment can be continued.

    Each chunk becomes a part. The part is written first, then its tally and digest: a part with
    these is complete. ``identity`` describes the run; only a run with the same identity continues
    it.
    """

    def __init__(
        self, path: Path, output: Output, identity: dict[str, Any], *, resume: bool | None
    ) -> None:
        """Start, or continue after the complete parts of an unfinished run.

        A part that is not as it was written, and those after it, are written again. ``resume`` is
        None for an input that cannot be read again.

        Raises:
            UserError: another run is writing to the file; or there is an unfinished run, and
                ``resume`` is not set or the identities differ.
            OSError: the directory of parts cannot be written.
        """
        self._path = path
        self._output = output
        self.directory = path.with_name(path.name + ".partial")
        self._parts = 0
        self.tally = Tally()
        self.directory.mkdir(exist_ok=True)
        try:
            self._lock = FileLock(self.directory / LOCK)
        except (BlockingIOError, FileNotFoundError):
            raise UserError(
                f"another run is writing to {path}; wait for its end, or choose another --output"
            ) from None
        try:
            self._start(identity, resume=resume)
        except BaseException:
            self.close()
            raise

    def _start(self, identity: dict[str, Any], *, resume: bool | None) -> None:
        if (self.directory / IDENTITY).exists():
            self._check_identity(identity)
            if not resume:
                advice = "" if resume is None else "add --resume to continue it, or "
                raise UserError(
                    f"{self.directory} holds the results of an unfinished run; "
                    f"{advice}delete the directory"
                )
            while (tally := self._saved_tally(self._parts)) is not None:
                self._count_part(tally)
        else:
            self._remove_parts()  # a run that was killed while it cleaned up may have left files
            write_atomically(self.directory / IDENTITY, lambda path: _write_json(path, identity))

    def add(self, chunk: Chunk, results: Sequence[ResultItem]) -> None:
        """Save the results of the next chunk as a part.

        Raises:
            CannotContinue: the directory was removed or replaced.
        """
        self._check_is_ours()
        tally = Tally.of(results)
        part, counts = self._part_path(self._parts, "part"), self._part_path(self._parts, "json")
        write_atomically(part, lambda path: self._output.write(path, chunk, results))
        saved = {**vars(tally), "sha256": sha256(part)}
        write_atomically(counts, lambda path: _write_json(path, saved))
        self._count_part(tally)

    def finish(self) -> None:
        """Join the parts and remove them. The file appears only when it is complete.

        Raises:
            CannotContinue: the directory was removed or replaced.
        """
        self._check_is_ours()
        parts = [self._part_path(number, "part") for number in range(self._parts)]
        whole = self.directory / WHOLE
        write_atomically(whole, lambda path: self._output.join(parts, path))
        self._check_is_ours()
        whole.replace(self._path)
        self.discard()

    def discard(self) -> None:
        """Remove the parts and the directory. A directory with other files in it stays.

        The identity is removed first: a run must not continue with only some of the parts.
        """
        if not self.is_ours():
            return
        self._remove_parts()
        (self.directory / LOCK).unlink()
        with suppress(OSError):
            self.directory.rmdir()

    def is_ours(self) -> bool:
        """Whether the directory is still the one in which this run began."""
        return self._lock.is_held()

    def close(self) -> None:
        """Let other runs write to the file. Must be called at the end."""
        self._lock.close()

    def _check_is_ours(self) -> None:
        if not self.is_ours():
            raise CannotContinue(
                f"{self.directory} was removed or replaced; nothing of this run is saved"
            )

    def _remove_parts(self) -> None:
        (self.directory / IDENTITY).unlink(missing_ok=True)
        for pattern in ("[0-9][0-9][0-9][0-9][0-9][0-9].*", f"{WHOLE}*", f"{IDENTITY}.*"):
            for path in self.directory.glob(pattern):
                path.unlink()

    def _saved_tally(self, number: int) -> Tally | None:
        """The part's tally; None if the part does not exist, or not as it was written."""
        part, counts = self._part_path(number, "part"), self._part_path(number, "json")
        if not counts.exists():
            return None
        try:
            saved = json.loads(counts.read_text("utf-8"))
            if saved.pop("sha256") == sha256(part):
                return Tally(**saved)
        except (FileNotFoundError, ValueError, KeyError):
            pass
        logger.warning("%s is damaged; its rows and all after them are classified again", part)
        return None

    def _count_part(self, tally: Tally) -> None:
        self.tally.add(tally)
        self._parts += 1

    def _part_path(self, number: int, kind: str) -> Path:
        return self.directory / f"{number:06}.{kind}"

    def _check_identity(self, identity: dict[str, Any]) -> None:
        try:
            saved = json.loads((self.directory / IDENTITY).read_text("utf-8"))
        except ValueError:
            saved = {}
        if (
            any(saved.get(name) != identity.get(name) for name in INPUT_FACTS[1:])
            and saved.get("input") == identity["input"]
        ):
            raise UserError(
                f"{self.directory} cannot be continued: {identity['input']} has changed; delete "
                "the directory to start anew"
            )
        for name, value in identity.items():
            if saved.get(name) != value:
                raise UserError(
                    f"{self.directory} cannot be continued: {name} was {saved.get(name)!r} and "
                    f"is {value!r} now; repeat the first command, or delete the directory"
                )


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")
