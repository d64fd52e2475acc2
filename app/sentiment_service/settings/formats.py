"""How settings and options are written that are more than a whole number or a choice.

Each type here reads the text of a flag or a variable, and says what is accepted if it is wrong.
"""

import hashlib
import ipaddress
import math
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StrictBytes
from pydantic_settings import NoDecode

from sentiment_service.engine.options import LANGUAGE_TAG

API_KEY = re.compile(r"[!-+\--~]{8,256}")  # printable ASCII without the comma, which separates keys
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s,]+")
MODEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3}(,[0-9]{1,3})*)?")
RATE = re.compile(r"[1-9]\d{0,8}/(second|minute|hour|day)", re.ASCII)
COLLECTOR = re.compile(r"https?://[^/\s]\S*")
ROOT_PATH = re.compile(r"[A-Za-z0-9._~/-]*")
MOST_AT_ONCE = 1024  # workers, runners or threads: more would hang the start
LOOPBACK = "127.0.0.1"


def _listed(value: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in value.split(","))))


def _words(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",")) if value else ()
    return value


def _language_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    if not all(LANGUAGE_TAG.fullmatch(tag) for tag in tags):
        raise ValueError("must be language tags, such as en or pt-BR")
    return tags


def _paths(value: Any) -> Any:
    if "://" in str(value):
        raise ValueError("a model of the hub is given as ORG/NAME")
    if isinstance(value, str):  # as in PATH, empty parts mean nothing
        value = [*filter(None, value.split(os.pathsep))] or [""]
    if not all(value):  # an empty variable by mistake must not serve another model
        raise ValueError("give a model, or leave this out for the embedded one")
    return tuple(map(_path, value))


def _names(value: Any) -> Any:
    # One that is left out must not give its place, and so its model, to the next.
    names = tuple(_words(value.rstrip(", ")) if isinstance(value, str) else value)
    if not all(MODEL_NAME.fullmatch(name) for name in names):
        raise ValueError("a name must be up to 128 letters, digits, '.', '_' and '-'")
    return names


def _origins(value: Any) -> Any:
    origins = _listed(value) if isinstance(value, str) else value
    if not all(ORIGIN.fullmatch(origin) for origin in origins):
        raise ValueError(
            "an origin must be a scheme and a host, such as https://example.org, or '*'"
        )
    return origins


def _networks(value: Any) -> Any:
    # A connection's IPv4 address never has the prefix of IPv6.
    networks = _listed(value.replace("::ffff:", "")) if isinstance(value, str) else value
    try:
        for network in networks if networks != ("*",) else ():
            ipaddress.ip_network(network)
    except ValueError:
        raise ValueError(
            "give addresses and networks, such as '10.0.0.7, 10.1.0.0/16', or '*' for all"
        ) from None
    return networks


def key_digests(value: Any) -> Any:
    if not isinstance(value, str):  # digests, from settings that were validated before
        return value
    keys = _listed(value)
    if not keys:  # "" or "," by mistake must not let everyone in
        raise ValueError("give at least one key, or leave this out")
    if not all(API_KEY.fullmatch(key) for key in keys):
        raise ValueError("a key must be 8 to 256 printable ASCII characters without spaces")
    return tuple(hashlib.sha256(key.encode()).hexdigest().encode() for key in keys)


def _root_path(value: str) -> str:
    prefix = value.strip("/")
    if not ROOT_PATH.fullmatch(prefix):
        raise ValueError("give a path without special characters, such as /sentiment")
    return f"/{prefix}" if prefix else ""


def _path(value: Any) -> Any:
    if not value:  # empty means: not set
        return None
    try:
        path = Path(value).expanduser()
        # Path drops the "./" that tells a path from a hub id.
        return path.absolute() if str(value).startswith("./") else path
    except RuntimeError:
        raise ValueError("no home directory was found for '~'; give an absolute path") from None


def _secret_file(value: Any) -> Any:
    if value == "":  # a variable that a script left empty must neither let everyone in nor end TLS
        raise ValueError("give a file, or leave this out")
    return _path(value)


def _device(value: str) -> str:
    if not DEVICE.fullmatch(value):
        raise ValueError(
            "must be 'auto', 'cpu', 'cuda', or 'cuda:' and the numbers of GPUs, such as "
            "'cuda:1' or 'cuda:0,1'"
        )
    numbers = [*map(int, value.partition(":")[2].split(","))] if ":" in value else []
    if len(set(numbers)) < len(numbers):
        raise ValueError("name each GPU once")
    return value


def _workers(value: Any) -> Any:
    digits = str(value)
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 9 else 0
    if value == "auto" or 1 <= number <= MOST_AT_ONCE:
        return value
    raise ValueError(f"must be 'auto' or a number of processes from 1 to {MOST_AT_ONCE}")


def _rate(value: str) -> str:
    if value and not RATE.fullmatch(value):
        raise ValueError(
            "a rate must be a number of up to 9 digits per second, minute, hour or day, such as "
            "600/minute"
        )
    return value


def _collector(value: str) -> str:
    if value and not COLLECTOR.fullmatch(value):
        raise ValueError("must be a URL that begins with http:// or https://")
    return value


# An empty value means: not set. A socket would listen on all addresses.
Host = Annotated[str, BeforeValidator(lambda value: value or LOOPBACK)]
Count = Annotated[int, Field(ge=0)]
AtOnce = Annotated[int, Field(ge=0, le=MOST_AT_ONCE)]
Port = Annotated[int, Field(ge=0, le=65535)]
Labels = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)]
Languages = Annotated[Labels, AfterValidator(_language_tags)]
Paths = Annotated[tuple[Path, ...], NoDecode, BeforeValidator(_paths)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)]
Origins = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_origins)]
RootPath = Annotated[str, AfterValidator(_root_path)]
Networks = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_networks)]
OptionalPath = Annotated[Path | None, BeforeValidator(_path)]
# SHA-256 of each key, in hexadecimal. They are bytes so that they cannot be mistaken for keys,
# which are strings.
KeyDigests = Annotated[tuple[StrictBytes, ...], NoDecode, BeforeValidator(key_digests)]
SecretFile = Annotated[Path | None, BeforeValidator(_secret_file)]
DeviceName = Annotated[str, AfterValidator(_device)]
Workers = Annotated[int | Literal["auto"], BeforeValidator(_workers)]
Rate = Annotated[str, AfterValidator(_rate)]
Collector = Annotated[str, AfterValidator(_collector)]


def _number(accepted: str, holds: Callable[[float], bool]) -> Callable[[str], float]:
    def read(value: str) -> float:
        with suppress(ValueError):
            if holds(number := float(value)):
                return number
        raise ArgumentTypeError(f"must be {accepted}, not {value!r}")

    return read


# Types of ``argparse``.
SHARE = _number("a number from 0 to 1", lambda number: 0 <= number <= 1)
POSITIVE = _number("a number above 0", lambda number: 0 < number < math.inf)


def count(value: str) -> int:
    """A whole number of at least 1."""
    if not value.isdecimal() or int(value) == 0:
        raise ArgumentTypeError(f"must be a whole number of at least 1, not {value!r}")
    return int(value)
