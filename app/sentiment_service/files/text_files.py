"""Open files of text, and refuse what is not one; write text that is not quite Unicode."""

import bz2
import codecs
import gzip
import io
import re
import zlib
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast
from zipfile import BadZipFile, ZipFile, ZipInfo

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
    b"PK\x03\x04": "a ZIP archive: let its name end in .zip",
    b"\xd0\xcf\x11\xe0": "an .xls workbook, or one with a password: save it as .xlsx without one",
    b"\x1f\x8b": "compressed with gzip: let its name end in .gz",
    b"BZh": "compressed with bzip2: let its name end in .bz2",
    b"\xfd7zXZ": "compressed with xz: unpack it",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: let its name end in .zst",
    b"PAR1": "Parquet: let its name end in .parquet",
    b"%PDF-": "a PDF document: save its text",
}
OPEN_DOCUMENT = "an OpenDocument file: save it as .xlsx or CSV"
XLSX = "an .xlsx workbook: let its name end in .xlsx"  # which is a ZIP archive
# The endings of compressed files, and how these begin. Parquet's PAR1 is PARE if it is encrypted.
PACKED = {".gz": b"\x1f\x8b", ".bz2": b"BZh", ".zst": b"\x28\xb5\x2f\xfd", ".zip": b"PK"}
BEGINS = {**PACKED, ".xlsx": b"PK", ".parquet": b"PAR"}
# A file that expands to so many bytes, and so many times its size, is made to fill a disk.
BOMB_BYTES, BOMB_TIMES = 1 << 28, 250
# The encoding, the separator and the quotes are judged by so many bytes.
START_BYTES = 1 << 20
NOT_ASCII = re.compile("[^\0-\x7f]")
# What "surrogateescape" makes of a byte that is not UTF-8: a lone surrogate. Half of a surrogate
# pair, which JSON may have, is one, too. U+DC7F is for what is not of another encoding.
NOT_UTF8 = re.compile("[\udc7f-\udcff]")


@dataclass(frozen=True, slots=True)
class FileOptions:
    """What the name of a file does not say: its encoding, or the sheet of a workbook."""

    encoding: str | None = None
    sheet: str | None = None

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """Add the flags that ``of`` reads."""
        parser.add_argument(
            "--encoding",
            type=_encoding,
            metavar="NAME",
            help="encoding of a file of text, such as windows-1252 [default: UTF-8]",
        )
        parser.add_argument(
            "--sheet", metavar="NAME", help="sheet of an .xlsx workbook [default: the first]"
        )

    @classmethod
    def of(cls, options: Namespace) -> "FileOptions":
        return cls(options.encoding, options.sheet)

    def fault(self, path: Path) -> str | None:
        """What is wrong with the flags for this file; None if they are valid."""
        suffix = path.suffix.lower()
        if self.sheet is not None and suffix != ".xlsx":
            return "--sheet is for an .xlsx workbook"
        if self.encoding is not None and suffix in (".xlsx", ".parquet"):
            return f"--encoding is for text; {suffix} has one encoding"
        return None


PLAIN = FileOptions()


def _encoding(name: str) -> str:
    try:
        io.TextIOWrapper(io.BytesIO(), name)
    except (LookupError, ValueError):
        raise ArgumentTypeError(
            f"{name!r} is not an encoding of text; accepted are those of Python, such as utf-16, "
            "windows-1252 or shift_jis"
        ) from None
    return name


class TextFile:
    """A file of text, which may be compressed. A line ends with LF, CR LF or CR.

    What cannot be decoded becomes a lone surrogate, so that only the text with it fails. ``start``
    has the first lines with their ends; ``is_short`` says that there are no others. A compressed
    file that is damaged raises CannotContinue wherever it is read.
    """

    def __init__(self, path: Path, encoding: str | None = None) -> None:
        """Read the beginning."""
        self.path = path
        own = codecs.lookup(encoding or "utf-8").name
        self._encoding = "utf-8-sig" if own == "utf-8" else own
        self._errors = "surrogateescape" if own == "utf-8" else UNREADABLE
        self._size = path.stat().st_size
        self._position: Callable[[], int] = int
        with self._opened() as file:
            start = file.read(START_BYTES)
            self.is_short = not file.read(1)
        _check_is_text(path, start, judge=not encoding)
        for mark, name in BYTE_ORDER_MARKS.items():
            if start.startswith(mark) and own.startswith(name.lower()):
                self._encoding = name.lower()  # it knows the mark; utf-16-le would keep it
        decoder = codecs.getincrementaldecoder(self._encoding)(self._errors)
        try:
            text = decoder.decode(start, final=self.is_short)
        except UnicodeError as error:
            raise UserError(f"{path} is not text in {encoding}: {error}") from None
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
        """All of it, in UTF-8."""
        if self._encoding != "utf-8-sig":
            with self._decoded("") as text:
                return text.read().encode("utf-8", SURROGATEESCAPE_OR_REPLACE)
        with self._opened() as file:
            return file.read().removeprefix(codecs.BOM_UTF8)

    def expected(self, read: int) -> int:
        """How many rows there are, about, when ``read`` of them have been read."""
        return round(read * max(1.0, self._size / (self._position() or 1)))

    @contextmanager
    def _decoded(self, newline: str | None) -> Iterator[TextIO]:
        with (
            self._opened() as file,
            io.TextIOWrapper(file, self._encoding, self._errors, newline) as text,
        ):
            yield text

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        with self.path.open("rb") as file:
            self._position = lambda: self._size if file.closed else file.tell()
            if self.path.suffix.lower() in PACKED:
                with _damage_named(self.path):
                    unpacked = _unpacked(self.path, file)
                with io.BufferedReader(_Unpacked(self.path, unpacked), 1 << 16) as buffered:
                    yield cast(BinaryIO, buffered)
            else:
                yield file


