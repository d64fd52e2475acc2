"""A run that can be continued: its plan of parts, and which of them are done."""

import hashlib
import json
import logging
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sentiment_service.errors import CannotContinue, UserError, system_error
from sentiment_service.files.run.directory import RunDirectory
from sentiment_service.files.run.parts import Part
from sentiment_service.files.run.report import Tally, summary

PLAN, SUCCESS = "_plan.json", "_SUCCESS"
COMPLETE = "is complete; nothing is left to do"  # what --resume says of a finished output
# What a plan says of its inputs.
INPUT_FACTS = ("inputs", "rows of parts")
# Parts that are looked at at the same time; in an object store each takes some 50 ms.
READERS = 16

logger = logging.getLogger(__name__)


class RunPlan:
    """The parts of a run, and what tells it from a run with other files or options.

    ``document`` is written beside the parts. ``digest`` is saved with each of them.
    """

    def __init__(self, parts: Sequence[Part], options: dict[str, Any]) -> None:
        """Plan to classify ``parts`` with ``options``, which are JSON values."""
        self.parts = parts
        files = [piece.file for part in parts for piece in part.pieces]
        self.document = {
            **options,
            "inputs": {str(f.source): [f.size, f.mtime_ns] for f in files},
            "rows of parts": [part.rows for part in parts],
        }
        self.digest = plan_digest(self.document)

    @property
    def rows(self) -> int:
        """The rows of all parts."""
        return sum(part.rows for part in self.parts)

    def begin(self, directory: RunDirectory, *, resume: bool) -> None:
        """Write the plan into the directory, or check that the directory has the same plan.

        Raises:
            UserError: the directory has another plan, or the same and ``resume`` is not set.
        """
        saved = directory.read(PLAN)
        if saved is not None:
            self._check_same(directory, saved)
        check_output(directory, resume=resume)
        if saved is None:
            directory.create()
            directory.write_json(PLAN, self.document)

    def _check_same(self, directory: RunDirectory, content: bytes) -> None:
        try:
            saved = json.loads(content)
        except ValueError:
            saved = {}
        if plan_digest(saved) == self.digest:
            return
        before, now = saved.get("inputs", {}), self.document["inputs"]
        changes = [
            f"{path} was added, removed or changed"
            for path in sorted({*before, *now})
            if before.get(path) != now.get(path)
        ]
        changes += [
            f"{name} was {saved.get(name)!r} and is {value!r} now"
            for name, value in self.document.items()
            if name not in INPUT_FACTS and saved.get(name) != value
        ]
        why = changes[0] if saved and changes else "its plan is damaged, or of another version"
        raise UserError(
            f"{directory.address} cannot be continued: {why}; choose another --output, or delete "
            "the directory to start anew"
        )


def check_output(directory: RunDirectory, *, resume: bool) -> None:
    """Refuse a directory that has files, unless they are of a run that may be continued.

    Raises:
        UserError: it has.
    """
    # A run that was killed while it wrote its plan has left only a temporary file.
    names = {name for name in directory.names() if not name.startswith(f"{PLAN}.")}
    if names and PLAN not in names:
        raise UserError(
            f"{directory.address} has files of another kind; choose another --output, or delete "
            "the directory"
        )
    if names and not resume:
        kind, advice = "an unfinished", "add --resume to continue it"
        if SUCCESS in names:
            kind, advice = "a complete", "give another --output"
        raise UserError(
            f"{directory.address} holds the results of {kind} run; {advice}, or delete the "
            "directory"
        )


def plan_digest(document: dict[str, Any]) -> str:
    """The SHA-256 of a plan's document."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


class ResumableRun(ABC):
    """Classifies the parts of ``plan`` into files of ``directory``.

    A subclass says where: in this process, or on a cluster. A part is done when there is a file
    with its name and ``record_suffix``.
    """

    record_suffix = ""

    def __init__(self, plan: RunPlan, directory: RunDirectory) -> None:
        self.plan = plan
        self.directory = directory

    def complete(self, *, resume: bool) -> None:
        """Start, or continue after what an unfinished run has done, and print a summary.

        Raises:
            UserError: the directory cannot be used, or a part cannot be classified.
            OSError: the directory cannot be read or written.
        """
        self.plan.begin(self.directory, resume=resume)
        before = self.done()
        if len(before) == len(self.plan.parts) and SUCCESS in self.directory.names():
            print(f"sentiment: {self.directory.address} {COMPLETE}", file=sys.stderr)
            return
        started = time.monotonic()
        try:
            missing = [part for part in self.plan.parts if part.name not in before]
            if missing:
                self.classify(missing)
            total = self._total()
            self.finish()
        except KeyboardInterrupt:
            print(f"sentiment: interrupted; {self.saved()}", file=sys.stderr)
            raise
        except CannotContinue:
            raise
        except (UserError, OSError) as error:
            why = system_error(error) if isinstance(error, OSError) else error
            raise UserError(f"{why}; {self.saved()}") from error
        rows = total.rows - Tally.total(before.values()).rows
        print(summary(total, rows, time.monotonic() - started), file=sys.stderr)

    def done(self) -> dict[str, Tally]:
        """The tallies of the parts that are done, by their names.

        A part that is damaged or of another plan does not count; a warning is logged.
        """
        names = self.directory.names()
        recorded = [part for part in self.plan.parts if f"{part.name}{self.record_suffix}" in names]
        with ThreadPoolExecutor(READERS) as pool:
            records = list(pool.map(self.read_record, [part.name for part in recorded]))
        tallies = {}
        for part, saved in zip(recorded, records, strict=True):
            if saved and saved.pop("plan", "") == self.plan.digest and saved["rows"] == part.rows:
                tallies[part.name] = Tally(**saved)
            else:
                path = f"{self.directory.address}/{part.name}"
                logger.warning("%s is damaged; its rows are classified again", path)
        return tallies

    def rows_done(self) -> int:
        """The rows of the parts that are done."""
        return Tally.total(self.done().values()).rows

    def saved(self) -> str:
        """What a user can do with what has been done so far."""
        return f"{self.rows_done()} rows are saved; add --resume to continue"

    @abstractmethod
    def classify(self, parts: Sequence[Part]) -> None:
        """Classify the parts, and write their files."""

    @abstractmethod
    def finish(self) -> None:
        """Make the output of the parts, all of which are done."""

    @abstractmethod
    def read_record(self, name: str) -> dict[str, Any] | None:
        """What was saved with a part; None if the part is damaged."""

    def _total(self) -> Tally:
        done = self.done()
        for part in self.plan.parts:
            if part.name not in done:
                raise UserError(f"{part.name} is missing in {self.directory.address}")
        return Tally.total(done.values())
