"""A table of texts, whatever the kind of its file. It is read in chunks of rows."""

import json
import stat
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import ServiceError, UserError
from app.files.unicode import well_formed

# A chunk ends after so many rows: enough, sorted by length, for batches with little padding.
CHUNK_ROWS = 2_000
# Or after so many characters, which bounds the memory: a few chunks are in memory at a time.
CHUNK_CHARS = 2_000_000
Text = str | ServiceError  # the error says why the row has no text


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows and their texts.

    The table decides the type of ``rows``. ``fraction`` is the part of the file that has been
    read at the end of the chunk, from 0 to 1; None if the size of the input is not known.
    """

    rows: Any
    texts: list[Text]
    fraction: float | None


class Table(ABC):
    """Rows with named columns, one of which has the texts.

    ``types`` maps a column to the type of all its values except None; ``object`` if they differ.
    """

    def __init__(self, columns: Sequence[str], types: Mapping[str, type]) -> None:
        self.columns = columns
        self.types = types

    @abstractmethod
    def chunks(self, skip: int) -> Iterator[Chunk]:
        """The rows after the first ``skip``. Each call reads the file again.

        Raises:
            CannotContinue: the content of the file is not valid.
        """

    @abstractmethod
    def records(self, rows: Any) -> list[dict[str, Any]]:
        """Each row as a dict from column to value."""

    def cells(self, rows: Any) -> list[list[Any]]:
        """Each row's values in the order of the columns."""
        return [[record.get(column) for column in self.columns] for record in self.records(rows)]

    def json_objects(self, rows: Any) -> Iterator[str]:
        """Each row as a JSON object."""
        for record in self.records(rows):
            yield json.dumps(well_formed(record), ensure_ascii=False, default=str)


def column_index(column: str, columns: Sequence[str], path: Path) -> int:
    """The position of the column.

    Raises:
        UserError: the table has no such column.
    """
    if column not in columns:
        names = ", ".join(map(repr, columns))
        raise UserError(f"{path} has no column {column!r}; --column accepts one of: {names}")
    return columns.index(column)


def check_names(columns: Sequence[str], path: Path) -> None:
    """Refuse two columns of the same name: the output could hold only one of them.

    Raises:
        UserError: there are such columns.
    """
    twice = [repr(name) for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise UserError(
            f"{path} has several columns with the same name: {', '.join(twice)}; "
            "give each column its own name"
        )


def check_is_file(path: Path) -> None:
    """Refuse directories, and pipes, which cannot be read twice.

    Raises:
        OSError: the path does not exist or cannot be accessed.
        UserError: it is not a regular file.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise UserError(f"{path} is not a file")


def split_into_chunks(
    rows: Iterable[tuple[Any, Text, int]],
    fraction: Callable[[], float | None],
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[Chunk]:
    """Chunks of ``rows``; each item is a row, its text and its number of characters.

    Only the rows decide where a chunk ends. So a continued run writes the same file as a run
    without an interruption.
    """
    chunk: list[Any] = []
    texts: list[Text] = []
    chars = 0
    for row, text, size in rows:
        chunk.append(row)
        texts.append(text)
        chars += size
        if len(chunk) == chunk_rows or chars >= CHUNK_CHARS:
            yield Chunk(chunk, texts, fraction())
            chunk, texts, chars = [], [], 0
    if chunk:
        yield Chunk(chunk, texts, fraction())
