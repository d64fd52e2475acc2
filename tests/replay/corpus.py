"""The requests of the corpus, read from the data files beside this module, a request in a line.

- ``requests.jsonl`` is for a server with its default settings, ``requests_guarded.jsonl`` for one
  that was started with ``GUARDED_FLAGS``: with keys and CORS, and without documentation.
- ``line`` is ``METHOD target``, with the version unless it is HTTP/1.1; ``headers`` come behind the
  host, the client's own request id and the length of the ``body``, if there is one.
- ``bytes`` is a request in which nothing is added, ``incomplete`` one after whose bytes the client
  ends its sending side.
- A text may be a list of parts. The part ``[text, count]`` is repeated; each ``{n}`` in it is the
  number of the repetition, from 0 on. Bytes that are not UTF-8 are half surrogates, as Python's
  ``surrogateescape`` has them.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GUARDED_FLAGS = (
    "--api-keys", "replay-key", "--admin-keys", "replay-admin-key",
    "--cors-origins", "https://example.org", "--docs", "off",
)  # fmt: skip

Text = str | list[str | tuple[str, int]]


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
    name: str, line: str, headers: Sequence[str] = (), body: bytes | None = None
) -> RawRequest:
    """A request with the usual headers. In ``line`` and ``headers``, a character is a byte."""
    version = "" if re.search(r" HTTP/[0-9.]+$", line) else " HTTP/1.1"
    usual = ["host: replay", "x-request-id: own"]
    if body is not None:
        usual.append(f"content-length: {len(body)}")
    head = "".join(f"{one}\r\n" for one in (line + version, *usual, *headers, ""))
    return RawRequest(name, head.encode("latin-1") + (body or b""))


def _text(text: Text) -> str:
    if isinstance(text, str):
        return text
    return "".join(part if isinstance(part, str) else _repeated(*part) for part in text)


def _repeated(text: str, count: int) -> str:
    if "{n}" not in text:
        return text * count
    return "".join(text.replace("{n}", str(number)) for number in range(count))


def _bytes(text: Text) -> bytes:
    return _text(text).encode("utf-8", "surrogateescape")


def _request(entry: dict[str, Any]) -> RawRequest:
    name = entry["name"]
    if "bytes" in entry:
        return RawRequest(name, _bytes(entry["bytes"]), entry.get("incomplete", False))
    body = _bytes(entry["body"]) if "body" in entry else None
    headers = [_text(header) for header in entry.get("headers", [])]
    return request(name, _text(entry["line"]), headers, body)


def _read(file: str) -> list[RawRequest]:
    lines = Path(__file__).with_name(file).read_text(encoding="ascii").splitlines()
    return [_request(json.loads(line)) for line in lines]


CORPUS = _read("requests.jsonl")
GUARDED = _read("requests_guarded.jsonl")

_names = Counter(one.name for one in (*CORPUS, *GUARDED))
_twice = [name for name, count in _names.items() if count > 1]
assert not _twice, f"these names are given twice: {_twice}"
