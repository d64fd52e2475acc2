"""Files and directories on this machine or in an object store, through pyarrow's file systems."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pyarrow as pa
from pyarrow import fs

from sentiment_service.errors import UserError, first_line
from sentiment_service.files.run.directory import RunDirectory
from sentiment_service.files.run.parts import InputFile

# The stores in which people keep texts, of those that ``FileSystem.from_uri`` knows.
SCHEMES = ("s3://", "gs://")
FORMATS = (".parquet", ".csv", ".jsonl", ".ndjson")
WILDCARDS = frozenset("*?[")


@dataclass(frozen=True)
class ObjectFile:
    """A file of a file system of pyarrow. ``address`` names it, with the scheme of its store."""

    filesystem: fs.FileSystem
    path: str
    address: str

    def __str__(self) -> str:
        return self.address

    @property
    def suffix(self) -> str:
        """The ending of the name."""
        return PurePosixPath(self.path).suffix

    def open(self, mode: Literal["rb"]) -> Any:
        return self.filesystem.open_input_file(self.path)

    def status(self) -> tuple[int, int]:
        return _status(self.filesystem.get_file_info(self.path))


def list_files(address: str) -> list[InputFile]:
    """The files at a path, in a directory and those below it, or of a glob, sorted by their paths.

    Names that begin with "." or "_" are left out below a directory: tools put notes about a
    directory there.

    Raises:
        UserError: there is no file, their formats differ, or one has none of ``FORMATS``.
        OSError: the place cannot be read.
    """
    filesystem, path = _located(address)
    infos = _below(filesystem, path)  # a name may have the characters of a glob
    if infos is None and WILDCARDS & set(path):
        infos = _matching(filesystem, path)
    if infos is None:
        raise UserError(f"{address} does not exist")
    if not infos:
        raise UserError(f"{address} has no files")
    scheme = address[: address.find("://") + 3] if "://" in address else ""
    files = [
        InputFile(ObjectFile(filesystem, info.path, f"{scheme}{info.path}"), *_status(info))
        for info in infos
    ]
    kinds = {f.source.suffix.lower() for f in files}
    if len(kinds) > 1 or not kinds <= {*FORMATS}:
        raise UserError(
            f"{address} has files that end in {', '.join(sorted(kinds))}; --input accepts files of "
            f"one format: {' '.join(FORMATS)}; name them, for example with a glob such as "
            "'DIRECTORY/*.csv'"
        )
    return files


class StoreDirectory(RunDirectory):
    """A directory of an object store, which shows an object only when it is whole."""

    def __init__(self, filesystem: fs.FileSystem, path: str, address: str) -> None:
        super().__init__(address)
        self.filesystem, self.store_path = filesystem, path

    def names(self) -> set[str]:
        selector = fs.FileSelector(self.store_path, allow_not_found=True)
        return {info.base_name for info in self.filesystem.get_file_info(selector)}

    def create(self) -> None:
        self.filesystem.create_dir(self.store_path)

    def read(self, name: str) -> bytes | None:
        try:
            with self.filesystem.open_input_stream(f"{self.store_path}/{name}") as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None

    def write(self, name: str, write: Callable[[Path], object]) -> None:
        with tempfile.TemporaryDirectory(prefix="sentiment-") as folder:
            path = Path(folder, name)
            write(path)
            target = f"{self.store_path}/{name}"
            fs.copy_files(str(path), target, fs.LocalFileSystem(), self.filesystem)

    def remove_leftovers(self) -> None:
        """A store shows no object that is not whole, so there are none."""


def open_directory(address: str) -> RunDirectory:
    """The directory at an address, which need not exist.

    Raises:
        UserError: the address is not one of an object store, or it is a file.
    """
    filesystem, path = _located(address)
    if filesystem.get_file_info(path).type == fs.FileType.File:
        raise UserError(f"{address} is a file; --output must be a directory")
    if isinstance(filesystem, fs.LocalFileSystem):
        return RunDirectory(path)  # absolute: workers have another working directory
    return StoreDirectory(filesystem, path, address)


def check_is_outside(output: str, inputs: str) -> None:
    """Refuse an output inside of the directory of the inputs: results would become inputs.

    Raises:
        UserError: it is.
    """
    places = [_located(address) for address in (output, inputs)]
    path, base = (
        os.path.realpath(path) if isinstance(filesystem, fs.LocalFileSystem) else path
        for filesystem, path in places
    )
    if f"{path}/".startswith(f"{base}/"):
        raise UserError(f"--output {output} is inside of --input {inputs}; choose another")


def _located(address: str) -> tuple[fs.FileSystem, str]:
    """The file system of an address, and the path there, without a slash at its end."""
    if "://" not in address:
        return fs.LocalFileSystem(), str(Path(address).absolute())
    if not address.startswith(SCHEMES):
        raise UserError(
            f"{address} is not a place that can be read or written; give a path, or an address "
            f"that begins with one of: {' '.join(SCHEMES)}"
        )
    scheme, _, rest = address.partition("://")
    bare, question, options = rest.partition("?")
    bucket, _, path = bare.partition("/")
    try:
        # The path is no part of what pyarrow parses, because a glob would not be valid there.
        filesystem, _ = fs.FileSystem.from_uri(f"{scheme}://{bucket}{question}{options}")
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{address} cannot be used: {first_line(error)}") from None
    return filesystem, f"{bucket.rpartition('@')[2]}/{path}".rstrip("/")


def _below(filesystem: fs.FileSystem, path: str) -> list[fs.FileInfo] | None:
    """The file itself, or the files of the directory and of those below it; None if neither."""
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.File:
        return [info]
    if info.type == fs.FileType.NotFound:
        return None
    return [
        file
        for file in _files(filesystem, path, recursive=True)
        if not any(name[:1] in "._" for name in file.path[len(path) + 1 :].split("/"))
    ]


def _matching(filesystem: fs.FileSystem, pattern: str) -> list[fs.FileInfo]:
    """The files whose paths match; ``*`` does not match a slash."""
    start = min(pattern.index(sign) for sign in WILDCARDS & set(pattern))
    base = pattern[:start].rpartition("/")[0] or "/"
    files = _files(filesystem, base, recursive="/" in pattern[start:])
    whole = f"/{pattern.lstrip('/')}"  # a pattern without a slash before it may match an end only
    return [file for file in files if PurePosixPath("/", file.path).match(whole)]


def _files(filesystem: fs.FileSystem, base: str, *, recursive: bool) -> list[fs.FileInfo]:
    selector = fs.FileSelector(base, allow_not_found=True, recursive=recursive)
    files = [info for info in filesystem.get_file_info(selector) if info.type == fs.FileType.File]
    return sorted(files, key=lambda info: info.path)


def _status(info: fs.FileInfo) -> tuple[int, int]:
    return info.size, info.mtime_ns
