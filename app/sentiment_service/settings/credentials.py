"""Keys, certificate and private key: what their files say when the service starts, and at SIGHUP.

Each file is read once, because it may be a pipe. Workers get what is in force from their
supervisor.
"""

import logging
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Self

import msgspec

from sentiment_service.errors import first_line
from sentiment_service.settings.formats import API_KEY, key_digests
from sentiment_service.settings.settings import Settings, flag

UNUSABLE = (
    "certificate and key cannot be used: they must be PEM, without a password, and belong together"
)
CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
# The validity of a certificate (X.509 in DER): two times, whose years have two or four digits.
TIME = rb"(?:\x17\x0d|\x18\x0f)"
VALIDITY = re.compile(rb"\x30[\x1e\x20\x22]" + TIME + rb"\d{12,14}Z" + TIME + rb"(\d{12,14}Z)")
NAMED = re.compile(rf"([A-Za-z][A-Za-z0-9._-]{{0,63}})=({API_KEY.pattern})")
LIKE_NAMED = re.compile(r"[^=+/]+=+[^=]")  # base64 has the sign at the end only
NO_NAME = (
    "it is taken for one key, because a name has at most 64 letters, digits and signs of . _ - and "
    "begins with a letter, and the key after name= has 8 to 256"
)
NO_COMMENTS = "it begins with #, but a file of keys has no comments: remove the line"
BYTE_ORDER_MARK = "\xef\xbb\xbf"  # of UTF-8, read as Latin-1
MOST_NAMES = 100  # each is a label of metrics
OTHER_NAMES = "other"

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
    key_names: dict[str, str] = {}  # by digest: those that their file gives to keys
    doubts: tuple[str, ...] = ()  # what the files may not have meant

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """What the settings and their files say now."""
        for name, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
            if getattr(settings, name) and not getattr(settings, other):
                why = f"a certificate and its key need each other: give {flag(other)}, too"
                raise UnusableFile(name, why)
        api_keys, names, doubts = _keys_of("api_keys_file", settings.api_keys_file)
        admin_keys, admin_names, more = _keys_of("admin_keys_file", settings.admin_keys_file)
        read = cls(
            settings.api_keys + api_keys,
            settings.admin_keys + admin_keys,
            _content("tls_cert", settings.tls_cert),
            _content("tls_key", settings.tls_key),
            names | admin_names,
            doubts + more,
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

    @property
    def certificate_expires(self) -> float:
        """When the first of the certificates in its file expires (Unix time); 0 without TLS."""
        pems = CERTIFICATE.findall((self.certificate or b"").decode("latin-1"))
        ends = [VALIDITY.search(ssl.PEM_cert_to_DER_cert(pem)) for pem in pems]
        times = [found[1] if len(found[1]) == 15 else b"20" + found[1] for found in ends if found]
        read = (datetime.strptime(f"{time.decode()}+0000", "%Y%m%d%H%M%SZ%z") for time in times)
        return min((time.timestamp() for time in read), default=0.0)

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
        read = Credentials.read(settings)
        for doubt in read.doubts:
            logger.warning("%s", doubt)
        return read
    except UnusableFile as error:
        # The service has started with this path, so it is no key that was given by mistake.
        where = f"{flag(error.setting)} {getattr(settings, error.setting)}"
        logger.error("keys or certificate stay as they are: %s: %s", where, error)
    except OSError as error:
        logger.error("keys or certificate stay as they are: %s", error)
    return None


def _files(path: Path | None) -> list[Path]:
    """The file, or those of the directory, without those of directories in it."""
    if path is None or not path.is_dir():
        return [path] if path else []
    # Kubernetes keeps the versions of a mounted Secret in hidden directories.
    return sorted(file for file in path.glob("[!.]*") if not file.is_dir())


def _keys_of(
    setting: str, path: Path | None
) -> tuple[tuple[bytes, ...], dict[str, str], tuple[str, ...]]:
    """The digests of the keys in a file, one a line, or in all files of a directory.

    Then their names, and doubts. A line may be name=key. A key may have the sign within it, so the
    whole line is a key, too.
    """
    if path is None:
        return (), {}, ()
    digests: list[bytes] = []
    names: dict[str, str] = {}
    doubts: list[str] = []
    try:
        for where, line in _lines(path):
            if line.startswith("#"):
                raise UnusableFile(setting, f"{where}: {NO_COMMENTS}")
            try:
                digests += key_digests(line)
            except ValueError as error:
                raise UnusableFile(setting, f"{where}: {error}") from None
            for item in map(str.strip, line.split(",")):
                if not (named := NAMED.fullmatch(item)):
                    if LIKE_NAMED.match(item):
                        doubts.append(f"{flag(setting)} {path}: {where}: {NO_NAME}")
                    continue
                name, key = named.groups()
                if name not in names.values() and len(set(names.values())) >= MOST_NAMES:
                    name = OTHER_NAMES
                (digest,) = key_digests(key)
                digests.append(digest)
                names[digest.decode()] = name
    except OSError as error:
        raise UnusableFile(setting, f"no keys can be read there: {first_line(error)}") from None
    if not digests:  # an empty file by mistake must not let everyone in
        raise UnusableFile(setting, "give at least one key, or leave this out")
    return tuple(digests), names, tuple(doubts)


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line with a key of the file, or of those in the directory, after where it is."""
    for file in _files(path):
        of_file = "" if file == path else f" of {file.name}"
        text = file.read_text("latin-1").removeprefix(BYTE_ORDER_MARK)
        for number, line in enumerate(text.split("\n"), 1):
            if line.replace(",", "").strip():
                yield f"line {number}{of_file}", line.strip()


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
