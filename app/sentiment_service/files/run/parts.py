"""The parts of a run: divide files of texts into them.

A part is done when its file exists, is of this plan, and has as many rows as planned. Whoever
computes a part twice writes the same file twice. So each row of the input is in the output exactly
once, whatever is killed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from types import NoneType
from typing import Protocol, Self

from sentiment_service.errors import CannotContinue, UserError
from sentiment_service.files.tables.formats import open_table
from sentiment_service.files.tables.table import START, Chunk, Place, Readable, Table
from sentiment_service.files.tables.text_tables import JsonlTable, common_type

# A part on a cluster has about so many rows of a larger file: several chunks, so that reading and
# writing go on beside the model; and few enough that little is lost with a machine.
PART_ROWS = 20_000


class StoredFile(Readable, Protocol):
    """A file of an object store."""

    def status(self) -> tuple[int, int]:
        """Its size in bytes, and the time of its last change in nanoseconds."""


@dataclass(frozen=True)
class InputFile:
    """A file of texts. A file whose ``size`` and ``mtime_ns`` are the same has not changed."""

    source: Path | StoredFile
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, source: Path | StoredFile) -> Self:
        """The file as it is now.

        Raises:
            OSError: it does not exist.
        """
        if not isinstance(source, Path):
            return cls(source, *source.status())
        status = source.stat()
        return cls(source, status.st_size, status.st_mtime_ns)

    def check_is_unchanged(self) -> None:
        """Check that the file is still as it was.

        Raises:
            CannotContinue: it has changed.
        """
        try:
            changed = InputFile.of(self.source) != self
        except FileNotFoundError:
            changed = True
        if changed:
            raise CannotContinue(
                f"{self.source} has changed since the start, so this run cannot be continued"
            )


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one file: whole chunks."""

    file: InputFile
    table: Table
    start: Place
    rows: int

    def chunks(self) -> Iterator[Chunk]:
        """The chunks.

        Raises:
            CannotContinue: the file has changed since it was planned.
        """
        remaining = self.rows
        for chunk in self.table.chunks(self.start) if remaining else ():
            remaining -= len(chunk.texts)
            yield chunk
            if remaining <= 0:
                break
        self.file.check_is_unchanged()


@dataclass(frozen=True)
class Part:
    """What becomes one file of the output, ``name``."""

    name: str
    pieces: list[Piece]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(piece.rows for piece in self.pieces)


def read_pieces(file: InputFile, column: str, rows: int) -> list[Piece]:
    """Check a file by reading it once, and divide it into pieces of ``rows`` rows or a little more.

    Raises:
        UserError: the file cannot be used.
        OSError: it cannot be read.
    """
    return pieces_of(file, open_table(file.source, column), rows)


def pieces_of(file: InputFile, table: Table, rows: int) -> list[Piece]:
    """Divide the file's table into pieces of ``rows`` rows or a little more; one if it has none."""
    places = [START]
    for end in table.ends:
        if end.rows - places[-1].rows >= rows or end == table.ends[-1]:
            places.append(end)
    pieces = [Piece(file, table, a, b.rows - a.rows) for a, b in pairwise(places)]
    return pieces or [Piece(file, table, START, 0)]


def divide(files: Sequence[Sequence[Piece]], rows: int, suffix: str = ".parquet") -> list[Part]:
    """Parts of about ``rows`` rows from the pieces of all files, in order.

    A large file is in several parts, and small files share one.

    Raises:
        UserError: the files have different columns.
    """
    share_columns([pieces[0] for pieces in files])
    groups: list[list[Piece]] = [[]]
    for piece in chain.from_iterable(files):
        if groups[-1] and sum(p.rows for p in groups[-1]) + piece.rows > rows:
            groups.append([])
        groups[-1].append(piece)
    return [
        Part(f"part-{number:05}-of-{len(groups):05}{suffix}", pieces)
        for number, pieces in enumerate(groups)
    ]


def share_columns(pieces: Sequence[Piece]) -> None:
    """Give all tables the same columns, because the files of one directory must have the same.

    JSON objects may lack members, so tables of JSONL get the columns of all.

    Raises:
        UserError: other tables have different columns.
    """
    first = pieces[0]
    if isinstance(first.table, JsonlTable):
        types: dict[str, type] = {}
        for piece in pieces:
            for name, kind in piece.table.types.items():
                types[name] = common_type(types.get(name, NoneType), kind)
        for piece in pieces:
            piece.table.columns, piece.table.types = list(types), types
        return
    for piece in pieces:
        if piece.table.layout != first.table.layout:
            raise UserError(
                f"{piece.file.source} has other columns than {first.file.source}, or other types: "
                f"{_shown(piece.table)}, not {_shown(first.table)}; classify them separately"
            )


def _shown(table: Table) -> str:
    return " ".join(str(table.layout).replace("\n", ", ").split())
