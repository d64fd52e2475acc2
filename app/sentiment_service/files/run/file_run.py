"""Classify a file in this process, so that an interrupted run can be continued.

``FILE.partial/`` holds the parts, one for each chunk, until the whole file is written.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self

from sentiment_service.atomic_files import FileLock, write_atomically
from sentiment_service.engine.model.bundle import sha256
from sentiment_service.errors import CannotContinue, UserError
from sentiment_service.files.run.directory import RunDirectory
from sentiment_service.files.run.parts import Part
from sentiment_service.files.run.plan import PLAN, ResumableRun, RunPlan
from sentiment_service.files.run.report import Tally, progress_bar
from sentiment_service.files.run.table_classifier import TableClassifier
from sentiment_service.files.tables.outputs import OutputFormat
from sentiment_service.files.tables.table import Chunk, ResultItem

LOCK, WHOLE = "lock", "whole"


class FileRun(ResumableRun):
    """Writes the file that ``directory`` is for from chunks, each of which is a part.

    A part is written first, then its record: counts, and a digest of its content.
    """

    directory: "PartialDirectory"
    record_suffix = ".json"

    def __init__(
        self,
        plan: RunPlan,
        directory: "PartialDirectory",
        output: OutputFormat,
        classifier: TableClassifier,
    ) -> None:
        super().__init__(plan, directory)
        self._output = output
        self._classifier = classifier

    def complete(self, *, resume: bool) -> None:
        """See ``ResumableRun``. A run without a row to keep leaves no directory."""
        try:
            super().complete(resume=resume)
        except CannotContinue as error:
            if rows := self.rows_done():
                raise UserError(f"{error}; {rows} rows are in {self.directory.path}") from error
            self.directory.forget()
            raise

    def classify(self, parts: Sequence[Part]) -> None:
        shown, done = sys.stderr.isatty(), self.plan.rows - sum(part.rows for part in parts)
        with progress_bar(shown=shown, total=self.plan.rows, done=done) as advance:
            results = self._classifier.classify(self._chunks(parts), advance=advance)
            with closing(results):
                for part, (chunk, items) in zip(parts, results, strict=True):
                    self.add(part, chunk, items)

    def add(self, part: Part, chunk: Chunk, results: list[ResultItem]) -> None:
        """Save the results of a part."""
        self.directory.write(part.name, lambda path: self._output.write(path, [(chunk, results)]))
        record = {
            "plan": self.plan.digest,
            **vars(Tally.of(results)),
            "sha256": sha256(self.directory.path / part.name),
        }
        self.directory.write_json(f"{part.name}{self.record_suffix}", record)

    def finish(self) -> None:
        """Join the parts and remove them. The file appears only when it is complete."""
        parts = [self.directory.path / part.name for part in self.plan.parts]
        whole = self.directory.path / WHOLE
        write_atomically(whole, lambda path: self._output.join(parts, path))
        whole.replace(self.directory.target)
        self.directory.forget()

    def read_record(self, name: str) -> dict[str, Any] | None:
        try:
            record: dict[str, Any] = json.loads(
                self.directory.read(f"{name}{self.record_suffix}") or b"{}"
            )
            digest = record.pop("sha256", None)
            return record if digest == sha256(self.directory.path / name) else None
        except (FileNotFoundError, ValueError):
            return None

    def _chunks(self, parts: Sequence[Part]) -> Iterator[Chunk]:
        """The chunk of each part. The file is read once, from the first of them on."""
        names = {part.name for part in parts}
        first = parts[0].pieces[0]
        rest = self.plan.parts[self.plan.parts.index(parts[0]) :]
        for part, chunk in zip(rest, first.table.chunks(first.start), strict=False):
            first.file.check_is_unchanged()
            if part.name in names:
                yield chunk
        first.file.check_is_unchanged()


class PartialDirectory(RunDirectory):
    """``FILE.partial/`` for the file ``target``, locked for one run until the context is left."""

    def __init__(self, target: Path) -> None:
        """Make and lock it. What a killed run has not removed of a complete one is removed.

        Raises:
            UserError: another run is writing to ``target``.
            OSError: the directory cannot be written.
        """
        self.target = target
        super().__init__(f"{target}.partial")
        self.create()
        try:
            self._lock = FileLock(self.path / LOCK)
        except (BlockingIOError, FileNotFoundError):
            raise UserError(
                f"another run is writing to {target}; wait for its end, or choose another --output"
            ) from None
        if not self.is_unfinished():
            self._remove_parts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it if there is nothing to continue, and let other runs write to the file."""
        if self._lock.is_held() and not self.is_unfinished():
            self._remove_parts()
            (self.path / LOCK).unlink()
            with suppress(OSError):  # files of someone else stay, and the directory with them
                self.path.rmdir()
        self._lock.close()

    def is_unfinished(self) -> bool:
        """Whether there is a run to continue."""
        return PLAN in self.names()

    def names(self) -> set[str]:
        """See ``RunDirectory``; without the lock."""
        return super().names() - {LOCK}

    def forget(self) -> None:
        """Leave nothing to continue: without a plan, the parts are removed at the end."""
        (self.path / PLAN).unlink(missing_ok=True)

    def _remove_parts(self) -> None:
        for pattern in ("part-*", f"{WHOLE}*", f"{PLAN}.*"):
            for path in self.path.glob(pattern):
                path.unlink()
