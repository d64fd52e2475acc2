"""Puts an OpenAPI document into the form that generators of clients need."""

import json
from typing import Any

from sentiment_service.problems import MEDIA_TYPE as PROBLEM

REFERENCE = "#/components/schemas/{model}"
JSON = "application/json"

Schema = dict[str, Any]


def with_components(document: dict[str, Any], *, keys: bool = False) -> dict[str, Any]:
    """The document, which is changed, with its object schemas and its errors under ``components``.

    Generators make one class of each component, but one of each copy of an inline schema. Many
    operations have the same errors. ``keys`` says whether requests need a key.

    Raises:
        ValueError: two different components have the same name.
    """
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    errors = components.setdefault("responses", {})
    if keys:
        components["securitySchemes"] = {"HTTPBearer": {"type": "http", "scheme": "bearer"}}
    for operation in [o for methods in document["paths"].values() for o in methods.values()]:
        # By default the name of our function, which says little in a list of operations.
        operation["summary"] = operation["description"].partition("\n")[0]
        if keys:
            operation["security"] = [{"HTTPBearer": []}]
        answers = operation["responses"]
        for body in (operation.get("requestBody", {}), *answers.values()):
            for media_type, content in body.get("content", {}).items():
                content["schema"] = _moved(content["schema"], schemas)
                if media_type in (JSON, PROBLEM):
                    _decode_examples(content)
        for status, answer in answers.items():
            if error := answer.get("content", {}).get(PROBLEM):
                kind = error["schema"]["$ref"].rpartition("/")[2]
                name = ".".join([kind, *error["examples"]])
                _add(name, answer, errors)
                answers[status] = {"$ref": f"#/components/responses/{name}"}
    document["paths"] = _plain(document["paths"])
    components["schemas"] = dict(sorted(_plain(schemas).items()))
    return document


def encoded(value: Any) -> str:
    """An example of JSON, for a route. From a value, FastAPI would remove what is null."""
    return json.dumps(value)


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

    - ``oneOf`` for ``anyOf``. Our alternatives exclude each other. Generators make a union of
      ``oneOf``; of ``anyOf``, some make one class with the members of all.
    - No titles of schemas. Pydantic's repeat the names of components and properties, but generators
      take them for names of further classes.
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
