"""The Open Inference Protocol, with texts in the JSON and texts as bytes behind it."""

import json
import struct
from collections.abc import Sequence
from typing import Any

from tests.replay.raw_request import GOOD, MODEL, RawRequest, post_value, request

INFER = f"/v2/models/{MODEL}/infer"
LENGTH = "inference-header-content-length"


def tensor(*texts: Any, **changes: Any) -> dict[str, Any]:
    """An input tensor of texts in JSON, with these changes."""
    plain = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)}
    return {**plain, **changes}


def _in_bytes(size: int) -> dict[str, Any]:
    given = {"binary_data_size": size}
    return {"name": "text", "datatype": "BYTES", "shape": [1], "parameters": given}


def _output(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters}


# What is changed in a tensor of two texts.
TENSORS: dict[str, dict[str, Any]] = {
    "good": {},
    "rows": {"data": [[GOOD], ["meh"]], "shape": [2, 1]},
    "rows, shape [2]": {"data": [[GOOD], ["meh"]]},
    "shape [2.0]": {"shape": [2.0]},
    "shape [2, 1.0]": {"shape": [2, 1.0]},
    "shape [2.5]": {"shape": [2.5]},
    "shape [3]": {"shape": [3]},
    "shape [1, 2]": {"shape": [1, 2]},
    "shape []": {"shape": []},
    "shape [-1]": {"shape": [-1]},
    "shape 2": {"shape": 2},
    "shape of texts": {"shape": ["2"]},
    "shape of 2 to the 70": {"shape": [2**70]},
    "shape of 10 to the 4,000": {"shape": [10**4_000]},
    "shape of 1e300": {"shape": [1e300]},
    "data null": {"data": None},
    "data text": {"data": GOOD},
    "data with rows of two": {"data": [[GOOD, "meh"]]},
    "data with a row and a text": {"data": [[GOOD], "meh"]},
    "data with number": {"data": [GOOD, 1]},
    "data with an empty text": {"data": [GOOD, ""]},
    "data with half of a pair": {"data": [GOOD, "\ud83d"]},
    "other name": {"name": "texts"},
    "other datatype": {"datatype": "FP32"},
    "datatype in small letters": {"datatype": "bytes"},
    "unknown field": {"foo": 1},
    "binary size in JSON": {"parameters": {"binary_data_size": 4}},
    "shared memory": {"parameters": {"shared_memory_region": "a"}},
    "unknown tensor parameter": {"parameters": {"foo": 1}},
}
# What a request has instead of a tensor of two texts.
INPUTS: dict[str, Any] = {
    "shape [0]": [tensor()],
    "shape [true]": [tensor(GOOD, shape=[True])],
    "no shape": [{"name": "text", "datatype": "BYTES", "data": [GOOD]}],
    "no data": [{"name": "text", "datatype": "BYTES", "shape": [1]}],
    "two tensors": [tensor(GOOD), tensor(GOOD)],
    "no tensor": [],
    "null tensor": [None],
    "45,000 tensors": [{}] * 45_000,
    "inputs object": tensor(GOOD),
    "binary size, no data": [_in_bytes(4)],
    "binary size 0, no data": [_in_bytes(0)],
    "1,001 texts": [tensor(*["ok"] * 1_001)],
}
# What a request has beside a tensor of two texts.
MEMBERS: dict[str, dict[str, Any]] = {
    "id": {"id": "my-id"},
    "id with emoji and half of a pair": {"id": "😀\ud800"},
    "id with control characters": {"id": "\x00\x1f\x7f\x80\u2028\ufeff\uffff"},
    "id with quotes, slashes and HTML": {"id": "\"'\\/<b>&"},
    "id very long": {"id": "é" * 3_000},
    "id with binary outputs": {"id": "é\ud800", "parameters": {"binary_data_output": True}},
    "id number": {"id": 1},
    "id empty": {"id": ""},
    "output label": {"outputs": [{"name": "label"}]},
    "outputs in another order": {"outputs": [{"name": "logits"}, {"name": "score"}]},
    "output twice": {"outputs": [{"name": "label"}, {"name": "label"}]},
    "outputs empty": {"outputs": []},
    "outputs null": {"outputs": None},
    "six outputs": {"outputs": [{"name": "label"}] * 6},
    "unknown output": {"outputs": [{"name": "probs"}]},
    "classification": {"outputs": [_output("scores", classification=2)]},
    "binary label": {"outputs": [_output("label", binary_data=True), {"name": "score"}]},
    "binary score": {"outputs": [_output("score", binary_data=True)]},
    "binary label and logits, JSON score": {
        "parameters": {"binary_data_output": True},
        "outputs": [{"name": "label"}, _output("score", binary_data=False), {"name": "logits"}],
    },
    "binary_data a number": {"outputs": [_output("label", binary_data=1)]},
    "all binary": {"parameters": {"binary_data_output": True}},
    "binary_data_output a text": {"parameters": {"binary_data_output": "true"}},
    "overflow unknown": {"parameters": {"overflow": "cut"}},
    "parameters null": {"parameters": None},
    "unknown parameter": {"parameters": {"priority": 1}},
    "unknown field of the request": {"model_name": "whatever"},
}
ONE = {"inputs": [tensor(GOOD, "meh")]}
LONG = {"inputs": [tensor("so good " * 256)]}
OPEN_INFERENCE: dict[str, Any] = {
    **{name: {"inputs": [tensor(GOOD, "meh", **it)]} for name, it in TENSORS.items()},
    **{name: {"inputs": it} for name, it in INPUTS.items()},
    **{name: {**ONE, **it} for name, it in MEMBERS.items()},
    "overflow error": {**LONG, "parameters": {"overflow": "error"}},
    "overflow window": {**LONG, "parameters": {"overflow": "window"}},
    "inputs missing": {},
    "list": [ONE],
}


