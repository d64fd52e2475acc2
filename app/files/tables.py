"""A table of texts, whatever kind of file it is: read in chunks of rows."""

import json
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import ServiceError, UserError
from app.files.unicode import well_formed

# Rows that are classified together, sorted by length: enough for batches with little padding.
CHUNK_ROWS = 2_000
# And characters: so much is in memory at a time, a few times over.
CHUNK_CHARS = 2_000_000
Text = str | ServiceError  # or why the row has none


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows and their texts; ``rows`` are as their table keeps them.

    ``fraction`` is how much of the file ends with them, None where nobody knows.
    """

    rows: Any
    texts: list[Text]
    fraction: float | None


class Table(ABC):
    """Rows with named columns, one of which has the texts.

    ``types`` has for each column what all its values are that are not None, or ``object``.
    """

    def __init__(self, columns: Sequence[str], types: Mapping[str, type]) -> None:
        self.columns = columns
        self.types = types

    @abstractmethod
    def chunks(self, skip: int) -> Iterator[Chunk]:
        """The rows after the first ``skip``, as often as one asks.

        Raises:
            UserError: the file is not what its name says.
        """

    @abstractmethod
    def records(self, rows: Any) -> list[dict[str, Any]]:
        """Each row's values by column."""

    def cells(self, rows: Any) -> list[list[Any]]:
        """Each row's values in the order of the columns."""
        return [[record.get(column) for column in self.columns] for record in self.records(rows)]

    def objects(self, rows: Any) -> Iterator[str]:
        """Each row as a JSON object."""
        for record in self.records(rows):
            yield json.dumps(well_formed(record), ensure_ascii=False, default=str)


def position(column: str, columns: Sequence[str], path: Path) -> int:
    """Where the column stands.

    Raises:
        UserError: there is none of that name.
    """
    if column not in columns:
        names = ", ".join(map(repr, columns))
        raise UserError(f"{path} has no column {column!r}; --column takes one of: {names}")
    return columns.index(column)


def check_is_file(path: Path) -> None:
    """Let nothing pass that cannot be read twice.

    Raises:
        OSError: there is nothing, or it may not be read.
        UserError: it is not a file.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise UserError(f"{path} is not a file")


def in_chunks(
    rows: Iterable[tuple[Any, Text, int]],
    fraction: Callable[[], float | None],
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[Chunk]:
    """Chunks of ``rows``: each a row, its text and how many characters it has.

    Where a chunk ends depends on the rows alone, and so does every file that is made of chunks.
    """
    held: list[Any] = []
    texts: list[Text] = []
    chars = 0
    for row, text, size in rows:
        held.append(row)
        texts.append(text)
        chars += size
        if len(held) == chunk_rows or chars >= CHUNK_CHARS:
            yield Chunk(held, texts, fraction())
            held, texts, chars = [], [], 0
    if held:
        yield Chunk(held, texts, fraction())
