"""The formats of hosting platforms: SageMaker, Vertex AI and KServe V1."""

import json
from typing import Any

from tests.replay.raw_request import GOOD, MODEL, post_value, request

LONG = "so good " * 256
V1 = f"/v1/models/{MODEL}:predict"
INSTANCES: dict[str, Any] = {
    "texts": [GOOD, "meh"],
    "objects": [{"text": GOOD}, {"inputs": "meh", "id": 1}, {"content": "meh"}],
    "empty text": [GOOD, ""],
    "only an empty text": [""],
    "pair": [{"text": GOOD, "text_pair": "meh"}],
    "half of a pair": ["\ud83d"],
    "empty list": [],
    "text": GOOD,
    "number": [1],
    "rows": [[GOOD]],
    "other object": [{"x": GOOD}],
    "text and number": [GOOD, 1],
    "pair of a number": [{"text": GOOD, "text_pair": 1}],
    "text null": [{"text": None}],
    "null": None,
    "1,001 texts": ["ok"] * 1_001,
}
PARAMETERS: list[Any] = [[], None, {"overflow": "cut"}, {"overflow": "error"}]
INVOCATIONS: dict[str, Any] = {
    "a text": {"inputs": GOOD},
    "a list": {"inputs": [GOOD, "meh"]},
    "top_k null": {"inputs": GOOD, "parameters": {"top_k": None}},
    "list, top_k 1": {"inputs": [GOOD, "meh"], "parameters": {"top_k": 1}},
    "sigmoid": {"inputs": GOOD, "parameters": {"function_to_apply": "sigmoid"}},
    "empty text": {"inputs": [GOOD, ""]},
    "our fields": {"inputs": [GOOD, ""], "overflow": "window"},
    "split": {"inputs": GOOD, "split": "sentences"},
    "another model": {"inputs": GOOD, "model": "other"},
    "inputs with a number": {"inputs": [1]},
    "no known field": {"x": 1},
    "a list as body": [GOOD],
}
LINES = f'{json.dumps(GOOD)}\n\n{{"text": "meh"}}\r\n{{"x": 1}}\n[\n"\\ud83d"\n'
CSV = 'I love this!\n"meh, ""so""\nso, so\n\n\xff\n'.encode("latin-1")

REQUESTS = [
    *(
        post_value(f"instances: {name}, {path}", path, {"instances": it})
        for name, it in INSTANCES.items()
        for path in (V1, "/predict", "/invocations")
    ),
    *(
        post_value(f"instances: parameters {it}", V1, {"instances": [LONG], "parameters": it})
        for it in PARAMETERS
    ),
    *(post_value(f"invocations: {name}", "/invocations", it) for name, it in INVOCATIONS.items()),
    *(
        request(
            f"invocations: {given}, accept {accept}",
            "POST /invocations",
            [f"content-type: {given}", f"accept: {accept}"],
            body,
        )
        for given, body in (("application/jsonlines", LINES), ("text/csv", CSV))
        for accept in ("*/*", "text/csv", "application/jsonlines", "application/json")
    ),
    *(
        request(f"invocations: {given}", "POST /invocations", [f"content-type: {given}"], body)
        for given, body in (
            ("text/csv; header=absent", ""),
            ("text/csv ; charset=utf-8", "meh"),
            ("application/x-ndjson", "\n" * 1_001),
            ("text/plain", "meh"),
            ("text/csv", 'meh\n"open\nI love this!'),
            ("application/jsonlines", '\ufeff"I love this!"'),
        )
    ),
    *(
        request(f"platforms: {line}", line)
        for line in (
            "GET /ping",
            "GET /execution-parameters",
            "GET /v1/models/other",
        )
    ),
]
