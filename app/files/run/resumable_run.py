"""A run is a plan of parts: each part is classified once, whatever is killed in between."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from app.errors import CannotContinue, UserError, system_error
from app.files.run.directory import RunDirectory
from app.files.run.parts import Part
from app.files.run.plan import COMPLETE, SUCCESS, RunPlan
from app.files.run.report import Tally, summary


class ResumableRun(ABC):
    """Classifies the parts of ``plan`` into files of ``directory``.

    A subclass says where: in this process, or on a cluster.
    """

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
            left = [part for part in self.plan.parts if part.name not in before]
            if left:
                self.classify(left)
            total = self._total()
            self.finish()
        except KeyboardInterrupt:
            print(f"sentiment: interrupted; {self.saved()}", file=sys.stderr)
            raise
        except CannotContinue:
            raise
        except UserError as error:
            raise UserError(f"{error}; {self.saved()}") from error
        except OSError as error:
            raise UserError(f"{system_error(error)}; {self.saved()}") from error
        rows = total.rows - Tally.total(before.values()).rows
        print(summary(total, rows, time.monotonic() - started), file=sys.stderr)

    def done(self) -> dict[str, Tally]:
        """The tallies of the parts that are done, by their names."""
        return self.plan.done(self.directory, self.read_record)

    def saved(self) -> str:
        """What a user can do with what has been done so far."""
        rows = Tally.total(self.done().values()).rows
        return f"{rows} rows are saved; add --resume to continue"

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
