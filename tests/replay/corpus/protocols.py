"""The protocols of other servers: Hugging Face, TEI and vLLM; and bad bodies for all routes."""

import json
from typing import Any

from tests.replay.raw_request import GOOD, MODEL, post, post_value, request

CLASSIFYING = (
    *("/", "/predict", "/v1/classify", "/explain", f"/v2/models/{MODEL}/infer"),
    f"/v1/models/{MODEL}:predict",
)

# What ``inputs`` or ``input`` may be, in each of the protocols.
INPUTS: dict[str, Any] = {
    "text": GOOD,
    "list": [GOOD, "meh"],
    "list of one": [GOOD],
    "empty list": [],
    "empty text": "",
    "list with an empty text": [GOOD, ""],
    "list with NUL": ["a\x00b", GOOD],
    "half of a pair": "\ud83d",
    "list with half of a pair": [GOOD, "\udc00"],
    "emoji": "😀 so good",
    "rows": [[GOOD], ["meh"]],
    "row": [[GOOD]],
    "empty row": [[]],
    "pair": [GOOD, [GOOD, "meh"]],
    "pairs": [[GOOD, "meh"]],
    "row and text": [[GOOD], GOOD],
    "row of a number": [[1]],
    "row with null": [[GOOD, None]],
    "row of three": [[GOOD] * 3],
    "row and pair": [[GOOD], [GOOD, "meh"]],
    "rows, one blank": [[GOOD], [" "]],
    "pair in an object": {"text": GOOD, "text_pair": "meh"},
    "rows of rows": [[[GOOD]]],
    "number": 1,
    "boolean": True,
    "null": None,
    "object": {},
    "list with a number": [GOOD, 1],
    "tokens": [1, 2, 3],
    "50,001 characters": "x" * 50_001,
    "more than 512 tokens": "so good " * 256,
    "1,001 texts": ["ok"] * 1_001,
}

HUGGING_FACE: dict[str, Any] = {
    "parameters null": None,
    "parameters empty": {},
    "parameters a list": [],
    "parameters a text": "top_k",
    "top_k 1": {"top_k": 1},
    "top_k 2.0": {"top_k": 2.0},
    "top_k 1.5": {"top_k": 1.5},
    "top_k 0": {"top_k": 0},
    "top_k -1": {"top_k": -1},
    "top_k 99": {"top_k": 99},
    "top_k 1e300": {"top_k": 1e300},
    "top_k beyond 64 bits": {"top_k": 2**70},
    "top_k a text": {"top_k": "1"},
    "top_k true": {"top_k": True},
    "top_k null": {"top_k": None},
    "softmax": {"function_to_apply": "softmax"},
    "sigmoid": {"function_to_apply": "sigmoid", "top_k": 2},
    "none": {"function_to_apply": "none"},
    "unknown function": {"function_to_apply": "tanh"},
    "null function": {"function_to_apply": None},
    "unknown parameter": {"return_all_scores": True},
}

TEI: list[dict[str, Any]] = [
    {"raw_scores": True},
    {"raw_scores": None},
    {"raw_scores": "true"},
    {"raw_scores": 1},
    {"truncate": True},
    {"truncate": False},
    {"truncate": None},
    {"truncate": "yes"},
    {"truncation_direction": "Right"},
    {"truncation_direction": "right"},
    {"truncation_direction": "Left"},
    {"truncation_direction": None},
    {"unknown": 1},
]

VLLM: list[dict[str, Any]] = [
    {"model": MODEL},
    {"model": "other"},
    {"model": 1},
    {"truncate_prompt_tokens": -1},
    {"truncate_prompt_tokens": -1.0},
    {"truncate_prompt_tokens": 10},
    {"truncate_prompt_tokens": None},
    {"truncation_side": "right"},
    {"truncation_side": "left"},
    {"use_activation": False},
    {"use_activation": True},
    {"use_activation": None},
    {"use_activation": 0},
    {"activation": False},
    {"activation": False, "use_activation": True},
    {"unknown": {"a": [1]}},
]


REQUESTS = [
    *(post_value(f"hugging face: {name}", "/", {"inputs": it}) for name, it in INPUTS.items()),
    *(
        post_value(f"hugging face: {name}", "/", {"inputs": [GOOD, "meh"], "parameters": it})
        for name, it in HUGGING_FACE.items()
    ),
    post_value("hugging face: other fields", "/", {"inputs": GOOD, "options": {"wait": 1}, "x": 1}),
    *(post_value(f"tei: {name}", "/predict", {"inputs": it}) for name, it in INPUTS.items()),
    *(
        post_value(f"tei: {json.dumps(fields)}", "/predict", {"inputs": GOOD, **fields})
        for fields in TEI
    ),
    post_value(
        "tei: long, truncate false", "/predict", {"inputs": "good " * 600, "truncate": False}
    ),
    *(post_value(f"vllm: {name}", "/v1/classify", {"input": it}) for name, it in INPUTS.items()),
    *(
        post_value(
            f"vllm: {json.dumps(fields)}", "/v1/classify", {"input": [GOOD, "meh"], **fields}
        )
        for fields in VLLM
    ),
    post_value("vllm: inputs", "/v1/classify", {"inputs": GOOD}),
    *(
        post(f"{path} with {name}", path, body)
        for path in CLASSIFYING
        for name, body in {
            "no body": b"",
            "bad JSON": b'{"inputs": ',
            "NaN": b'{"inputs": NaN}',
            "invalid UTF-8": b'{"inputs": "\xff"}',
            "UTF-16": '{"inputs": "a", "input": "a"}'.encode("utf-16"),
            "a list": b"[]",
            "no field": b"{}",
        }.items()
    ),
    *(
        request(f"{path} as text/plain", f"POST {path}", ["content-type: text/plain"], "{}")
        for path in CLASSIFYING
    ),
]
