"""What is kept of an exchange: the answers, without the parts that differ from run to run.

A recording is a JSON file with a line for each answer, which names all requests that have it. So
``git diff --word-diff`` shows a change of answers.
"""

import gzip
import hashlib
import json
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NotRequired

import brotli
from typing_extensions import TypedDict

from tests.replay.corpus import RawRequest
from tests.replay.sending import RawAnswer, send

LONG = 2_000  # longer bodies are kept as digests
MASK = "#"
FP32 = struct.Struct("<f")
METRICS = ("text/plain; version", "application/openmetrics-text")
# The length of the answer to HEAD is that of a body with such fields or figures.
HEAD_OF_FIGURES = re.compile(rb"HEAD /(info|models|metrics|v1/models) ")
MADE_ID = re.compile(r"\b[0-9a-f]{32}\b")
REASON = re.compile(r"(?<= \d{3}) [A-Z][A-Za-z -]*[A-Za-z]")  # versions of Python differ in it
FRACTION = re.compile(r"-?\d+(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+)")
# Headers whose value says when or how fast the answer was made, when a file was written, or by
# which export the bundle was made.
MASKED_HEADERS = re.compile("etag|last-modified|x-model-digest")
# Fields that describe the machine, the installation, the time or what was measured at the start.
MASKED_FIELDS = re.compile(
    r'("(?:version|python|onnxruntime|cpus?|cpu_flags|runners|threads|tuning|created'
    r'|max_batch_tokens|max_inflight_bytes|pid|connections|in_flight)":) ?("[^"]*"|[\d.]+|null)'
)
# The embedded bundle's identity. It keeps its length, so that the length of the body is compared.
MODEL_DIGEST = re.compile(rb'("digest":")[0-9a-f]{64}')


class Digest(TypedDict):
    """Stands for a long body.

    ``frame`` is the digest of the body without its fractions, and ``mean`` is their mean, weighted
    by their place, so that it changes if two of them are exchanged.
    """

    bytes: int
    sha256: str
    frame: str
    mean: float


class RecordedAnswer(TypedDict):
    """One answer. Headers are in their order; the body is decompressed."""

    status: str
    headers: list[str]
    body: NotRequired[str]
    long_body: NotRequired[Digest]


class RecordedExchange(TypedDict):
    """All answers to one request, and what became of the connection after them."""

    answers: list[RecordedAnswer]
    connection: str


Recording = dict[str, RecordedExchange]  # by the names of the requests


def recorded(url: str, requests: Iterable[RawRequest]) -> Recording:
    """Send each request to a server and record what it answers."""
    recording: Recording = {}
    for request in requests:
        answers, connection = send(url, request)
        kept = [_recorded(request, answer) for answer in answers]
        recording[request.name] = {"answers": kept, "connection": connection}
    return recording


def shortened(answer: RecordedAnswer) -> RecordedAnswer:
    """The answer, with a digest in the place of a long body."""
    body = answer.get("body", "")
    if len(body) <= LONG:
        return answer
    fractions = [float(found) for found in FRACTION.findall(body)]
    weighted = sum(place * value for place, value in enumerate(fractions, start=1))
    digest: Digest = {
        "bytes": len(_bytes(body)),
        "sha256": _sha(body),
        "frame": _sha(FRACTION.sub(MASK, body)),
        "mean": weighted / max(1, len(fractions)) ** 2,
    }
    return {"status": answer["status"], "headers": answer["headers"], "long_body": digest}


def write(file: Path, recording: Recording) -> None:
    """Write a recording, with digests of long bodies."""
    entries: dict[str, list[str]] = {}
    for name, one in recording.items():
        short = {**one, "answers": [shortened(answer) for answer in one["answers"]]}
        entries.setdefault(json.dumps(short), []).append(name)
    lines = [
        json.dumps({"requests": names, **json.loads(entry)}) for entry, names in entries.items()
    ]
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="ascii")


def read(file: Path) -> Recording:
    """A recording that ``write`` wrote."""
    entries = json.loads(file.read_text(encoding="ascii"))
    return {
        name: {"answers": entry["answers"], "connection": entry["connection"]}
        for entry in entries
        for name in entry["requests"]
    }


def _recorded(request: RawRequest, answer: RawAnswer) -> RecordedAnswer:
    text = _text(answer)
    made_id = MADE_ID.search(answer.header("x-request-id") or text)
    if made_id:
        text = text.replace(made_id[0], MASK)
    is_changed = _bytes(text) != _without_digest(answer.body) or HEAD_OF_FIGURES.match(request.data)
    headers = []
    for name, value in answer.headers:
        match name.lower():
            case "date":
                continue
            case "server-timing":
                value = re.sub(r"[\d.]+", MASK, value)
            case "content-length" if is_changed:
                value = MASK
            case "x-request-id" if made_id:
                value = MASK
            case lower if MASKED_HEADERS.fullmatch(lower):
                value = MASK
        headers.append(f"{name}: {value}")
    status = REASON.sub("", answer.status)
    return {"status": status, "headers": headers, "body": text}


def _text(answer: RawAnswer) -> str:
    """The body, decompressed and without what differs from run to run."""
    body = answer.body
    match answer.header("content-encoding") if body else "":
        case "gzip":
            body = gzip.decompress(body)
        case "br":
            body = bytes(brotli.decompress(body))
        case "zstd":
            return MASK  # Python can decompress it from 3.14 on
    if length := answer.header("inference-header-content-length"):
        body, tail = body[: int(length)], body[int(length) :]
        return body.decode() + "".join(f"\n{values}" for values in _tensors(body, tail))
    text = _without_digest(body).decode("utf-8", "surrogateescape")
    if answer.header("content-type").startswith(METRICS):
        return "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    return MASKED_FIELDS.sub(rf"\1{MASK}", text)


def _without_digest(body: bytes) -> bytes:
    return MODEL_DIGEST.sub(rb"\1" + 64 * MASK.encode(), body)


def _tensors(document: bytes, tail: bytes) -> Iterator[str]:
    """The outputs that follow the JSON as bytes, readable, so that figures can be compared."""
    for output in json.loads(document)["outputs"]:
        if size := output.get("parameters", {}).get("binary_data_size"):
            data, tail = tail[:size], tail[size:]
            is_text = output["datatype"] == "BYTES"
            yield ascii(data) if is_text else str([value for (value,) in FP32.iter_unpack(data)])
    if tail:
        yield f"and {len(tail)} more bytes"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _sha(text: str) -> str:
    return hashlib.sha256(_bytes(text)).hexdigest()
