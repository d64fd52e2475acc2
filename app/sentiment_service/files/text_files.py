"""Open files of UTF-8 text, and refuse what is not one; write text that is not quite Unicode."""

import codecs
import io
import re
import shlex
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from gzip import BadGzipFile, GzipFile
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from sentiment_service.errors import CannotContinue, UserError, first_line

# Of a line or a cell. A longer one means another kind of file.
MAX_FIELD_CHARS = 16_777_216
# UTF-32 first: in little-endian, its byte order mark begins with that of UTF-16.
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
# How files of other kinds begin, whose names say that they are text.
OTHER_KINDS = {
    b"PK\x03\x04": "a ZIP archive: unpack it",
    b"\xd0\xcf\x11\xe0": "an .xls workbook: save the sheet as CSV in UTF-8",
    b"\x1f\x8b": "compressed with gzip: let its name end in .gz",
    b"BZh": "compressed with bzip2: unpack it",
    b"\xfd7zXZ": "compressed with xz: unpack it",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it",
    b"PAR1": "Parquet: let its name end in .parquet",
    b"%PDF-": "a PDF document: save its text",
}
XLSX = "an .xlsx workbook: save the sheet as CSV in UTF-8"  # which is a ZIP archive
# The encoding, the separator and the quotes are judged by so many bytes.
START_BYTES = 1 << 20
NOT_ASCII = re.compile("[^\0-\x7f]")
# What "surrogateescape" makes of a byte that is not UTF-8: a lone surrogate. Half of a surrogate
# pair, which JSON may have, is one, too.
NOT_UTF8 = re.compile("[\udc80-\udcff]")


class TextFile:
    """A file of UTF-8 text, which may be compressed with gzip. A line ends with LF, CR LF or CR.

    A byte that is not UTF-8 becomes a lone surrogate, so that only the text with this byte fails.
    ``start`` has the first lines with their ends; ``is_short`` says that there are no others. A
    compressed file that is damaged raises CannotContinue wherever it is read.
    """

    def __init__(self, path: Path) -> None:
        """Read the beginning."""
        self.path = path
        self._size = path.stat().st_size
        self._position: Callable[[], int] = int
        with self._opened() as file:
            start = file.read(START_BYTES)
            self.is_short = not file.read(1)
        _check_is_text(path, start)
        text = start.decode("utf-8-sig", "surrogateescape")
        lines = list(io.StringIO(text, newline=""))
        self.start = lines if self.is_short else lines[:-1] or lines

    def lines(self) -> Iterator[str]:
        """The lines without their ends. The rest of a line of ``MAX_FIELD_CHARS`` is left out."""
        with self._decoded(None) as text:
            yield from read_lines(text, MAX_FIELD_CHARS)

    def lines_with_ends(self) -> Iterator[str]:
        with self._decoded("") as text:
            yield from text

    def content(self) -> bytes:
        with self._opened() as file:
            return file.read()

    def expected(self, read: int) -> int:
        """How many rows there are, about, when ``read`` of them have been read."""
        return round(read * max(1.0, self._size / (self._position() or 1)))

    @contextmanager
    def _decoded(self, newline: str | None) -> Iterator[TextIO]:
        with (
            self._opened() as file,
            io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline) as text,
        ):
            yield text

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        with self.path.open("rb") as file:
            self._position = lambda: self._size if file.closed else file.tell()
            try:
                packed = self.path.suffix.lower() == ".gz"
                yield cast(BinaryIO, GzipFile(fileobj=file) if packed else file)
            except (EOFError, BadGzipFile, zlib.error) as error:
                raise CannotContinue(
                    f"{self.path} cannot be unpacked: {first_line(error)}"
                ) from None


def inner_suffix(path: Path) -> str:
    """The ending of the name in lower case, without that of compression."""
    suffix = path.suffix.lower()
    return inner_suffix(path.with_suffix("")) if suffix == ".gz" else suffix


def _check_is_text(path: Path, start: bytes) -> None:
    encoding = _other_encoding(start)
    for signature, kind in OTHER_KINDS.items():
        if start.startswith(signature) and (encoding or b"\0" in start):
            raise UserError(f"{path} is not text, but {XLSX if b'xl/' in start else kind}")
    if encoding:
        source = shlex.quote(str(path))
        if path.suffix.lower() == ".gz":
            source = f"<(gunzip -c {source})"
        raise UserError(
            f"{path} is not text in UTF-8; if it is {encoding}, convert it, for example with: "
            f"iconv -f {encoding} -t UTF-8 {source} > utf8{inner_suffix(path)}"
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


def read_lines(source: TextIO, max_chars: int) -> Iterator[str]:
    """The lines without their ends, of a stream that was opened with universal line ends.

    A line that is longer than ``max_chars`` is cut, which bounds the memory. What is left is
    still longer than ``max_chars``, so that the line is refused later.
    """
    while line := source.readline(max_chars + 2):
        rest = line
        while rest and not rest.endswith("\n"):
            rest = source.readline(max_chars)
        yield line.removesuffix("\n")


def well_formed(text: str) -> str:
    """The same text with U+FFFD for each lone surrogate."""
    return text.encode("utf-8", SURROGATEESCAPE_OR_REPLACE).decode("utf-8", "replace")


def _surrogateescape_or_replace(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write a byte that was not UTF-8 unchanged, and U+FFFD for any other lone surrogate."""
    assert isinstance(error, UnicodeEncodeError)  # noqa: S101 (for mypy: only encoders use this)
    error.end = error.start + 1
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError:
        return "\ufffd".encode(), error.end


# For the parameter ``errors`` of open() and encode().
SURROGATEESCAPE_OR_REPLACE = "app.surrogateescape_or_replace"
codecs.register_error(SURROGATEESCAPE_OR_REPLACE, _surrogateescape_or_replace)