class _Unpacked(io.RawIOBase):
    """What a compressed file holds."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file, self._read = path, file, 0
        self._size = path.stat().st_size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _damage_named(self._path):
            data = self._file.read(len(buffer))
        self._read += len(data)
        check_expansion(self._path, self._size, self._read)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def _unpacked(path: Path, file: BinaryIO) -> Any:
    match path.suffix.lower():
        case ".gz":
            return gzip.GzipFile(fileobj=file)
        case ".bz2":
            return bz2.BZ2File(file)
        case ".zip":
            return ZipFile(file).open(_only_member(path))
        case _:
            import pyarrow as pa  # the extra `files` has it; Python's own is of 3.14

            return pa.CompressedInputStream(file, "zstd")


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    # pyarrow has errors of the system without a number, and ZipFile those of what it cannot do.
    except (EOFError, OSError, zlib.error, BadZipFile, NotImplementedError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise CannotContinue(f"{path} cannot be unpacked: {first_line(error)}") from None


def check_expansion(path: Path, size: int, unpacked: int) -> None:
    if unpacked > max(BOMB_BYTES, size * BOMB_TIMES):
        raise CannotContinue(
            f"{path} expands to more than {BOMB_TIMES} times its size; unpack it, if it should"
        )


def _check_kind(path: Path) -> None:
    if (suffix := path.suffix.lower()) not in BEGINS:
        return
    with path.open("rb") as file:
        start = file.read(64)
    if not start or start.startswith(BEGINS[suffix]):
        return
    kinds = (kind for begin, kind in OTHER_KINDS.items() if start.startswith(begin))
    unknown = "damaged" if b"\0" in start else "text: let its name end in .txt, .csv or .jsonl"
    raise UserError(f"{path} is not as the ending {suffix} says, but {next(kinds, unknown)}")


def _only_member(path: Path) -> ZipInfo:
    """What a ZIP archive holds, without the hidden files that macOS adds to it."""
    with _damage_named(path), ZipFile(path) as archive:
        members = [
            member
            for member in archive.infolist()
            if not member.is_dir() and not Path(member.filename).name.startswith(".")
        ]
    names = ", ".join(
        [*(repr(member.filename) for member in members[:3]), *["…"][: len(members) > 3]]
    )
    if any(member.filename.startswith("xl/") for member in members):
        raise UserError(f"{path} is {XLSX}")
    if len(members) != 1:
        found = f"{len(members)} files ({names})" if members else "no file"
        raise UserError(f"{path} holds {found}; accepted is a ZIP archive with one file")
    if members[0].flag_bits & 1:
        raise UserError(f"{path} is encrypted; unpack it with its password")
    return members[0]


def inner_suffix(path: Path) -> str:
    """The ending of the name in lower case, of a compressed file that of what it holds."""
    _check_kind(path)
    if path.suffix.lower() == ".zip":
        return Path(_only_member(path).filename).suffix.lower()
    name = path.with_suffix("") if path.suffix.lower() in PACKED else path
    return name.suffix.lower()


def _check_is_text(path: Path, start: bytes, *, judge: bool) -> None:
    """Refuse other kinds of files, and, unless the encoding is known, what is not UTF-8."""
    encoding = _other_encoding(start)
    for signature, kind in OTHER_KINDS.items():
        if start.startswith(signature) and (encoding or b"\0" in start):
            if b"opendocument" in start[:100]:
                kind = OPEN_DOCUMENT
            raise UserError(f"{path} is not text, but {XLSX if b'xl/' in start else kind}")
    if encoding and judge:
        raise UserError(
            f"{path} is not text in UTF-8; if it is {encoding}, add --encoding {encoding.lower()}, "
            "or convert it"
        )


def _other_encoding(start: bytes) -> str | None:
    """The likely encoding of a file that begins with these bytes; None for UTF-8."""
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if start.startswith(mark):
            return encoding
    if start.count(0) > len(start) // 4:
        return "UTF-16BE" if start[::2].count(0) > start[1::2].count(0) else "UTF-16LE"
    text = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode(start)
    bad, special = len(NOT_UTF8.findall(text)), len(NOT_ASCII.findall(text))
    return "WINDOWS-1252" if bad > special / 2 else None


def read_lines(source: TextIO, max_chars: int) -> Iterator[str]:
    """The lines without their ends, of a stream that was opened with universal line ends.

    A line that is longer than ``max_chars`` is cut, but not so short that it is not refused later.
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
SURROGATEESCAPE_OR_REPLACE = "sentiment.surrogateescape_or_replace"
codecs.register_error(SURROGATEESCAPE_OR_REPLACE, _surrogateescape_or_replace)


def _unreadable(error: UnicodeError) -> tuple[str, int]:
    """What stands for bytes that an encoding does not have: it is written as U+FFFD."""
    assert isinstance(error, UnicodeDecodeError)  # noqa: S101 (for mypy: only decoders use this)
    return "\udc7f", error.end


UNREADABLE = "sentiment.unreadable"
codecs.register_error(UNREADABLE, _unreadable)
