"""One request of the corpus: its name and its exact bytes."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

JSON = "content-type: application/json"
OWN_ID = "x-request-id: own"
MODEL = "minilm-l6-tweet-sentiment"  # the embedded one
GOOD = "I love this!"
LOVE = f'{{"inputs": "{GOOD}"}}'


@dataclass(frozen=True, slots=True)
class RawRequest:
    """The bytes to send on a connection of their own.

    If ``incomplete``, the client ends its sending side after them. Otherwise it asks a second time
    on the same connection, which shows whether the server keeps it open.
    """

    name: str
    data: bytes
    incomplete: bool = False


def request(
    name: str,
    line: str,
    headers: Sequence[str] = (),
    body: bytes | str | None = None,
) -> RawRequest:
    """A request with the usual headers: host, the client's own request id, and the body's length.

    ``line`` is ``METHOD target``, with the version unless it is HTTP/1.1. In ``line`` and
    ``headers``, each character stands for one byte. A text as body is sent as UTF-8, half
    surrogate pairs included.
    """
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    usual = ["host: replay", OWN_ID]
    if body is not None:
        usual.append(f"content-length: {len(body)}")
    return raw(name, line, [*usual, *headers], body or b"")


def raw(
    name: str, line: str, headers: Sequence[str], body: bytes = b"", *, incomplete: bool = False
) -> RawRequest:
    """A request with exactly these headers."""
    version = "" if re.search(r" HTTP/[0-9.]+$", line) else " HTTP/1.1"
    head = "".join(f"{one}\r\n" for one in (line + version, *headers, ""))
    return RawRequest(name, head.encode("latin-1") + body, incomplete)


def post(name: str, target: str, body: bytes | str, *headers: str) -> RawRequest:
    """A POST of JSON."""
    return request(name, f"POST {target}", [JSON, *headers], body)


def post_value(name: str, target: str, value: Any) -> RawRequest:
    """A POST of this value as JSON in ASCII."""
    return post(name, target, json.dumps(value))


def chunked(*chunks: bytes, trailers: bytes = b"") -> bytes:
    """A body in chunks."""
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return framed + b"0\r\n" + trailers + b"\r\n"
