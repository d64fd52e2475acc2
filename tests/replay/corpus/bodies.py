"""Media types, and bodies compressed, in chunks, too long or cut off; and compressed answers."""

import gzip
import json
import zlib
from collections.abc import Iterator

import brotli

from tests.replay.raw_request import JSON, RawRequest, chunked, post, raw, request

LOVE = b'{"inputs": "I love this!"}'
MAX_BYTES = 2_097_152


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _brotli(data: bytes) -> bytes:
    return bytes(brotli.compress(data))


def _raw_deflate(data: bytes) -> bytes:
    return zlib.compress(data, wbits=-zlib.MAX_WBITS)


def compressions(content: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Name, content-encoding and bytes of good compressed bodies."""
    yield "gzip", "gzip", _gzip(content)
    yield "x-gzip", "x-gzip", _gzip(content)
    yield "GZIP in capitals", " GZip ", _gzip(content)
    yield "deflate", "deflate", zlib.compress(content)
    yield "br", "br", _brotli(content)
    yield "identity", "identity", content
    yield "empty encoding", "", content
    yield "gzip without bytes", "gzip", b""
    yield "br without bytes", "br", b""
    yield "deflate without bytes", "deflate", b""
    yield "gzip of nothing", "gzip", _gzip(b"")
    yield "br of nothing", "br", _brotli(b"")


def broken_compressions(content: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Name, content-encoding and bytes of compressed bodies that have a fault."""
    yield "gzip without compression", "gzip", content
    yield "br without compression", "br", content
    yield "deflate without compression", "deflate", content
    yield "gzip cut off", "gzip", _gzip(content)[:-1]
    yield "gzip header only", "gzip", _gzip(content)[:10]
    yield "br cut off", "br", _brotli(content)[:-1]
    yield "deflate cut off", "deflate", zlib.compress(content)[:-1]
    yield "raw deflate", "deflate", _raw_deflate(content)
    yield "gzip with a wrong checksum", "gzip", _gzip(content)[:-8] + b"\x00" * 8
    yield "deflate with a wrong checksum", "deflate", zlib.compress(content)[:-4] + b"\x00" * 4
    yield "two gzip members", "gzip", _gzip(content) * 2
    yield "bytes after gzip", "gzip", _gzip(content) + b"x"
    yield "bytes after br", "br", _brotli(content) + b"x"
    yield "bytes after deflate", "deflate", zlib.compress(content) + b"x"
    yield "gzip named br", "br", _gzip(content)
    yield "zstd", "zstd", b"\x28\xb5\x2f\xfd"
    yield "compress", "compress", content
    yield "two encodings", "gzip, br", _gzip(content)
    yield "unknown encoding", "foo", content


BOMBS = {
    "gzip": _gzip(b'{"inputs": "' + b" " * 3_000_000 + b'"}'),
    "deflate": zlib.compress(b" " * 3_000_000),
    "br": _brotli(b" " * 3_000_000),
}
# The first is answered with more than 8 KiB, and the second with less.
MANY = json.dumps({"inputs": ["good"] + [""] * 80})
FEW = json.dumps({"inputs": "good"})
ACCEPT_ENCODINGS = [
    "gzip", "br", "zstd", "deflate", "identity", "*", "gzip, br, zstd", "br;q=0.5, gzip;q=1",
    "gzip;q=0", "gzip;q=0, *", "*;q=0", "identity;q=0", "GZIP", "x-gzip", "", ",,", "gzip;q=x",
    "gzip;q=2", "br ; q = 1", "gzipx",
]  # fmt: skip

# Content-types of a good body. None: there is no such header.
MEDIA_TYPES = {
    "none": None,
    "empty": "",
    "with charset": "application/json; charset=utf-8",
    "with charset latin-1": "application/json; charset=latin-1",
    "problem+json": "application/problem+json",
    "foo+json": "application/foo+json; charset=x",
    "foo+JSON in capitals": "APPLICATION/FOO+JSON",
    "+json": "application/+json",
    "space before the semicolon": "application/json ;charset=utf-8",
    "json without main type": "json",
    "json with slash": "/json",
    "text/json": "text/json",
    "text/plain": "text/plain",
    "form": "application/x-www-form-urlencoded",
    "jsonl": "application/jsonl",
    "json5": "application/json5",
    "two types": "application/json, text/plain",
    "comma before": ",application/json",
    "three parts": "application/json/x",
    "star": "*/*",
    "high bytes": "application/json\xff",
    "quoted": '"application/json"',
}


def _in_chunks(name: str, body: bytes, *headers: str, incomplete: bool = False) -> RawRequest:
    usual = ["host: replay", "x-request-id: own", JSON, "transfer-encoding: chunked"]
    return raw(f"chunks: {name}", "POST /classify", [*usual, *headers], body, incomplete=incomplete)


def _length(name: str, length: str, body: bytes, *, incomplete: bool = False) -> RawRequest:
    headers = ["host: replay", "x-request-id: own", JSON, f"content-length: {length}"]
    return raw(f"content-length: {name}", "POST /classify", headers, body, incomplete=incomplete)


REQUESTS = [
    *(
        request(
            f"media type: {name}",
            "POST /classify",
            [] if media_type is None else [f"content-type: {media_type}"],
            LOVE,
        )
        for name, media_type in MEDIA_TYPES.items()
    ),
    request("media type: wrong, and no body", "POST /classify", ["content-type: text/plain"], b""),
    request("media type: twice", "POST /classify", ["content-type: text/plain"] * 2, LOVE),
    request(
        "media type: wrong, then right",
        "POST /classify",
        ["content-type: text/plain", "content-type: application/json"],
        LOVE,
    ),
    request(
        "media type: right, then wrong",
        "POST /classify",
        ["content-type: application/json", "content-type: text/plain"],
        LOVE,
    ),
    *(
        post(f"compressed: {name}", "/classify", body, f"content-encoding: {encoding}")
        for name, encoding, body in (*compressions(LOVE), *broken_compressions(LOVE))
    ),
    post("compressed: two headers", "/classify", _gzip(LOVE), *["content-encoding: gzip"] * 2),
    *(
        post(f"bomb: {name}", "/classify", body, f"content-encoding: {name}")
        for name, body in BOMBS.items()
    ),
    *(
        post(f"accept-encoding: {value}, {size}", "/classify", body, f"accept-encoding: {value}")
        for value in ACCEPT_ENCODINGS
        for size, body in {"long": MANY, "short": FEW}.items()
    ),
    post(
        "accept-encoding: two headers",
        "/classify",
        MANY,
        "accept-encoding: br",
        "accept-encoding: gzip",
    ),
    request(
        "accept-encoding: gzip, HEAD /openapi.json", "HEAD /openapi.json", ["accept-encoding: gzip"]
    ),
    request("accept-encoding: gzip, /metrics", "GET /metrics", ["accept-encoding: gzip"]),
    request("accept-encoding: br, /openapi.json", "GET /openapi.json", ["accept-encoding: br"]),
    request("accept-encoding: gzip, page", "GET /web/page.js", ["accept-encoding: gzip"]),
    request("accept-encoding: gzip, 404", "GET /none", ["accept-encoding: gzip"]),
    _in_chunks("one", chunked(LOVE)),
    _in_chunks("a chunk for each byte", chunked(*[bytes([byte]) for byte in LOVE])),
    _in_chunks("empty", chunked()),
    _in_chunks("trailers", chunked(LOVE, trailers=b"x-request-id: other\r\nx-a: b\r\n")),
    _in_chunks("content-length as trailer", chunked(LOVE, trailers=b"content-length: 3\r\n")),
    _in_chunks("extension", b"1a;a=b\r\n" + LOVE + b"\r\n0\r\n\r\n"),
    _in_chunks("size in capitals with zeros", b"00001A\r\n" + LOVE + b"\r\n0\r\n\r\n"),
    _in_chunks("size with 0x", b"0x1a\r\n" + LOVE + b"\r\n0\r\n\r\n"),
    _in_chunks("size negative", b"-1\r\n" + LOVE + b"\r\n0\r\n\r\n"),
    _in_chunks("size is no number", b"zz\r\n" + LOVE + b"\r\n0\r\n\r\n"),
    _in_chunks("size beyond 64 bits", b"fffffffffffffffff\r\n" + LOVE),
    _in_chunks("size too small", b"5\r\n" + LOVE + b"\r\n0\r\n\r\n"),
    _in_chunks("line feeds only", b"1a\n" + LOVE + b"\n0\n\n"),
    _in_chunks("gzip", chunked(_gzip(LOVE)), "content-encoding: gzip"),
    _in_chunks("with content-length", chunked(LOVE), "content-length: 26"),
    _in_chunks("twice", chunked(LOVE), "transfer-encoding: chunked"),
    _in_chunks("behind gzip", chunked(LOVE), "transfer-encoding: gzip, chunked"),
    _in_chunks("no end", b"1a\r\n" + LOVE + b"\r\n", incomplete=True),
    _in_chunks("cut off in a chunk", b"1a\r\n" + LOVE[:9], incomplete=True),
    _in_chunks("another request behind", chunked(LOVE) + b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"),
    _in_chunks("beyond the limit", chunked(*[b" " * 65_536] * 33)),
    _in_chunks("much framing", b"1;" + b"a" * 40_000 + b"\r\n{\r\n0\r\n\r\n"),
    _in_chunks("many trailers", chunked(LOVE, trailers=b"x-a: b\r\n" * 6_000)),
    _in_chunks("Expect", chunked(LOVE), "expect: 100-continue"),
    _length("too small", "10", LOVE),
    _length("zero", "0", b""),
    _length("zeros before", "0026", LOVE),
    _length("plus", "+26", LOVE),
    _length("minus", "-1", LOVE),
    _length("hexadecimal", "0x1a", LOVE),
    _length("words", "many", LOVE),
    _length("empty", "", LOVE),
    _length("beyond 64 bits", "99999999999999999999", LOVE),
    _length("list", "26, 26", LOVE),
    _length("cut off", "100", LOVE, incomplete=True),
    _length("no byte", "100", b"", incomplete=True),
    _length("beyond the limit, not sent", f"{MAX_BYTES + 1}", b"", incomplete=True),
    post("body: twice content-length", "/classify", LOVE, f"content-length: {len(LOVE)}"),
    post("body: two content-lengths", "/classify", LOVE, "content-length: 3"),
    post("body: the most bytes", "/classify", LOVE + b" " * (MAX_BYTES - len(LOVE))),
    post("body: one byte too many", "/classify", LOVE + b" " * (MAX_BYTES - len(LOVE) + 1)),
    post("body: beyond the limit, bad", "/predict", b"x" * (MAX_BYTES + 1)),
    raw("body: none", "POST /classify", ["host: replay", "x-request-id: own", JSON]),
    post("body: Expect", "/classify", LOVE, "expect: 100-continue"),
    post("body: Expect, then a space", "/classify", LOVE, "expect: 100-continue "),
    post("body: Expect in capitals", "/classify", LOVE, "expect: 100-Continue"),
    post("body: unknown Expect", "/classify", LOVE, "expect: 200-ok"),
    post("body: Expect, refused", "/none", LOVE, "expect: 100-continue"),
    post("body: Expect, HTTP/1.0", "/classify HTTP/1.0", LOVE, "expect: 100-continue"),
]
