"""Divide files of texts into parts, and classify a part into a Parquet file.

A part is done when its file exists, is of this plan, and has as many rows as planned. Whoever
computes a part twice writes the same file twice. So each row of the input is in the output exactly
once, whatever is killed.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from types import NoneType

import pyarrow.parquet as pq

from app.errors import CannotContinue, UserError
from app.files.cluster.object_store import Directory, InputFile
from app.files.run.job import Tally
from app.files.run.table_classifier import READ_AHEAD_CHUNKS, Classifier, with_reasons
from app.files.tables.formats import table_opener
from app.files.tables.parquet import ParquetOutput
from app.files.tables.table import START, Chunk, Place, Table
from app.files.tables.text_tables import Jsonl, common_type

# A part has about so many rows of a larger file: several chunks, so that reading and writing go on
# beside the model; and few enough that little is lost with a machine.
PART_ROWS = 20_000
# The key of a part's tally and plan in the metadata of its Parquet file.
METADATA_KEY = b"sentiment"


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
        left = self.rows
        for chunk in self.table.chunks(start=self.start) if left else ():
            left -= len(chunk.texts)
            yield chunk
            if left <= 0:
                break
        if left or not self.file.is_unchanged():
            raise CannotContinue(
                f"{self.file.source} has changed since the start, so this run cannot be continued"
            )


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
    """Read a file once, check it as without an engine, and divide it into pieces of ``rows`` rows.

    Raises:
        UserError: the file cannot be used.
        OSError: it cannot be read.
    """
    table = table_opener(file.source.suffix)(file.source, column)
    places = [START, *table.ends(rows)]
    pieces = [Piece(file, table, a, b.rows - a.rows) for a, b in pairwise(places)]
    return pieces or [Piece(file, table, START, 0)]


def divide(files: Sequence[Sequence[Piece]], rows: int) -> list[Part]:
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
        Part(f"part-{number:05}-of-{len(groups):05}.parquet", pieces)
        for number, pieces in enumerate(groups)
    ]


def write_part(part: Part, classifier: Classifier, directory: Directory, digest: str) -> int:
    """Classify a part, write its file, and return its rows.

    Raises:
        UserError: the model failed, or an input cannot be read or has changed.
        OSError: a file cannot be read or written.
    """
    tally = Tally()
    output = ParquetOutput(part.pieces[0].table, classifier.labels)

    def write(path: Path) -> None:
        chunks = chain.from_iterable(piece.chunks() for piece in part.pieces)
        results = classifier.classify(chunks, read_ahead=READ_AHEAD_CHUNKS, advance=lambda _: None)
        with pq.ParquetWriter(path, output.schema) as writer:
            for chunk, items in with_reasons(results):
                writer.write_batch(output.batch(chunk, items))
                tally.add(Tally.of(items))
            metadata = json.dumps({"plan": digest, **vars(tally)})
            writer.add_key_value_metadata({METADATA_KEY: metadata})

    directory.write(part.name, write)
    return tally.rows


def share_columns(pieces: Sequence[Piece]) -> None:
    """Give all tables the same columns, because the files of one directory must have the same.

    JSON objects may lack members, so tables of JSONL get the columns of all.

    Raises:
        UserError: other tables have different columns.
    """
    first = pieces[0]
    if isinstance(first.table, Jsonl):
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
