"""Keys, certificate and private key: what their files say when the service starts, and at SIGHUP.

Each file is read once, because it may be a pipe. Workers get what is in force from their
supervisor: the files may have changed since, or may not be readable any more.
"""

import logging
import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import msgspec

from sentiment_service.errors import first_line
from sentiment_service.settings.formats import key_digests
from sentiment_service.settings.settings import Settings, flag

UNUSABLE = (
    "certificate and key cannot be used: they must be PEM, without a password, and belong together"
)


logger = logging.getLogger(__name__)


class UnusableFile(ValueError):
    """What a file holds cannot be used; ``setting`` names it."""

    def __init__(self, setting: str, why: str) -> None:
        super().__init__(why)
        self.setting = setting


class Credentials(msgspec.Struct, frozen=True):
    """The keys, as digests, and the content of the files for TLS; None without TLS."""

    api_keys: tuple[bytes, ...]
    admin_keys: tuple[bytes, ...]
    certificate: bytes | None
    private_key: bytes | None

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """What the settings and their files say now."""
        for name, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
            if getattr(settings, name) and not getattr(settings, other):
                why = f"a certificate and its key need each other: give {flag(other)}, too"
                raise UnusableFile(name, why)
        read = cls(
            settings.api_keys + _keys_of("api_keys_file", settings.api_keys_file),
            settings.admin_keys + _keys_of("admin_keys_file", settings.admin_keys_file),
            _content("tls_cert", settings.tls_cert),
            _content("tls_key", settings.tls_key),
        )
        read.tls_context()
        return read

    @classmethod
    def of_descriptor(cls, descriptor: int) -> Self:
        """What the supervisor has passed. The descriptor is closed."""
        with os.fdopen(descriptor, "rb", buffering=0):
            # Its offset is that of the supervisor and of all workers, so none may move it.
            content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        return msgspec.json.decode(content, type=cls)

    def to_descriptor(self) -> int:
        descriptor = os.memfd_create("credentials")
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(msgspec.json.encode(self))
        return descriptor

    def tls_context(self) -> ssl.SSLContext | None:
        """What a server needs for TLS, 1.2 or newer."""
        if self.certificate is None or self.private_key is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        with _as_file(self.certificate) as certificate, _as_file(self.private_key) as key:
            try:
                # Without a password, OpenSSL would ask for it at the terminal.
                context.load_cert_chain(certificate, key, password="")
            except ssl.SSLError:
                raise UnusableFile("tls_cert", UNUSABLE) from None
        return context


def read_again(settings: Settings) -> Credentials | None:
    """What is in force after SIGHUP; None, with a line in the log, if all stays as it is."""
    try:
        for name in ("api_keys_file", "admin_keys_file", "tls_cert", "tls_key"):
            for path in _files(getattr(settings, name)):
                if path.is_fifo():  # to wait for a writer would hold up everybody
                    raise UnusableFile(name, f"{path} is a pipe, which is read only once")
        return Credentials.read(settings)
    except (UnusableFile, OSError) as error:
        logger.error("keys or certificate stay as they are: %s", error)
        return None


def _files(path: Path | None) -> list[Path]:
    """The file, or those of the directory."""
    if path is None or not path.is_dir():
        return [path] if path else []
    # Kubernetes keeps the versions of a mounted Secret in hidden directories.
    return sorted(path.glob("[!.]*"))


def _keys_of(setting: str, path: Path | None) -> tuple[bytes, ...]:
    """The digests of the keys in a file, one a line, or in all files of a directory."""
    if path is None:
        return ()
    try:
        texts = [file.read_text("latin-1") for file in _files(path)]
        digests: tuple[bytes, ...] = key_digests(",".join(texts).replace("\n", ","))
        return digests
    except OSError as error:
        raise UnusableFile(setting, f"no keys can be read there: {first_line(error)}") from None
    except ValueError as error:
        raise UnusableFile(setting, str(error)) from None


def _content(setting: str, path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path else None
    except OSError as error:
        raise UnusableFile(setting, f"it cannot be read: {first_line(error)}") from None


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """The path of a file with this content, which is all that OpenSSL reads."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("tls"), "wb", buffering=0) as file:
            file.write(content)
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile(buffering=0) as file:
            file.write(content)
            yield file.name
