"""Requests to a server with keys and CORS, and without documentation: see ``GUARDED_FLAGS``."""

import json

from tests.replay.raw_request import MODEL, RawRequest, post, request

KEY, ADMIN_KEY = "replay-key", "replay-admin-key"
ORIGIN = "https://example.org"
GUARDED_FLAGS = (
    "--api-keys", KEY, "--admin-keys", ADMIN_KEY, "--cors-origins", ORIGIN, "--docs", "off",
)  # fmt: skip

AUTHORIZATIONS = {
    "none": [],
    "key": [f"authorization: Bearer {KEY}"],
    "admin key": [f"authorization: Bearer {ADMIN_KEY}"],
    "wrong key": ["authorization: Bearer wrong-key"],
    "Basic": [f"authorization: Basic {KEY}"],
    "key only": [f"authorization: {KEY}"],
    "BEARER": [f"authorization: BEARER {KEY}"],
    "two spaces": [f"authorization: Bearer   {KEY}"],
    "tab": [f"authorization: Bearer\t{KEY}"],
    "empty": ["authorization:"],
    "empty key": ["authorization: Bearer "],
    "high bytes": ["authorization: Bearer \xff"],
    "wrong, then right": ["authorization: Bearer wrong-key", f"authorization: Bearer {KEY}"],
    "right, then wrong": [f"authorization: Bearer {KEY}", "authorization: Bearer wrong-key"],
    "x-api-key": [f"x-api-key: {KEY}"],
}
ROUTES = [
    "GET /", "GET /health", "GET /health/live", "GET /v2/health/live", "GET /health/ready",
    "GET /v2/health/ready", "GET /info", "GET /models",
    "GET /metrics", "GET /docs", "GET /openapi.json", "GET /web/page.js", "GET /none", "GET /v2",
    "GET /v1/models", "HEAD /info", "OPTIONS /classify", "GET /classify", "GET /health%0A",
    "GET /classify%0A", "GET /web/../info", "POST /none", "POST /health", "POST /web/page.js",
    f"POST /models/{MODEL}/reload", "POST /models/other/reload", "POST /models/", "PUT /models/a",
]  # fmt: skip
CLASSIFYING = [
    "/classify",
    "/",
    "/predict",
    "/v1/classify",
    "/explain",
    "/tokenize",
    f"/v2/models/{MODEL}/infer",
]
ORIGINS = {
    "allowed": [f"origin: {ORIGIN}"],
    "other": ["origin: https://example.com"],
    "in capitals": ["origin: HTTPS://EXAMPLE.ORG"],
    "with slash": [f"origin: {ORIGIN}/"],
    "null": ["origin: null"],
    "empty": ["origin:"],
}
PREFLIGHTS = {
    "POST": ["access-control-request-method: POST"],
    "DELETE": ["access-control-request-method: DELETE"],
    "no method": [],
    "headers": [
        "access-control-request-method: POST",
        "access-control-request-headers: content-type, authorization, x-a",
    ],
    "private network": [
        "access-control-request-method: GET",
        "access-control-request-private-network: true",
    ],
}
BODY = json.dumps({"inputs": ["I love this!"]})


def _asked(route: str, name: str, headers: list[str]) -> RawRequest:
    body = "" if route.startswith(("POST", "PUT")) else None
    return request(f"{route}, {name}", route, headers, body)


GUARDED = [
    *(
        _asked(route, f"authorization: {name}", headers)
        for route in ROUTES
        for name, headers in AUTHORIZATIONS.items()
        if name in ("none", "key", "admin key", "wrong key") or route == "GET /info"
    ),
    *(
        post(f"{path}, authorization: {name}", path, BODY, *headers)
        for path in CLASSIFYING
        for name, headers in AUTHORIZATIONS.items()
        if name in ("none", "key", "wrong key") or path == "/classify"
    ),
    request(
        "/classify/stream, authorization: none",
        "POST /classify/stream",
        ["content-type: application/x-ndjson"],
        '{"text": "ok"}',
    ),
    *(
        _asked(route, f"origin: {name}", [*origin, *AUTHORIZATIONS["key"]])
        for route in ("GET /health", "GET /info", "GET /none", "GET /web/page.js", "HEAD /info")
        for name, origin in ORIGINS.items()
    ),
    *(
        post(f"/classify, origin: {name}, {key}", "/classify", BODY, *origin, *AUTHORIZATIONS[key])
        for name, origin in ORIGINS.items()
        for key in ("key", "none")
    ),
    *(
        request(
            f"preflight {path}, {origin}, {name}", f"OPTIONS {path}", [*ORIGINS[origin], *headers]
        )
        for path in ("/classify", "/info", "/none")
        for origin in ("allowed", "other")
        for name, headers in PREFLIGHTS.items()
    ),
    post(
        "/classify, long answer, origin: allowed",
        "/classify",
        json.dumps({"inputs": ["good"] + [""] * 80}),
        "accept-encoding: gzip",
        *ORIGINS["allowed"],
        *AUTHORIZATIONS["key"],
    ),
]
