"""A table of texts, whatever the kind of its file. It is read in chunks of rows."""

import json
import math
import stat
from abc import ABC, abstractmethod
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from sentiment_service.errors import ServiceError, UserError
from sentiment_service.files.tables.unicode import well_formed

# A chunk ends after so many rows: enough, sorted by length, for batches with little padding.
CHUNK_ROWS = 2_000
# Or after so many characters, which bounds the memory: a few chunks are in memory at a time.
CHUNK_CHARS = 2_000_000
TextOrError = str | ServiceError  # of a row; the error says why it has no text
# The result of one text, as in the HTTP answer's ``results``: a prediction with ``label``,
# ``score``, ``scores`` and more, or only ``error`` with ``code`` and ``message``.
ResultItem = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Place:
    """A place between two rows of a file.

    ``rows``, ``bytes`` and ``lines`` are before it; in a kind of file without lines, the last two
    are 0.
    """

    rows: int = 0
    bytes: int = 0
    lines: int = 0


START = Place()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows, their texts, and where they end in their file.

    The table decides the type of ``rows``.
    """

    rows: Any
    texts: list[TextOrError]
    end: Place = START


# A chunk and the result of each of its texts, in order.
ClassifiedChunk = tuple[Chunk, list[ResultItem]]


class Readable(Protocol):
    """A file of an object store, or what another file holds."""

    @property
    def suffix(self) -> str:
        """The ending of the name, such as ``.csv``."""

    def open(self, mode: Literal["rb"]) -> Any:
        """The file as a stream of bytes that can seek.

        Raises:
            OSError: it cannot be read.
        """


# A file to read.
TableSource = Path | Readable


class Table(ABC):
    """Rows with named columns, one of which has the texts.

    ``types`` maps a column to the type of all its values except None; ``object`` if they differ.
    ``ends`` is where each chunk ends, known before the first is read; of a stream, it is not known.
    """

    def __init__(
        self, columns: Sequence[str], types: Mapping[str, type], ends: Sequence[Place] = ()
    ) -> None:
        self.columns = columns
        self.types = types
        self.ends = ends

    @property
    def layout(self) -> Any:
        """What tables must have in common so that one table can follow the other in a file."""
        return self.columns

    @abstractmethod
    def chunks(self, start: Place = START) -> Iterator[Chunk]:
        """The rows after ``start``, the end of a chunk.

        Each call opens the file again.

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
            yield json_text(record)


def json_text(value: Any) -> str:
    """The value as JSON; null for NaN and infinity and base64 for bytes, which JSON lacks."""
    return json.dumps(_json_value(value), ensure_ascii=False, default=str)


def _json_value(value: Any) -> Any:
    match value:
        case str():
            return well_formed(value)
        case bytes():
            return b64encode(value).decode()
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {well_formed(name): _json_value(member) for name, member in value.items()}
        case list() | tuple():
            return [_json_value(member) for member in value]
        case _:
            return value


def column_index(
    column: str, columns: Sequence[str], path: TableSource | str, option: str = "--column"
) -> int:
    """The position of the column that ``option`` names.

    Raises:
        UserError: the table has no such column.
    """
    if column not in columns:
        names = ", ".join(map(repr, columns))
        raise UserError(f"{path} has no column {column!r}; {option} accepts one of: {names}")
    return columns.index(column)


def check_names(columns: Sequence[str], path: TableSource) -> None:
    """Refuse two columns of the same name: the output could hold only one of them.

    Raises:
        UserError: there are such columns.
    """
    counts = Counter(map(well_formed, columns))
    twice = [repr(name) for name, count in counts.items() if count > 1]
    if twice:
        raise UserError(
            f"{path} has several columns with the same name: {', '.join(twice)}; "
            "give each column its own name"
        )


def check_is_file(path: Path) -> None:
    """Refuse directories, and pipes, which cannot be read twice.

    Raises:
        OSError: the path cannot be accessed.
        UserError: it does not exist, or is not a regular file.
    """
    if not path.exists():
        raise UserError(f"there is no file {path}")
    if not stat.S_ISREG(path.stat().st_mode):
        raise UserError(f"{path} is not a file")


def split_into_chunks(
    rows: Iterable[tuple[Any, TextOrError, int]],
    place: Callable[[int], Place] = Place,
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[Chunk]:
    """Chunks of ``rows``; each item is a row, its text and its number of characters.

    ``place(n)`` is the place behind the first n rows, when these have just been read.

    Only the rows decide where a chunk ends. So a continued run writes the same file as a run
    without an interruption.
    """
    chunk: list[Any] = []
    texts: list[TextOrError] = []
    done = chars = 0
    for row, text, size in rows:
        chunk.append(row)
        texts.append(text)
        chars += size
        if len(chunk) == chunk_rows or chars >= CHUNK_CHARS:
            done += len(chunk)
            yield Chunk(chunk, texts, place(done))
            chunk, texts, chars = [], [], 0
    if chunk:
        yield Chunk(chunk, texts, place(done + len(chunk)))
