"""Routes, methods, paths and headers."""

from tests.replay.raw_request import JSON, LOVE, MODEL, OWN_ID, RawRequest, post, raw, request

VLLM = '{"input": "I love this!"}'
ROUTES = [
    "/", "/classify", "/classify/stream", "/explain", "/predict", "/v1/classify", "/v1/models",
    "/v2", "/v2/health/live", "/v2/health/ready", f"/v2/models/{MODEL}",
    f"/v2/models/{MODEL}/ready", f"/v2/models/{MODEL}/infer",
    f"/v2/models/{MODEL}/versions/1", f"/v2/models/{MODEL}/versions/1/ready", "/health",
    "/health/live", "/health/ready", "/info", "/models", f"/models/{MODEL}/reload", "/metrics",
    "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json", "/web/page.js", "/web/style.css",
    "/web/api.js", "/web/view.js", "/web/icon.svg", "/web/index.html", "/docs/docs.js",
]  # fmt: skip
PATHS = [
    "/none", "/classify/", "/classify/stream/", "/health/", "/info/", "/models/", "/v2/", "/docs/",
    "//", "//classify", "/classify//", "/./classify", "/../classify", "/classify/..",
    "/web/", "/web", "/web/..", "/web/../main.py", "/web/%2e%2e/main.py", "/web/..%2fmain.py",
    "/web/%2e%2e%2fmain.py", "/web/none.js", "/web/a/b", "/web/%00", "/web/page.js%00",
    "/web/page.js%0A", "/web/PAGE.JS", "/web/page.js/", "/web/%70age.js", "/web/page.js?v=1",
    "/classify%0A", "/classify%0a", "/classify%00", "/classify%20", "/classify%2F", "/%63lassify",
    "/classify%", "/classify%zz", "/classify%C3%A9", "/classify%FF", "/classify%ED%A0%80",
    "/classify%7F", "/classify%C2%85", "/health%0A", "/health%2Flive", "/health%2flive", "/info%0A",
    "/CLASSIFY", "/Health", "/classify;a=b", "/classify?", "/classify?a", "/classify?a=b&a=c",
    "/classify?%FF", "/classify?a=%0A", "/classify??", "/classify#a", "/health?x=y", "/info?%",
    "/v2/models", "/v2/models/", "/v2/models/other", "/v2/models/other/ready",
    f"/v2/models/{MODEL}/", f"/v2/models/{MODEL}/versions/2",
    f"/v2/models/{MODEL}/versions/2/ready",
    f"/v2/models/{MODEL}/versions/", f"/v2/models/{MODEL}%0A", f"/v2/models/{MODEL}%2Fready",
    "/v2/models/%FF", "/v2/models/%ED%A0%80", "/v2/models/{name}", "/v2/models/a b",
    "/v2/models/😀".encode().decode("latin-1"), "/v1/models/", f"/v1/models/{MODEL}", "/v1",
    "/favicon.ico", "/robots.txt", "/.env", "/metrics/", "/ping", "/invocations",
    "http://replay/health", "http://other/health", "https://replay/classify", "http://replay",
    "*", "health", "", "?a=b", "/health HTTP/1.1 x", "/" + "a" * 30_000, "/" + "a" * 40_000,
    "/health\x7f", "/health\xff", "/health\x01", "/health\t",
]  # fmt: skip
METHODS = [
    "PUT", "PATCH", "DELETE", "TRACE", "get", "Post", "FOO", "PROPFIND", "QUERY", "M-SEARCH", "PRI",
    "1GET", "GE T", "POSTS", "HEAD", "OPTIONS",
]  # fmt: skip

