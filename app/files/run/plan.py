"""The plan of a run in parts: what an unfinished run has done, and whether it is the same run."""

import hashlib
import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import UserError
from app.files.cluster.object_store import Directory
from app.files.run.job import Tally
from app.files.run.parts import METADATA_KEY, Part

PLAN, SUCCESS = "_plan.json", "_SUCCESS"
# What a plan says of its inputs.
INPUT_FACTS = ("inputs", "rows of parts")
# Footers that are read at the same time; in an object store each takes some 50 ms.
FOOTERS = 16

logger = logging.getLogger(__name__)


class Plan:
    """The parts of a run, and what tells it from a run with other files or options.

    ``document`` is written beside the parts. ``digest`` is in each of them.
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

    def begin(self, directory: Directory) -> None:
        """Write the plan into the directory, or check that the directory has the same plan.

        Raises:
            UserError: the directory has another plan.
        """
        if PLAN in directory.names():
            self._check_same(directory)
        else:
            directory.create()
            directory.write_json(PLAN, self.document)

    def _check_same(self, directory: Directory) -> None:
        try:
            saved = json.loads(directory.read(PLAN) or b"{}")
        except ValueError:
            saved = {}
        before, now = saved.get("inputs", {}), self.document["inputs"]
        faults = [
            f"{path} {'was added' if path not in before else 'has changed or is gone'}"
            for path in sorted({*before, *now})
            if before.get(path) != now.get(path)
        ]
        faults += [
            f"{name} was {saved.get(name)!r} and is {value!r} now"
            for name, value in self.document.items()
            if name not in INPUT_FACTS and saved.get(name) != value
        ]
        if faults or plan_digest(saved) != self.digest:
            why = (faults or ["its plan is damaged"])[0]
            advice = "repeat the first command, or delete the directory"
            if before != now or not faults:  # repeating the command would not help
                advice = "delete the directory to start anew"
            raise UserError(f"{directory.address} cannot be continued: {why}; {advice}")

    def done(self, directory: Directory) -> dict[str, Tally]:
        """The tallies of the parts that are done, by their names.

        A file that is damaged or of another plan does not count; a warning is logged.
        """
        names = directory.names()
        there = [part for part in self.parts if part.name in names]
        with ThreadPoolExecutor(FOOTERS) as pool:
            tallies = pool.map(lambda part: self._tally(directory, part), there)
            return {
                part.name: tally
                for part, tally in zip(there, tallies, strict=True)
                if tally is not None
            }

    def _tally(self, directory: Directory, part: Part) -> Tally | None:
        path = directory.location(part.name)
        try:
            footer = pq.read_metadata(path, filesystem=directory.filesystem)
            saved = json.loads((footer.metadata or {})[METADATA_KEY])
            if saved.pop("plan") == self.digest and footer.num_rows == part.rows:
                return Tally(**saved)
        except (pa.ArrowException, ValueError, KeyError):
            pass
        except OSError as error:
            # pyarrow raises it for a footer that is not valid, and for what it cannot read.
            if "deserialize thrift" not in str(error):
                raise
        logger.warning("%s is damaged; its rows are classified again", path)
        return None


def check_output(directory: Directory, *, resume: bool) -> None:
    """Refuse a directory that has files, unless they are of a run that may be continued.

    Raises:
        UserError: it has.
    """
    # A run that was killed while it wrote its plan has left only a temporary file.
    names = {name for name in directory.names() if not name.startswith(f"{PLAN}.")}
    if names and PLAN not in names:
        raise UserError(
            f"{directory.address} has files of another kind; give --output a directory that is "
            "empty or does not exist"
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
