"""Puts an OpenAPI document into the form that generators of clients need."""

from collections.abc import Iterator
from typing import Any

REFERENCE = "#/components/schemas/{model}"

Schema = dict[str, Any]


def with_components(document: dict[str, Any]) -> dict[str, Any]:
    """The document, which is changed, with each inline object schema under ``components``.

    Generators make one class of each component, but one of each copy of an inline schema. The
    examples of errors are moved too, because each is in the answers of many operations.
    """
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    examples = components.setdefault("examples", {})
    for content in _contents(document["paths"]):
        content["schema"] = _moved(content["schema"], schemas)
        if several := content.get("examples"):
            kind = content["schema"]["$ref"].rpartition("/")[2]
            for code, one in several.items():
                name = f"{kind}.{code}"
                examples[name] = one
                several[code] = {"$ref": f"#/components/examples/{name}"}
    document["paths"] = _plain(document["paths"])
    components["schemas"] = dict(sorted(_plain(schemas).items()))
    return document


def _contents(paths: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What each request body and each answer has for each media type."""
    for methods in paths.values():
        for operation in methods.values():
            for body in (operation.get("requestBody", {}), *operation["responses"].values()):
                yield from body.get("content", {}).values()


def _moved(schema: Schema, schemas: dict[str, Schema]) -> Schema:
    """What stays in the place of a schema: a reference, if it describes an object."""
    for name, definition in schema.pop("$defs", {}).items():
        _add(name, definition, schemas)
    if "anyOf" in schema:
        return {"anyOf": [_moved(one, schemas) for one in schema["anyOf"]]}
    if schema.get("type") != "object" or "title" not in schema:
        return schema
    name = schema["title"]
    _add(name, schema, schemas)
    return {"$ref": REFERENCE.format(model=name)}


def _add(name: str, schema: Schema, schemas: dict[str, Schema]) -> None:
    if schemas.setdefault(name, schema) != schema:
        raise ValueError(f"two schemas are named {name}")


def _plain(part: Any) -> Any:
    """The part of a document with ``oneOf`` for ``anyOf``, and without the titles of schemas.

    Our alternatives exclude each other. From ``oneOf``, generators make a union of them; from
    ``anyOf``, some make one class with the members of all. Pydantic's titles repeat the names of
    components and properties, but generators take them for names of further classes.
    """
    if isinstance(part, list):
        return [_plain(one) for one in part]
    if not isinstance(part, dict):
        return part
    return {
        "oneOf" if key == "anyOf" else key: value
        if key in ("example", "examples", "default")
        else _plain(value)
        for key, value in part.items()
        if not (key == "title" and isinstance(value, str))
    }