def binary(
    name: str,
    elements: bytes,
    *,
    texts: int = 1,
    size: Any = None,
    length: str | None = None,
    headers: Sequence[str] = (),
    parameters: dict[str, Any] | None = None,
) -> RawRequest:
    """A request whose texts follow the JSON as bytes."""
    given = {"binary_data_size": len(elements) if size is None else size}
    one = {"name": "text", "datatype": "BYTES", "shape": [texts], "parameters": given}
    document = json.dumps({"inputs": [one], "parameters": parameters or {}}).encode()
    return request(
        f"binary: {name}",
        f"POST {INFER}",
        [f"{LENGTH}: {len(document) if length is None else length}", *headers],
        document + elements,
    )


def packed(*texts: str | bytes) -> bytes:
    """Elements of a BYTES tensor."""
    raw = [text.encode() if isinstance(text, str) else text for text in texts]
    return b"".join(struct.pack("<I", len(element)) + element for element in raw)


TWO = packed(GOOD, "meh")
BINARY = [
    binary("good", TWO, texts=2),
    binary("octet-stream", TWO, texts=2, headers=["content-type: application/octet-stream"]),
    binary("text/plain", TWO, texts=2, headers=["content-type: text/plain"]),
    binary("all outputs binary", TWO, texts=2, parameters={"binary_data_output": True}),
    binary("emoji", packed("😀 so good")),
    binary("empty element", packed(GOOD, ""), texts=2),
    binary("not UTF-8", packed(GOOD, b"\xff"), texts=2),
    binary("half of a pair", packed(b"\xed\xa0\xbd")),
    binary("no elements", b""),
    binary("too few texts", packed(GOOD), texts=2),
    binary("too many texts", TWO),
    binary("1,001 texts, then no text", packed("") * 1_001 + b"not read"),
    binary("only an empty element", packed("")),
    binary("length beyond the end", struct.pack("<I", 99) + b"abc"),
    binary("length of 4 GB", b"\xff\xff\xff\xff" + b"abc"),
    binary("half a length", packed(GOOD) + b"\x01\x00"),
    binary("wrong size", TWO, texts=2, size=3),
    binary("size as a text", TWO, texts=2, size=str(len(TWO))),
    binary("size as a float", TWO, texts=2, size=float(len(TWO))),
    binary("size negative", TWO, texts=2, size=-1),
    binary("size true", packed(""), size=True),
    binary("JSON length 0", TWO, texts=2, length="0"),
    binary("JSON length beyond the body", TWO, texts=2, length="99999"),
    binary("JSON length of ten digits", TWO, texts=2, length="0000000100"),
    binary("JSON length within the JSON", TWO, texts=2, length="9"),
    binary("JSON length of 5,000 digits", TWO, texts=2, length="9" * 5_000),
    binary("JSON length negative", TWO, texts=2, length="-1"),
    binary("JSON length with a plus", TWO, texts=2, length="+10"),
    binary("JSON length empty", TWO, texts=2, length=""),
    binary("JSON length a word", TWO, texts=2, length="ten"),
    binary("JSON length in Arabic digits", TWO, texts=2, length="\xd9\xa1"),
    request("binary: no JSON length", f"POST {INFER}", [], TWO),
    request("binary: no JSON length, JSON", f"POST {INFER}", [], json.dumps(ONE).encode() + TWO),
    request(
        "binary: JSON length without binary data",
        f"POST {INFER}",
        [f"{LENGTH}: {len(json.dumps(ONE))}"],
        json.dumps(ONE),
    ),
]

PATHS = {
    "version 1": f"/v2/models/{MODEL}/versions/1/infer",
    "version 2": f"/v2/models/{MODEL}/versions/2/infer",
    "no version": f"/v2/models/{MODEL}/versions//infer",
    "other model": "/v2/models/other/infer",
    "encoded model": "/v2/models/minilm%2Dl6%2Dtweet%2Dsentiment/infer",
    "encoded slash": f"/v2/models/{MODEL}%2Finfer",
    "model with a slash": f"/v2/models/a/{MODEL}/infer",
    "model with a line feed": f"/v2/models/{MODEL}%0A/infer",
    "no model": "/v2/models//infer",
    "braces": "/v2/models/{name}/infer",
    "encoded braces": "/v2/models/%7Bname%7D/infer",
    "slash at the end": f"{INFER}/",
    "query": f"{INFER}?a=b&model=other",
    "half of a pair": "/v2/models/%ED%A0%80/infer",
    "invalid UTF-8": "/v2/models/%FF/infer",
}

REQUESTS = [
    *(post_value(f"open inference: {name}", INFER, body) for name, body in OPEN_INFERENCE.items()),
    *(post_value(f"open inference path: {name}", path, ONE) for name, path in PATHS.items()),
    *BINARY,
    *(
        request(
            f"open inference: {' then '.join(types)}",
            f"POST {INFER}",
            [f"content-type: {media_type}" for media_type in types],
            json.dumps(ONE),
        )
        for types in (("application/json", "text/plain"), ("text/plain", "application/json"))
    ),
]