# Values of a header, in GET /health and POST /classify.
VALUES = {
    "x-request-id": [
        "abc", "a" * 128, "a" * 129, "", " ", "a b", "a,b", '"', "\xe9", "\xff", "\x7f", "a\tb",
        "~!",        "{}", "\\", "é".encode().decode("latin-1"),
        "own ", "own\t", "own \t ",
    ],
    "x-request-timeout-ms": [
        "0", "00", "01", "-1", "+1", "1.5", "1e3", "abc", "", " ", "10000", "10001", "5000 ",
        "9" * 18, "9" * 19, "9" * 5_000, "0x10", "5_000", "5000;", "5000, 5000", "\xd9\xa1",
        "5000\t", "5000 \t ", "50 00",
    ],
    "connection": [
        "close", "keep-alive", "Close", "KEEP-ALIVE", "close, keep-alive", "keep-alive, close",
        "upgrade", "foo", "", "x-request-id",
    ],
    "accept": ["*/*", "text/html", "application/json", "application/xml", "", "image/*;q=0"],
    "origin": ["https://example.org", "null", "*", ""],
    "authorization": ["Bearer abc", "Basic abc", "Bearer", "", "\xff"],
    "range": ["bytes=0-3", "bytes=-1", "bytes=9999999-"],
    "if-none-match": ["*", '"abc"'],
    "if-modified-since": ["Mon, 01 Jan 2018 00:00:00 GMT", "abc"],
    "x-forwarded-for": ["1.2.3.4", "a, b", "\xff"],
    "x-forwarded-proto": ["https"],
    "x-http-method-override": ["DELETE"],
    "traceparent": ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "x"],
    "cookie": ["a=b; c"],
    "user-agent": ["curl/8", ""],
    "te": ["trailers"],
    "x-long": ["a" * 30_000, "a" * 40_000],
}  # fmt: skip

UPGRADE = ["connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABk"]
WEBSOCKET = [
    "connection: upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
]
PREFLIGHT = ["origin: https://example.org", "access-control-request-method: POST"]
BARE = ["host: replay", OWN_ID]
NEXT = b"GET /health HTTP/1.1\r\nhost: replay\r\nx-request-id: next\r\n\r\n"


def _body(method: str, path: str) -> str | None:
    if method not in ("POST", "PUT", "PATCH", "DELETE"):
        return None
    return VLLM if path == "/v1/classify" else LOVE


