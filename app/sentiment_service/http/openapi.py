"""OpenAPI descriptions for routes that read their request and build their answer by hand."""

import json
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict

from sentiment_service import errors

REFERENCE = "#/components/schemas/{model}"
JSON = "application/json"

Schema = dict[str, Any]

# Parts of examples: what the embedded model answers to the examples of requests.
MODEL = "minilm-l6-tweet-sentiment"
DIGEST = "ef13de33cb6608c5089ea48e0ec99e0dbae30131817fac86ed762ea581c8d8ff"
VERSION = {"name": MODEL, "revision": None, "precision": "int8", "digest": DIGEST}
EMPTY = {
    "error": {
        "code": "empty_text",
        "message": "the text is empty or blank; send at least one visible character",
    }
}
CLASSIFIED = {
    "model": VERSION,
    "labels": ["negative", "neutral", "positive"],
    "results": [
        {
            "label": "positive",
            "score": 0.899,
            "scores": {"negative": 0.061, "neutral": 0.04, "positive": 0.899},
            "logits": {"negative": -0.946, "neutral": -1.47, "positive": 2.464},
            "tokens": 6,
            "truncated": False,
            "polarity": 0.838,
        },
        EMPTY,
    ],
}

_DETAIL = "what was wrong, and what is accepted"
_ID = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
NAME_IN_PATH = {
    "name": "name",
    "in": "path",
    "required": True,
    "description": "name of a served model",
    "schema": {"type": "string"},
    "example": MODEL,
}
FOREIGN_BODY = {"required": True, "content": {JSON: {"schema": {"type": "object"}}}}


class Problem(TypedDict):
    """An error, in the format of RFC 9457."""

    type: Annotated[str, Field(description="the code as a URN")]
    title: Annotated[str, Field(description="the kind of error, for people")]
    status: Annotated[int, Field(description="the status of the answer")]
    detail: Annotated[str, Field(description="what was wrong, and what is accepted")]
    code: Annotated[str, Field(description="the kind of error, for programs")]
    error: Annotated[str, Field(description="the detail again, for Hugging Face clients")]
    request_id: Annotated[str, Field(description="the answer's `x-request-id`")]


def documented_body(schema: type[BaseModel]) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that reads a body with this schema."""
    body = schema.model_json_schema(ref_template=REFERENCE)
    content = {"schema": body, "example": json.dumps(body.pop("examples")[0])}
    return {"requestBody": {"required": True, "content": {JSON: content}}}


def example(value: Any) -> dict[int | str, Any]:
    """The ``responses`` of a route, with ``value`` as an example of its answer.

    It is encoded until ``with_components``: from a value, FastAPI would remove what is null.
    """
    return {200: {"content": {JSON: {"example": json.dumps(value)}}}}


def text_example(text: str, media_type: str) -> dict[int | str, Any]:
    """The ``responses`` of a route that answers with text."""
    schema = {"type": "string"}
    return {200: {"content": {media_type: {"schema": schema, "example": text}}}}


def documented(*refusals: type[errors.ServiceError]) -> dict[int | str, Any]:
    """The ``responses`` of a route that may fail with these errors."""
    schema = TypeAdapter(Problem).json_schema(mode="serialization", ref_template=REFERENCE)
    by_status: dict[int, list[type[errors.ServiceError]]] = {}
    for error in refusals:
        by_status.setdefault(error.status, []).append(error)
    responses: dict[int | str, Any] = {}
    for status, kinds in by_status.items():
        examples = {kind.code: {"value": json.dumps(kind.document(_DETAIL, _ID))} for kind in kinds}
        responses[status] = {
            "description": ", ".join(kind.code for kind in kinds),
            "content": {errors.PROBLEM: {"schema": schema, "examples": examples}},
        }
    return responses


def with_components(document: dict[str, Any], *, keys: bool = False) -> dict[str, Any]:
    """The document, which is changed, with its object schemas and its errors under ``components``:
    generators make a class of each copy of an inline schema.
    """
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    refusals = components.setdefault("responses", {})
    if keys:
        components["securitySchemes"] = {"HTTPBearer": {"type": "http", "scheme": "bearer"}}
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    for path, method, operation in operations:
        # By default the name of our function, which says little in a list of operations.
        operation["summary"] = operation["description"].partition("\n")[0]
        if keys:
            operation["security"] = [{"HTTPBearer": []}]
        answers = operation["responses"]
        if "{name}" in path:
            operation["parameters"] = [NAME_IN_PATH]
        if "compatibility" in operation["tags"]:  # the protocol has its own description
            answers["default"] = {"description": "an error, in the form of the protocol"}
            if method == "post":
                operation["requestBody"] = FOREIGN_BODY
        for body in (operation.get("requestBody", {}), *answers.values()):
            for media_type, content in body.get("content", {}).items():
                content["schema"] = _moved(content["schema"], schemas)
                if media_type in (JSON, errors.PROBLEM):
                    _decode_examples(content)
        for status, answer in answers.items():
            if error := answer.get("content", {}).get(errors.PROBLEM):
                kind = error["schema"]["$ref"].rpartition("/")[2]
                name = ".".join([kind, *error["examples"]])
                _add(name, answer, refusals)
                answers[status] = {"$ref": f"#/components/responses/{name}"}
    document["paths"] = _plain(document["paths"])
    components["schemas"] = dict(sorted(_plain(schemas).items()))
    return document


def _decode_examples(content: dict[str, Any]) -> None:
    if "example" in content:
        content["example"] = json.loads(content["example"])
    for example in content.get("examples", {}).values():
        example["value"] = json.loads(example["value"])


def _moved(schema: Schema, schemas: dict[str, Schema]) -> Schema:
    """What stays in the place of a schema: a reference, if it describes an object."""
    for name, definition in schema.pop("$defs", {}).items():
        _add(name, definition, schemas)
    if schema.get("type") != "object" or "title" not in schema:
        return schema
    name = schema["title"]
    _add(name, schema, schemas)
    return {"$ref": REFERENCE.format(model=name)}


def _add(name: str, component: Schema, components: dict[str, Schema]) -> None:
    if components.setdefault(name, component) != component:
        raise ValueError(f"two different components are named {name}")


def _plain(part: Any) -> Any:
    """The part of a document as generators understand it.

    - ``oneOf`` for ``anyOf``, of which some make one class with the members of all alternatives.
    - No titles of schemas, which they take for names of further classes.
    - Integers of 64 bits. Without bounds or a format, some languages get 32.
    """
    if isinstance(part, list):
        return [_plain(item) for item in part]
    if not isinstance(part, dict):
        return part
    plain = {
        "oneOf" if key == "anyOf" else key: value
        if key in ("example", "examples", "default")
        else _plain(value)
        for key, value in part.items()
        if not (key == "title" and isinstance(value, str))
    }
    if plain.get("type") == "integer" and "minimum" not in plain:
        plain["format"] = "int64"
    return plain
