"""Compressed requests and answers."""

import base64
import gzip
import json
import random
import sys
import threading
import zlib
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import brotli
import httpx2
import pytest
from fastapi.testclient import TestClient
from sentiment_service.http.decoding import PIECE_BYTES, decoder

from tests.conftest import Serve

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    import zstandard as zstd

Compress = Callable[[bytes], bytes]


def _members(body: bytes) -> bytes:
    """Gzip of several members, as `cat a.gz b.gz`, bgzip and files that are appended to have it."""
    parts = [body[start : start + 100_000] for start in range(0, len(body), 100_000)]
    return b"".join(gzip.compress(part) for part in (b"", *parts, b""))


ENCODINGS: list[tuple[str, Compress]] = [
    ("gzip", gzip.compress),
    ("gzip", _members),
    ("x-gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("br", brotli.compress),
]


def _post(client: TestClient, content: bytes, encoding: str) -> httpx2.Response:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    return client.post("/classify", content=content, headers=headers)


@pytest.mark.parametrize(("encoding", "compress"), ENCODINGS)
def test_pieces_are_bounded_however_the_body_arrives(encoding: str, compress: Compress) -> None:
    """The size of decoded pieces does not depend on the compression ratio or on the packets."""
    words = [b"love", b"it", b"worst", b"day", b"so", b"\n"]
    body = b" ".join(random.Random(1).choices(words, k=300_000))
    packed = compress(body)
    for step in (1, 1_000, len(packed)):
        stream = decoder(encoding)
        pieces = [
            piece
            for start in range(0, len(packed), step)
            for piece in stream.decode(packed[start : start + step])
        ]
        stream.end()
        assert b"".join(pieces) == body
        assert max(map(len, pieces)) <= 2 * PIECE_BYTES


@pytest.mark.parametrize(
    ("library", "name", "encoding"),
    [(zlib, "decompressobj", "deflate"), (brotli, "Decompressor", "br")],
)
def test_a_long_body_is_decompressed_in_linear_time_off_the_event_loop(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, library: Any, name: str, encoding: str
) -> None:
    """The input, which is copied for each piece, is short; only the first pieces keep the loop."""
    inputs: list[int] = []
    threads: list[str] = []
    kind = getattr(library, name)

    class Noted:
        def __init__(self, *options: Any) -> None:
            self._stream = kind(*options)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        def _call(self, method: str, data: bytes, *options: Any, **others: Any) -> Any:
            inputs.append(len(data))
            threads.append(threading.current_thread().name)
            return getattr(self._stream, method)(data, *options, **others)

        decompress, process = partialmethod(_call, "decompress"), partialmethod(_call, "process")

    monkeypatch.setattr(library, name, Noted)
    text = base64.b64encode(random.Random(1).randbytes(1_000_000)).decode()
    body = json.dumps({"inputs": [text]}).encode()
    answer = _post(serve(), library.compress(body), encoding)
    assert (answer.status_code, answer.json()["results"][0]["error"]["code"]) == (
        200,
        "text_too_long",
    )
    assert max(inputs) <= PIECE_BYTES
    assert set(threads[-10:]) == {"tokenizer"} != {threads[0]}
    assert threads.count("tokenizer") > 0.8 * len(threads)


def test_a_long_answer_may_be_compressed_with_zstd(client: TestClient) -> None:
    """A client that accepts zstd gets it. (The recorded answers leave out what zstd packed.)"""
    headers = {"accept-encoding": "zstd"}
    inputs = {"inputs": ["love"] * 200}
    with client.stream("POST", "/classify", json=inputs, headers=headers) as answer:
        packed = b"".join(answer.iter_raw())
    assert len(json.loads(zstd.decompress(packed))["results"]) == 200