REQUESTS = [
    *(
        request(f"{method} {path}", f"{method} {path}", [JSON], _body(method, path))
        for path in ROUTES
        for method in ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE")
    ),
    *(request(f"path: {path[:60]!a} {len(path)}", f"GET {path}") for path in PATHS),
    *(
        post(f"path for POST: {path!a}", path, LOVE)
        for path in PATHS
        if "classify" in path or path.startswith(("//", "*", "http"))
    ),
    *(
        request(f"method: {method} {path}", f"{method} {path}", [JSON], _body(method, path))
        for method in METHODS
        for path in ("/health/live", "/none")
    ),
    raw("method: CONNECT", "CONNECT replay:80", BARE),
    *(
        request(
            f"header {name}: {value[:40]!a} {len(value)}, GET", "GET /health", [f"{name}: {value}"]
        )
        for name, values in VALUES.items()
        for value in values
    ),
    *(
        post(f"header {name}: {value[:40]!a} {len(value)}", "/classify", LOVE, f"{name}: {value}")
        for name, values in VALUES.items()
        for value in values
        if name != "x-long"
    ),
    post("two ids", "/classify", LOVE, "x-request-id: second"),
    post("two timeouts", "/classify", LOVE, *["x-request-timeout-ms: 5000"] * 2),
    post("accept-encoding twice", "/classify", LOVE, *["accept-encoding: gzip"] * 2),
    request("upgrade to h2c", "GET /health", UPGRADE),
    post("upgrade to h2c with a body", "/classify", LOVE, *UPGRADE),
    request("upgrade to WebSocket", "GET /health", WEBSOCKET),
    request("upgrade to WebSocket, POST path", "GET /classify", WEBSOCKET),
    request("upgrade to TLS", "GET /health", ["connection: upgrade", "upgrade: TLS/1.0"]),
    *(
        request(f"preflight {path}", f"OPTIONS {path}", PREFLIGHT)
        for path in ("/classify", "/", "/health", "/none")
    ),
    request("OPTIONS *", "OPTIONS *"),
    *(
        request(
            f"{method} as {version}, {connection}", f"{method} {version}", [JSON, connection], body
        )
        for method, body in {
            "GET /health": None,
            "HEAD /health": None,
            "POST /classify": LOVE,
        }.items()
        for version in ("HTTP/1.0", "HTTP/1.1")
        for connection in ("connection: close", "connection: keep-alive", "x-none: 1")
    ),
    *(
        request(f"version {version}", f"GET /health {version}")
        for version in ("HTTP/0.9", "HTTP/1.2", "HTTP/2.0", "HTTP/3.0", "HTTP/9.9")
    ),
    *(
        RawRequest(f"preface of HTTP/2: {name}", b"PRI * HTTP/2.0\r\n" + rest)
        for name, rest in {
            "first lines": b"\r\n",
            "whole": b"\r\nSM\r\n\r\n",
            "with settings": b"\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
            "with a header": b"host: replay\r\n\r\n",
        }.items()
    ),
    *(
        RawRequest(f"bytes: {name}", data, incomplete=True)
        for name, data in {
            "nothing": b"",
            "empty lines": b"\r\n\r\n\r\n",
            "empty lines before": b"\r\n\r\n" + NEXT,
            "line feeds only": b"GET /health HTTP/1.1\nhost: a\n\n",
            "no version": b"GET /health\r\n\r\n",
            "lower-case version": b"GET /health http/1.1\r\nhost: a\r\n\r\n",
            "two spaces": b"GET  /health HTTP/1.1\r\nhost: a\r\n\r\n",
            "tab": b"GET\t/health HTTP/1.1\r\nhost: a\r\n\r\n",
            "space before": b" GET /health HTTP/1.1\r\nhost: a\r\n\r\n",
            "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            "head cut off": b"GET /health HTTP/1.1\r\nhost: a",
            "NULs": b"\x00" * 20,
            "SSH": b"SSH-2.0-OpenSSH_9.0\r\n",
        }.items()
    ),
    *(
        raw(f"head: {name}", "GET /health", lines)
        for name, lines in {
            "no host": [OWN_ID],
            "two hosts": [*BARE, "host: replay"],
            "two other hosts": [*BARE, "host: other"],
            "empty host": ["host:", OWN_ID],
            "host with a path": ["host: a/b", OWN_ID],
            "host with high bytes": ["host: \xff", OWN_ID],
            "space before the colon": [*BARE, "x-a : b"],
            "no colon": [*BARE, "x-a"],
            "no name": [*BARE, ": b"],
            "space in the name": [*BARE, "x a: b"],
            "high bytes in the name": [*BARE, "x\xff: b"],
            "underscore in the name": [*BARE, "x_request_id: other"],
            "name in capitals": ["HOST: replay", "X-REQUEST-ID: own"],
            "no space after the colon": ["host:replay", "x-request-id:own"],
            "tabs around the value": ["host: replay", "x-request-id:\town\t"],
            "folded line": [*BARE, "x-a: b", " c"],
            "folded first line": [" x-a: b", *BARE],
            "NUL in a value": [*BARE, "x-a: \x00"],
            "carriage return in a value": [*BARE, "x-a: b\rc"],
            "DEL in a value": [*BARE, "x-a: \x7f"],
            "1,000 headers": [*BARE, *(f"x-{i}: a" for i in range(1_000))],
            "3,000 headers": [*BARE, *(f"x-{i}: a" for i in range(3_000))],
            "body in a GET": [*BARE, "content-length: 0"],
        }.items()
    ),
    request("GET with a body", "GET /health", [], LOVE),
    request("GET with a body beyond the limit", "GET /health", [], b"x" * 2_097_153),
    request("HEAD with a body", "HEAD /info", [JSON], LOVE),
    raw("POST /health without a length", "POST /health", BARE),
    *(
        RawRequest(f"pipelined: {name}", one.data + NEXT)
        for name, one in {
            "health": request("", "GET /health"),
            "classify": post("", "/classify", LOVE),
            "bad JSON": post("", "/classify", "{"),
            "not found": post("", "/none", LOVE),
            "close": request("", "GET /health", ["connection: close"]),
            "HTTP/1.0": request("", "GET /health HTTP/1.0"),
            "too long": request("", "POST /classify", [JSON], b"x" * 2_097_153),
        }.items()
    ),
    RawRequest("pipelined: then nonsense", request("", "GET /health").data + b"nonsense\r\n\r\n"),
    RawRequest("pipelined: empty line between", post("", "/classify", LOVE).data + b"\r\n" + NEXT),
    RawRequest("pipelined: ten", post("", "/classify", LOVE).data * 10),
]
