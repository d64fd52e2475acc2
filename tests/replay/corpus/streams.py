"""POST /classify/stream: lines, good and bad."""

import gzip
import json
from collections.abc import Sequence

from tests.replay.corpus.bodies import broken_compressions, compressions
from tests.replay.raw_request import RawRequest, chunked, raw, request

STREAM = "POST /classify/stream"
MEDIA_TYPE = "content-type: application/x-ndjson"
GOOD = b'{"id": 1, "text": "I love this!"}\n'

LINES = {
    "good": GOOD,
    "no line feed at the end": GOOD.strip(),
    "CR LF": GOOD.strip() + b"\r\n",
    "two lines": GOOD + b'{"id": 2, "text": "I hate this"}\n',
    "blank lines": b"\n\n \n" + GOOD + b"\t\n\r\n",
    "empty": b"",
    "line feeds only": b"\n\n\n",
    "no id": b'{"text": "ok"}\n',
    "id null": b'{"id": null, "text": "ok"}\n',
    "id object": b'{"id": {"a": [1, 2.50, "x"]}, "text": "ok"}\n',
    "id float": b'{"id": 1.0, "text": "ok"}\n',
    "id -0": b'{"id": [-0, -0.0, 1e5, 1E+2, 1e-7, 100000000000000000000000], "text": "ok"}\n',
    "id with many digits": b'{"id": 0.1234567890123456789, "text": "ok"}\n',
    "id with emoji": '{"id": "😀é", "text": "ok"}\n'.encode(),
    "id with half of a pair": b'{"id": "\\ud83d", "text": "ok"}\n',
    "id with control characters": b'{"id": "a\\u0000\\n\\u007f\\u2028", "text": "ok"}\n',
    "id with slash": b'{"id": "a\\/b<>&", "text": "ok"}\n',
    "id of floats": b'{"id": [1e15, 1e16, 1e22, 5e-324, 0.1, 1.10, 12.123456789], "text": "ok"}\n',
    "id of 4,300 digits": b'{"id": %b, "text": "ok"}\n' % (b"7" * 4_300),
    "id in 200 lists": b'{"id": %b, "text": "ok"}\n' % (b"[" * 200 + b"]" * 200),
    "id twice": b'{"id": 1, "id": 2, "text": "ok"}\n',
    "id with the same name twice": b'{"id": {"a": 1, "a": 2}, "text": "ok"}\n',
    "id true": b'{"id": true, "text": "ok"}\n',
    "text twice": b'{"id": 1, "text": 1, "text": "ok"}\n',
    "unknown field": b'{"id": 1, "text": "ok", "x": 1}\n',
    "text missing": b'{"id": 1}\n',
    "text null": b'{"id": 1, "text": null}\n',
    "text number": b'{"id": 1, "text": 5}\n',
    "text list": b'{"id": 1, "text": ["a"]}\n',
    "text empty": b'{"id": 1, "text": ""}\n',
    "text NUL": b'{"id": 1, "text": "a\\u0000"}\n',
    "text half of a pair": b'{"id": 1, "text": "a\\ud83d"}\n',
    "text raw half of a pair": b'{"id": 1, "text": "a\xed\xa0\xbd"}\n',
    "text in UTF-8": '{"id": 1, "text": "très bon 😀"}\n'.encode(),
    "text_pair": b'{"id": 1, "text": "ok", "text_pair": "a"}\n',
    "text_pair null": b'{"id": 1, "text": "ok", "text_pair": null}\n',
    "text_pair number": b'{"id": 1, "text": "ok", "text_pair": 1}\n',
    "text too long": b'{"id": 1, "text": "%b"}\n' % (b"x" * 50_001),
    "text of many tokens": b'{"id": 1, "text": "%b"}\n' % (b"so good " * 256),
    "bad, then good": b"{\n" + GOOD,
    "good, bad, good": GOOD + b"nonsense\n" + GOOD,
    "NaN": b'{"id": NaN, "text": "a"}\n',
    "1e999": b'{"id": 1e999, "text": "a"}\n',
    "4,301 digits": b'{"id": %b, "text": "a"}\n' % (b"1" * 4_301),
    "list": b"[1]\n",
    "text only": b'"I love this!"\n',
    "number": b"1\n",
    "null": b"null\n",
    "two objects in a line": GOOD.strip() + GOOD,
    "comma between lines": GOOD.strip() + b",\n" + GOOD,
    "JSON list over lines": b"[\n" + GOOD.strip() + b"\n]\n",
    "invalid UTF-8": b'{"id": 1, "text": "\xff"}\n',
    "BOM": b"\xef\xbb\xbf" + GOOD,
    "UTF-16": GOOD.decode().encode("utf-16"),
    "U+2028 in a text": '{"id": 1, "text": "a\u2028b"}\n'.encode(),
    "carriage return between lines": GOOD.strip() + b"\r" + GOOD,
    "form feed around": b"\f" + GOOD.strip() + b"\f\n",
    "deep": b"[" * 40_000 + b"]" * 40_000 + b"\n",
    "300 lines": b"".join(b'{"id": %d, "text": "good %d"}\n' % (i, i) for i in range(300)),
    "300 bad lines": b"{}\n" * 300,
    "line beyond the limit, then good": b"x" * 2_100_000 + b"\n" + GOOD,
}

