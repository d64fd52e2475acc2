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

from sentiment_service.errors import UserError
from sentiment_service.files.tables.table import (
    START,
    Chunk,
    Place,
    Table,
    TableSource,
    TextOrError,
    split_into_chunks,
)
from sentiment_service.files.tables.unicode import NOT_UTF8

# Of a line or a cell. A longer one means another kind of file.
MAX_FIELD_CHARS = 16_777_216
# UTF-32 first: in little-endian, its byte order mark begins with that of UTF-16.
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
# The encoding is judged by so many bytes.
BLOCK_BYTES = 1 << 20
# Bytes of one read. In an object store each read is a request.
READ_BYTES = 1 << 18
NOT_ASCII = re.compile("[^\0-\x7f]")


@dataclass(frozen=True)
class Unpacked:
    """What a file holds that is compressed with gzip. See ``Readable``."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def suffix(self) -> str:
        return self.path.with_suffix("").suffix

    def open(self, mode: Literal["rb"]) -> gzip.GzipFile:
        return gzip.open(self.path, mode)


def check_is_utf8(path: TableSource) -> None:
    """Refuse a file of another encoding, or one that is not text, by its beginning.

    Raises:
        OSError: the file cannot be read.
        UserError: most of its text outside of ASCII is not UTF-8.
    """
    with path.open("rb") as file:
        encoding = _other_encoding(file.read(BLOCK_BYTES))
    if encoding:
        source = shlex.quote(str(path))
        if isinstance(path, Unpacked):
            source = f"<(gunzip -c {source})"
        raise UserError(
            f"{path} is not text in UTF-8; if it is {encoding}, convert it, for example with: "
            f"iconv -f {encoding} -t UTF-8 {source} > utf8{path.suffix}"
        )


def _other_encoding(start: bytes) -> str | None:
    """The likely encoding of a file that begins with these bytes; None for UTF-8."""
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return encoding
    if start.count(0) > len(start) // 4:
        return "UTF-16LE"
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(start)
    bad, special = len(NOT_UTF8.findall(text)), len(NOT_ASCII.findall(text))
    return "WINDOWS-1252" if bad > special / 2 else None


class _LongReads(io.BufferedReader):
    """Reads more than the 8 KiB that ``TextIOWrapper`` asks for."""

    def read1(self, size: int = -1) -> bytes:
        return super().read1(READ_BYTES)


class TextFile:
    """The lines of a file of UTF-8 text, and where the next one begins: after ``lines`` lines.

    A byte that is not UTF-8 becomes a lone surrogate, so that only the text with this byte fails.
    ``newline`` is what it is for ``open()``.
    """

    def __init__(self, source: TableSource, newline: str, start: Place = START) -> None:
        """Open the file and go to ``start``.

        Raises:
            OSError: the file cannot be read.
        """
        file = source.open("rb")
        mark = codecs.BOM_UTF8
        self._bytes = start.bytes or (len(mark) if file.read(len(mark)) == mark else 0)
        file.seek(self._bytes)
        self.lines = start.lines
        self._line_ends = "\n" if newline == "\n" else ("\n", "\r")
        self._text = io.TextIOWrapper(_LongReads(file), "utf-8", "surrogateescape", newline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._text.close()

    def __iter__(self) -> Iterator[str]:
        while line := self.readline():
            yield line

    def readline(self, limit: int = -1) -> str:
        """The next line with its end, at most ``limit`` characters of it; "" at the file's end."""
        line = self._text.readline(limit)
        self._bytes += len(line) if line.isascii() else len(line.encode("utf-8", "surrogateescape"))
        self.lines += line.endswith(self._line_ends)
        return line

    def place(self, rows: int) -> Place:
        """Where the next line begins, after ``rows`` rows."""
        return Place(rows, self._bytes, self.lines)


class TextTable(Table):
    """The rows of a file of text at ``path``."""

    path: TableSource
    newline = "\n"  # as for ``TextFile``

    @abstractmethod
    def read_rows(self, file: TextFile) -> Iterator[tuple[Any, TextOrError, int]]:
        """Each of the next rows of a file, its text and its number of characters."""

    def chunks(self, start: Place = START) -> Iterator[Chunk]:
        with TextFile(self.path, self.newline, start) as file:
            rows = self.read_rows(file)
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
