"""What is kept of an exchange: the answers, without the parts that differ from run to run.

A recording is a file of JSON lines, one for each request, so that a change of answers can be
reviewed as a diff.
"""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NotRequired

import brotli
from typing_extensions import TypedDict

from benchmarks.replay.exchange import Answer, Exchange, exchange
from benchmarks.replay.request import Request

LONG = 2_000  # longer bodies are kept as digests
MASK = "#"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
FRACTION = re.compile(r"-?\d+(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+)")
# Headers whose value says when or how fast the answer was made, or when a file was written.
MASKED_HEADERS = re.compile("etag|last-modified|x-[a-z]+-time")
# Fields that describe the machine, the installation, the time or what was measured at the start.
MASKED_FIELDS = re.compile(
    r'("(?:version|python|onnxruntime|cpus?|cpu_flags|int8_kernels|runners|threads|tuning|created'
    r'|max_batch_tokens|max_inflight_bytes)":) ?("[^"]*"|[\d.]+|null)'
)


class Digest(TypedDict):
    """Stands for a long body. ``frame`` is the digest of the body without its fractions."""

    bytes: int
    sha256: str
    frame: str


class RecordedAnswer(TypedDict):
    """One answer. Headers are in their order; the body is decompressed."""

    status: str
    headers: list[str]
    body: NotRequired[str]
    long_body: NotRequired[Digest]


class Record(TypedDict):
    """All answers to one request, and what became of the connection after them."""

    request: str
    answers: list[RecordedAnswer]
    connection: str


Recording = dict[str, Record]


def recorded(url: str, requests: Iterable[Request]) -> Recording:
    """Send each request to a server and record what it answers."""
    return {one.name: _record(exchange(url, one)) for one in requests}


def _record(one: Exchange) -> Record:
    return {
        "request": one.request.name,
        "answers": [_recorded(one.request, answer) for answer in one.answers],
        "connection": one.connection,
    }


def shortened(answer: RecordedAnswer) -> RecordedAnswer:
    """The answer, with a digest in the place of a long body."""
    body = answer.get("body", "")
    if len(body) <= LONG:
        return answer
    frame = FRACTION.sub(MASK, body)
    digest: Digest = {"bytes": len(_bytes(body)), "sha256": _sha(body), "frame": _sha(frame)}
    return {"status": answer["status"], "headers": answer["headers"], "long_body": digest}


def write(file: Path, recording: Iterable[Record]) -> None:
    """Write a recording, with digests of long bodies."""
    with file.open("w", encoding="ascii") as lines:
        for one in recording:
            short = {**one, "answers": [shortened(answer) for answer in one["answers"]]}
            lines.write(json.dumps(short) + "\n")


def read(file: Path) -> Recording:
    """The records of a file, by the names of their requests."""
    records: list[Record] = [json.loads(line) for line in file.read_text("ascii").splitlines()]
    return {one["request"]: one for one in records}


def _recorded(request: Request, answer: Answer) -> RecordedAnswer:
    body = _decoded(answer)
    text = body.decode("utf-8", "surrogateescape")
    own_id = answer.header("x-request-id")
    if own_id.encode() not in request.data:
        text = text.replace(own_id, MASK)
    if "text/plain; version" in answer.header("content-type") or "openmetrics" in answer.header(
        "content-type"
    ):
        text = "".join(line for line in text.splitlines(True) if line.startswith("#"))
    text = MASKED_FIELDS.sub(rf"\1{MASK}", text)
    is_changed = _bytes(text) != answer.body
    headers = []
    for name, value in answer.headers:
        match name.lower():
            case "date":
                continue
            case "server-timing":
                value = re.sub(r"[\d.]+", MASK, value)
            case "content-length" if is_changed:
                value = MASK
            case "x-request-id" if value.encode() not in request.data:
                value = MASK
            case lower if MASKED_HEADERS.fullmatch(lower):
                value = MASK
        headers.append(f"{name}: {value}")
    return {"status": answer.status, "headers": headers, "body": text}


def _decoded(answer: Answer) -> bytes:
    match answer.header("content-encoding"):
        case "gzip":
            return gzip.decompress(answer.body) if answer.body else b""
        case "deflate":
            return zlib.decompress(answer.body) if answer.body else b""
        case "br":
            decoded: Any = brotli.decompress(answer.body) if answer.body else b""
            return bytes(decoded)
    return answer.body


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _sha(text: str) -> str:
    return hashlib.sha256(_bytes(text)).hexdigest()
