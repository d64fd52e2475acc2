"""A table of texts, whatever the kind of its file, and what writes it.

A table is read once, in chunks of rows.
"""

import json
import math
import shutil
import stat
from abc import ABC, abstractmethod
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentiment_service.errors import CannotContinue, ServiceError, UserError
from sentiment_service.files.results import ResultItem, column_index
from sentiment_service.files.text_files import TextFile, well_formed

# The kinds of files that are written, and those that are read.
WRITTEN = (".txt", ".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
TEXT = (*WRITTEN[:-1], ".json")
COMPRESSED = tuple(f"{ending}{packed}" for ending in TEXT for packed in (".gz", ".bz2", ".zst"))
READ = (*TEXT, ".parquet", ".xlsx", ".zip", *COMPRESSED)
READ_NAMES = (
    f"{' '.join(READ[: len(TEXT) + 3])}, all but the last three also with .gz, .bz2 or .zst"
)
# A chunk ends after so many rows: enough, sorted by length, for batches with little padding.
CHUNK_ROWS = 2_000
# Or after so many characters, which bounds the memory: a few chunks are in memory at a time.
CHUNK_CHARS = 2_000_000
TextOrError = str | ServiceError  # of a row; the error says why it has no text


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows and their texts. The table decides the type of ``rows``."""

    rows: Any
    texts: list[TextOrError]


class Table(ABC):
    """Rows with named columns, one of which has the texts.

    ``types`` maps a column to the type of all its values except None; ``object`` if they differ.
    Unless ``grows``, all columns are known before the first row is read.
    """

    grows = False
    file: TextFile | None = None  # what is read in lines

    def __init__(self, columns: Sequence[str], types: Mapping[str, type]) -> None:
        self.columns = columns
        self.types = types

    @abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """The rows. They can be read only once.

        Raises:
            CannotContinue: the content of the file is not valid.
        """

    @abstractmethod
    def records(self, rows: Any) -> list[dict[str, Any]]:
        """Each row as a dict from column to value."""

    def expected_rows(self, read: int) -> int | None:
        """How many rows there are, about, when ``read`` of them have been read; None: unknown."""
        return self.file.expected(read) if self.file else None

    def cells(self, rows: Any) -> list[list[Any]]:
        return [[record.get(column) for column in self.columns] for record in self.records(rows)]

    def json_objects(self, rows: Any) -> Iterator[str]:
        for record in self.records(rows):
            yield json_text(record)


class TextColumn(Table):
    """Texts from lines, arguments or standard input. The only column is ``text``."""

    def __init__(
        self, texts: Iterable[str], chunk_rows: int = CHUNK_ROWS, file: TextFile | None = None
    ) -> None:
        super().__init__(["text"], {"text": str})
        self.file = file
        self._texts = texts
        self._chunk_rows = chunk_rows

    def chunks(self) -> Iterator[Chunk]:
        return split_into_chunks(
            ((text, text, len(text)) for text in self._texts), self._chunk_rows
        )

    def records(self, rows: list[str]) -> list[dict[str, Any]]:
        return [{"text": text} for text in rows]


def json_text(value: Any) -> str:
    """The value as JSON; null for NaN and infinity and base64 for bytes, which JSON lacks."""
    try:
        return json.dumps(_json_value(value), ensure_ascii=False, default=str)
    except RecursionError:
        raise CannotContinue(
            "a value has too many lists and objects within each other to be written"
        ) from None


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


def text_index(column: str, columns: Sequence[str], path: Path) -> int:
    """The place of the column with the texts.

    Two columns of the same name are refused: the output could hold only one of them.
    """
    counts = Counter(map(well_formed, columns))
    twice = [repr(name) for name, count in counts.items() if count > 1]
    if twice:
        raise UserError(
            f"{path} has several columns with the same name: {', '.join(twice)}; "
            "give each column its own name"
        )
    return column_index(column, columns, path)


def check_is_file(path: Path) -> None:
    """Refuse directories, and pipes, from which a run could not be continued."""
    if not path.exists():
        raise UserError(f"there is no file {path}")
    if not stat.S_ISREG(path.stat().st_mode):
        raise UserError(f"{path} is not a file")


def split_into_chunks(
    rows: Iterable[tuple[Any, TextOrError, int]], chunk_rows: int = CHUNK_ROWS
) -> Iterator[Chunk]:
    """Chunks of ``rows``; each item is a row, its text and its number of characters.

    Only the rows decide where a chunk ends, so a continued run writes the same file.
    """
    chunk: list[Any] = []
    texts: list[TextOrError] = []
    chars = 0
    for row, text, size in rows:
        chunk.append(row)
        texts.append(text)
        chars += size
        if len(chunk) == chunk_rows or chars >= CHUNK_CHARS:
            yield Chunk(chunk, texts)
            chunk, texts, chars = [], [], 0
    if chunk:
        yield Chunk(chunk, texts)


# A chunk and the result of each of its texts, in order.
ClassifiedChunk = tuple[Chunk, list[ResultItem]]


class Output(ABC):
    """A kind of file with rows and their results: ``header``, then the bytes of each chunk."""

    header = b""

    @abstractmethod
    def chunk(self, chunk: Chunk, results: Sequence[ResultItem]) -> bytes:
        """The rows of a chunk."""

    def finish(self, chunks: Path) -> Path:
        """The complete file, for a file with the header and all chunks: mostly the same."""
        return chunks

    def new_file(self, chunks: Path) -> Path:
        """An empty file for ``finish``, with the permissions of the one with the chunks."""
        complete = chunks.with_name(f"{chunks.name}.tmp")
        complete.touch()
        shutil.copymode(chunks, complete)
        return complete

    def write(self, path: Path, chunks: Iterable[ClassifiedChunk]) -> None:
        with path.open("wb") as file:
            file.write(self.header)
            file.writelines(self.chunk(chunk, results) for chunk, results in chunks)


# While one chunk of a table is written, the next two are computed.
READ_AHEAD_CHUNKS = 2