MEDIA_TYPES = [
    "application/x-ndjson",
    "application/ndjson; charset=utf-8",
    "application/jsonl",
    "application/jsonlines",
    "APPLICATION/OCTET-STREAM",
    "application/json",
    "text/plain",
    "",
]

QUERIES = [
    "overflow=error", "overflow=window", "overflow=truncate", "overflow=cut", "overflow=",
    "overflow=error&overflow=window", "model=minilm-l6-tweet-sentiment", "model=other", "model=",
    "unknown=1", "&&==", "overflow=%65rror", "overflow=error#x", "overflow=%FF", "model=%0A",
]  # fmt: skip


def _stream(name: str, body: bytes, *headers: str, query: str = "") -> RawRequest:
    target = STREAM + (f"?{query}" if query else "")
    return request(f"stream: {name}", target, [MEDIA_TYPE, *headers], body)


def _in_chunks(name: str, headers: Sequence[str], body: bytes) -> RawRequest:
    usual = ["host: replay", "x-request-id: own", MEDIA_TYPE, "transfer-encoding: chunked"]
    return raw(f"stream in chunks: {name}", STREAM, [*usual, *headers], body)


REQUESTS = [
    *(_stream(name, body) for name, body in LINES.items()),
    *(
        request(f"stream as {name!r}", STREAM, [f"content-type: {name}"], GOOD)
        for name in MEDIA_TYPES
    ),
    request("stream without a content-type", STREAM, [], GOOD),
    *(
        _stream(f"?{query}", b'{"id": 1, "text": "%b"}\n' % (b"so good " * 256), query=query)
        for query in QUERIES
    ),
    *(
        _stream(f"compressed, {name}", body, f"content-encoding: {encoding}")
        for name, encoding, body in (*compressions(GOOD * 3), *broken_compressions(GOOD * 3))
    ),
    _stream("bomb", gzip.compress(b" " * 3_000_000, mtime=0), "content-encoding: gzip"),
    _stream("x-request-timeout-ms bad", GOOD, "x-request-timeout-ms: 0"),
    _stream("Accept-Encoding gzip", GOOD * 100, "accept-encoding: gzip"),
    _stream("Accept-Encoding br", GOOD * 100, "accept-encoding: br"),
    _stream("connection close", GOOD, "connection: close"),
    _stream("Expect", GOOD, "expect: 100-continue"),
    _in_chunks("one", (), chunked(GOOD)),
    _in_chunks("a chunk for each line", (), chunked(*[GOOD] * 5)),
    _in_chunks("lines cut in the middle", (), chunked(GOOD[:9], GOOD[9:] + GOOD[:20], GOOD[20:])),
    _in_chunks("a chunk for each byte", (), chunked(*[bytes([byte]) for byte in GOOD])),
    _in_chunks("character cut in the middle", (), chunked(b'{"text": "\xc3', b'\xa9 good"}\n')),
    _in_chunks("empty", (), chunked()),
    _in_chunks("trailers", (), chunked(GOOD, trailers=b"x-a: b\r\n")),
    _in_chunks("gzip", ["content-encoding: gzip"], chunked(gzip.compress(GOOD, mtime=0))),
    _in_chunks("bad framing", (), b"zz\r\n"),
    request("stream: HTTP/1.0", f"{STREAM} HTTP/1.0", [MEDIA_TYPE], json.dumps({"text": "ok"})),
]
