"""Open and read files of UTF-8 text, and refuse what is not one."""

import codecs
import gzip
import io
import re
import shlex
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TextIO

from app.errors import UserError
from app.files.tables.table import (
    START,
    Chunk,
    Place,
    Table,
    TableSource,
    TextOrError,
    split_into_chunks,
)
from app.files.tables.unicode import NOT_UTF8

# Of a line or a cell. A longer one means another kind of file.
MAX_FIELD_CHARS = 16_777_216
# UTF-32 first: in little-endian, its byte order mark begins with that of UTF-16.
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
UNPACK = "unpack it, for example with:"
# How files of other kinds begin, and what to do with them; {0} is the quoted path, {1} its
# ending.
OTHER_KINDS = {
    b"\x1f\x8b": "is compressed with gzip; rename it so that it ends in {1}.gz",
    b"BZh91AY&SY": f"is compressed with bzip2; {UNPACK} bunzip2 -c {{0}} > unpacked{{1}}",
    b"\x28\xb5\x2f\xfd": f"is compressed with zstd; {UNPACK} zstd -dc {{0}} > unpacked{{1}}",
    b"PAR1": "is a Parquet file; rename it so that it ends in .parquet",
    b"PK\x03\x04": "is a ZIP archive; unpack it, and name a file that was in it",
}
# What an archive begins with if it is a document of Excel.
OFFICE_DOCUMENT = b"[Content_Types].xml"
BLOCK_BYTES = 1 << 20
# After so many bytes and characters outside of ASCII, the encoding is known.
ENOUGH = 1_000
NOT_ASCII = re.compile("[^\0-\x7f]")


@dataclass(frozen=True)
class Unpacked:
    """What a file holds that is compressed with gzip. See ``StoredFile``."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def suffix(self) -> str:
        return self.path.with_suffix("").suffix

    def open(self, mode: Literal["rb"]) -> gzip.GzipFile:
        return gzip.open(self.path, mode)

    def status(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns


def check_is_utf8(path: TableSource) -> None:
    """Refuse a file of another kind or encoding, by its beginning.

    Raises:
        OSError: the file cannot be read.
        UserError: it is not text, or most of its text outside of ASCII is not UTF-8.
    """
    with path.open("rb") as file:
        start = file.read(BLOCK_BYTES)
        for magic, advice in OTHER_KINDS.items():
            if start.startswith(magic):
                if OFFICE_DOCUMENT in start:
                    advice = "is an Excel workbook; save it as CSV in UTF-8"
                raise UserError(f"{path} {advice.format(shlex.quote(str(path)), path.suffix)}")
        for mark, name in BYTE_ORDER_MARKS.items():
            if start.startswith(mark):
                raise UserError(f"{path} is {name}, not UTF-8; {_how_to_convert(path, name)}")
        if start.count(0) > len(start) // 4:
            convert = _how_to_convert(path, "UTF-16BE" if start[0] == 0 else "UTF-16LE")
            raise UserError(f"{path} is not UTF-8 text; if it is UTF-16, {convert}")
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(start)
    _check_share(path, len(NOT_UTF8.findall(text)), len(NOT_ASCII.findall(text)))


def _check_share(path: TableSource, bad: int, special: int) -> None:
    """Check the number of bytes that are not UTF-8 among the characters outside of ASCII."""
    if bad > special / 2:
        convert = _how_to_convert(path, "WINDOWS-1252")
        raise UserError(f"{path} is not UTF-8; if it is Windows-1252 or Latin-1, {convert}")


def _how_to_convert(path: TableSource, encoding: str) -> str:
    source = shlex.quote(str(path))
    if isinstance(path, Unpacked):
        source = f"<(gunzip -c {source})"
    return (
        f"convert it, for example with: iconv -f {encoding} -t UTF-8 {source} > utf8{path.suffix}"
    )


class TextFile:
    """The lines of a file of UTF-8 text, and where the next one begins.

    A byte that is not UTF-8 becomes a lone surrogate, so that only the text with this byte fails.
    If most characters outside of ASCII are such bytes, reading ends with an error. ``newline`` is
    what it is for ``open()``.
    """

    def __init__(self, source: TableSource, newline: str, start: Place = START) -> None:
        """Open the file and go to ``start``.

        Raises:
            OSError: the file cannot be read.
        """
        self._source = source
        self._bad = 0
        file = source.open("rb")
        mark = codecs.BOM_UTF8
        self._special = int(file.read(len(mark)) == mark)
        self._bytes = start.bytes or self._special * len(mark)
        file.seek(self._bytes)
        self._lines = start.lines
        self._line_ends = "\n" if newline == "\n" else ("\n", "\r")
        self._text = io.TextIOWrapper(file, "utf-8", "surrogateescape", newline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._text.close()

    def __iter__(self) -> Iterator[str]:
        while line := self.readline():
            yield line

    def readline(self, limit: int = -1) -> str:
        """The next line with its end, at most ``limit`` characters of it; "" at the file's end.

        Raises:
            UserError: the file has ended, and is not UTF-8.
        """
        line = self._text.readline(limit)
        if line.isascii():
            self._bytes += len(line)
        else:
            self._bytes += len(line.encode("utf-8", "surrogateescape"))
            if self._special < ENOUGH:
                self._bad += len(NOT_UTF8.findall(line))
                self._special += len(NOT_ASCII.findall(line))
        if not line:
            _check_share(self._source, self._bad, self._special)
        self._lines += line.endswith(self._line_ends)
        return line

    def place(self, rows: int) -> Place:
        """Where the next line begins, after ``rows`` rows."""
        return Place(rows, self._bytes, self._lines)


class TextTable(Table):
    """The rows of a file of text at ``path``."""

    path: TableSource
    newline = "\n"  # as for ``TextFile``

    @abstractmethod
    def read_rows(self, file: TextFile, lines: int) -> Iterator[tuple[Any, TextOrError, int]]:
        """Each row, its text and its number of characters; ``lines`` lines are before them."""

    def open(self, start: Place = START) -> TextFile:
        """The file from ``start`` on."""
        return TextFile(self.path, self.newline, start)

    def chunks(self, start: Place = START) -> Iterator[Chunk]:
        with self.open(start) as file:
            rows = self.read_rows(file, start.lines)
            yield from split_into_chunks(rows, lambda done: file.place(start.rows + done))


def read_lines(source: TextFile | TextIO, max_chars: int) -> Iterator[str]:
    """The lines without their ends.

    A line that is longer than ``max_chars`` is cut, which bounds the memory. What is left is
    still longer than ``max_chars``, so that the line is refused later.
    """
    while line := source.readline(max_chars + 2):
        rest = line
        while rest and not rest.endswith("\n"):
            rest = source.readline(max_chars)
        yield line.removesuffix("\n").removesuffix("\r")
