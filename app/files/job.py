"""A file of results in the making: ``FILE.partial/`` holds its parts until all are there."""

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.errors import UserError
from app.files.outputs import Outcome, Output
from app.files.tables import Chunk

IDENTITY, WHOLE = "job.json", "whole.part"


@dataclass
class Tally:
    """What became of the rows so far."""

    rows: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    truncated: int = 0

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> "Tally":
        """Count these."""
        sound = [outcome for outcome in outcomes if "error" not in outcome]
        return cls(
            rows=len(outcomes),
            labels=Counter(outcome["label"] for outcome in sound),
            errors=len(outcomes) - len(sound),
            truncated=sum(outcome["truncated"] for outcome in sound),
        )

    def add(self, other: "Tally") -> None:
        """Count those of another, too."""
        self.rows += other.rows
        self.labels.update(other.labels)
        self.errors += other.errors
        self.truncated += other.truncated


class Job:
    """Makes ``path`` from chunks. Killed at any moment, it can be continued.

    Every part is one chunk, written under another name and renamed when it is whole; its tally,
    written after it, says that it is. ``identity`` is what all parts must have in common.
    """

    def __init__(
        self, path: Path, output: Output, identity: dict[str, Any], *, resume: bool
    ) -> None:
        """Begin, or continue after the parts that are there.

        Raises:
            UserError: there are parts and ``resume`` is not set, or they are of another job.
            OSError: nothing can be written there.
        """
        self._path = path
        self._output = output
        self._directory = path.with_name(path.name + ".partial")
        self._parts = 0
        self.tally = Tally()
        if (self._directory / IDENTITY).exists():
            if not resume:
                raise UserError(
                    f"{self._directory} holds results of a run that did not end: "
                    "--resume continues it, or delete it"
                )
            self._check(identity)
            while (tally := self._name("json")).exists():
                self._count(Tally(**json.loads(tally.read_text("utf-8"))))
        else:
            self.discard()  # what a run left that was killed in its last moment, if anything
            self._directory.mkdir(exist_ok=True)
            self._write(self._directory / IDENTITY, lambda path: _dump(path, identity))

    def add(self, chunk: Chunk, outcomes: Sequence[Outcome]) -> None:
        """Keep the results of the next chunk."""
        tally = Tally.of(outcomes)
        self._write(self._name("part"), lambda path: self._output.write(path, chunk, outcomes))
        self._write(self._name("json"), lambda path: _dump(path, vars(tally)))
        self._count(tally)

    def finish(self) -> None:
        """Make the file of the parts; it is there whole or not at all."""
        parts = [self._name("part", number) for number in range(self._parts)]
        whole = self._directory / WHOLE
        self._write(whole, lambda path: self._output.join(parts, path))
        whole.replace(self._path)
        self.discard()

    def _count(self, tally: Tally) -> None:
        self.tally.add(tally)
        self._parts += 1

    def _name(self, kind: str, number: int | None = None) -> Path:
        return self._directory / f"{self._parts if number is None else number:06}.{kind}"

    def _check(self, identity: dict[str, Any]) -> None:
        try:
            begun = json.loads((self._directory / IDENTITY).read_text("utf-8"))
        except ValueError:
            begun = {}
        for name, value in identity.items():
            if begun.get(name) != value:
                raise UserError(
                    f"{self._directory} cannot be continued: {name} was {begun.get(name)!r} and "
                    f"is {value!r} now; run as before, or delete it"
                )

    def _write(self, path: Path, write: Callable[[Path], None]) -> None:
        """Have a file written that is there whole or not at all, even if the power fails."""
        partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            write(partial)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        partial.replace(path)

    def discard(self) -> None:
        """Remove what is ours, first what makes it a job; a directory with other files stays."""
        if not self._directory.is_dir():
            return
        (self._directory / IDENTITY).unlink(missing_ok=True)
        for pattern in ("[0-9][0-9][0-9][0-9][0-9][0-9].*", f"{WHOLE}*", f"{IDENTITY}.*"):
            for path in self._directory.glob(pattern):
                path.unlink()
        with suppress(OSError):
            self._directory.rmdir()


def _dump(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")
