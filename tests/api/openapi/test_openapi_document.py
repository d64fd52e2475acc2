"""The OpenAPI document has nothing that generators of clients are known to fail on.

``make platform-check`` runs the generators themselves.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR
from sentiment_service.http.openapi import with_components
from sentiment_service.main import create_app
from sentiment_service.settings.settings import Settings

from tests.conftest import SET_BY_HAND

MAX_BYTES = 60_000
# The operationId of each route. Generated clients name their functions by it, so a change would
# break the programs that call them.
OPERATIONS = {
    ("post", "/classify"): "classify",
    ("post", "/classify/stream"): "classifyStream",
    ("post", "/explain"): "explain",
    ("post", "/tokenize"): "tokenize",
    ("post", "/"): "classifyHuggingFace",
    ("post", "/predict"): "predictTei",
    ("post", "/v1/classify"): "classifyVllm",
    ("post", "/text/analytics/v3.1/sentiment"): "classifyAzureV31",
    ("post", "/language/:analyze-text"): "classifyAzure",
    ("post", "/#X-Amz-Target=Comprehend_20171127"): "classifyComprehend",
    ("post", "/v1/documents:analyzeSentiment"): "classifyGoogleV1",
    ("post", "/v2/documents:analyzeSentiment"): "classifyGoogleV2",
    ("get", "/v1/models"): "listModelsV1",
    ("get", "/v1/models/{name}"): "getModelV1",
    ("get", "/health"): "checkHealth",
    ("get", "/health/live"): "checkLive",
    ("get", "/health/ready"): "checkReady",
    ("get", "/info"): "getInfo",
    ("get", "/models"): "listModels",
    ("post", "/models/{name}/reload"): "reloadModel",
    ("post", "/models/{name}/promote"): "promoteCandidate",
    ("get", "/metrics"): "getMetrics",
    ("get", "/"): "getPage",
}
# What the descriptions of other servers' protocols begin with, by operationId.
PROTOCOLS = {
    "classifyHuggingFace": "Hugging Face",
    "predictTei": "text-embeddings-inference",
    "classifyVllm": "vLLM",
    "classifyAzureV31": "Azure Language",
    "classifyAzure": "Azure Language",
    "classifyComprehend": "AWS Comprehend",
    "classifyGoogleV1": "Google Natural Language",
    "classifyGoogleV2": "Google Natural Language",
    "listModelsV1": "OpenAI",
    "getModelV1": "OpenAI",
}


@pytest.fixture(scope="module")
def text(bundle: Path) -> str:
    """The document as text."""
    return json.dumps(create_app(Settings(**SET_BY_HAND, model=(bundle,))).openapi())


@pytest.fixture
def document(text: str) -> Any:
    """The document, which a test may change."""
    return json.loads(text)


def parts(part: Any) -> Iterator[dict[str, Any]]:
    """Each object of the document, but for examples."""
    if isinstance(part, list):
        for one in part:
            yield from parts(one)
    elif isinstance(part, dict):
        yield part
        for name, value in part.items():
            if name not in ("example", "examples"):
                yield from parts(value)


def unequal(names: list[str]) -> bool:
    """Whether no two names are equal when case is ignored."""
    return len({name.lower() for name in names}) == len(names)


def test_it_is_valid(document: Any) -> None:
    """The document fits the schema of OpenAPI 3.1."""
    assert document["openapi"].startswith("3.1")
    assert [str(error) for error in OPENAPI_31_VALIDATOR.iter_errors(document)] == []


def test_it_is_short(text: str) -> None:
    """What many operations share is written once."""
    assert len(text) < MAX_BYTES


def test_operations_are_described(document: Any) -> None:
    """Each operation has a stable id, a known tag, and a description that its summary begins."""
    known = {tag["name"] for tag in document["tags"] if tag["description"]}
    ids = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            ids[method, path] = operation["operationId"]
            (tag,) = operation["tags"]
            assert tag in known, path
            assert operation["summary"], path
            assert operation["description"].startswith(operation["summary"]), path
    assert ids == OPERATIONS, "OPERATIONS must have each operation"
    assert unequal([*ids.values()])


def test_protocols_of_others_are_named_in_one_line(document: Any) -> None:
    """Their operations have no schemas: the protocols have descriptions of their own.

    So an answer with any status but 200 is one that the document allows.
    """
    names = {}
    for methods in document["paths"].values():
        for operation in methods.values():
            if operation["tags"] == ["compatibility"]:
                error = {"description": "an error, in the form of the protocol"}
                assert {**operation["responses"], "200": ...} == {"200": ..., "default": error}
                assert "$ref" not in json.dumps(operation)
                assert operation["description"] == operation["summary"]
                names[operation["operationId"]] = operation["summary"]
    assert names.keys() == PROTOCOLS.keys(), "PROTOCOLS must name the protocol of each operation"
    for operation_id, name in names.items():
        assert name.startswith(PROTOCOLS[operation_id])


def test_operations_have_examples(document: Any) -> None:
    """Each request body, path parameter and answer of ours has an example or several.

    Answers that only list what their schemas describe have none.
    """
    for path, methods in document["paths"].items():
        for operation in methods.values():
            if operation["tags"] == ["compatibility"]:
                continue
            bodies = [*document["components"]["responses"].values()]
            bodies += [operation["requestBody"]] if "requestBody" in operation else []
            if operation["operationId"] not in ("getInfo", "listModels"):
                bodies.append(operation["responses"]["200"])
            for body in bodies:
                for content in body["content"].values():
                    assert content.get("examples") or content["example"], path
            for parameter in operation.get("parameters", ()):
                assert parameter["description"], path
                assert "example" in parameter or parameter["in"] != "path", path


def test_properties_are_described(document: Any) -> None:
    """Each schema and each of its properties has a description."""
    for name, schema in document["components"]["schemas"].items():
        assert schema["description"], name
        for member, described in schema["properties"].items():
            assert described.get("description"), f"{name}.{member}"


def test_objects_are_components(document: Any) -> None:
    """No schema of an object is inline, where each copy becomes a class."""
    components = document["components"].pop("schemas").values()
    inline = [document, *(schema["properties"] for schema in components)]
    assert [part for part in parts(inline) if "properties" in part or "$defs" in part] == []


def test_references_lead_to_components(document: Any) -> None:
    """Each reference has its component, and each component is referred to."""
    used = {part["$ref"] for part in parts(document) if "$ref" in part}
    existing = {
        f"#/components/{kind}/{name}"
        for kind, components in document["components"].items()
        for name in components
    }
    assert used == existing


def test_names_differ_by_more_than_case(document: Any) -> None:
    """Names of schemas, of properties and of enumerated values differ if case is ignored.

    They become names of files, members and constants.
    """
    assert unequal([*document["components"]["schemas"]])
    for part in parts(document):
        if isinstance(part.get("enum"), list):
            assert unequal(part["enum"]), part
        if isinstance(part.get("properties"), dict):
            assert unequal([*part["properties"]]), part


def test_types_are_known_to_generators(document: Any) -> None:
    """No type is only null or only true, no list is a tuple, and integers without bounds are long.

    Long means 64 bits. Generated code for Python compares an enumerated ``true`` with a string.
    """
    for part in parts(document):
        if "properties" in part:
            for name, member in part["properties"].items():
                assert member.get("type") != "null", name
        assert "prefixItems" not in part
        if part.get("type") == "boolean":
            assert not {"const", "enum"} & part.keys(), part
        if part.get("type") == "integer":
            assert "minimum" in part or part["format"] == "int64", part
        if part.get("type") == "array":
            assert part["items"], part


def test_unions_are_known_to_generators(document: Any) -> None:
    """A union is ``oneOf``, has no lists of unions, and no class beside a list of that class."""
    for part in parts(document):
        assert "anyOf" not in part
        items = [one["items"] for one in part.get("oneOf", ()) if one.get("type") == "array"]
        assert not any("oneOf" in one for one in items), part
        assert not any(one in items for one in part.get("oneOf", ()) if "$ref" in one), part


def test_two_components_of_one_name_are_refused() -> None:
    """A second schema of the same name is an error. It does not replace the first one."""
    one, other = ({"type": "object", "title": "Same", "description": text} for text in "ab")
    paths = {
        f"/{text['description']}": {
            "get": {
                "description": "",
                "tags": ["texts"],
                "responses": {"200": {"content": {"application/json": {"schema": text}}}},
            }
        }
        for text in (one, other)
    }
    with pytest.raises(ValueError, match="two different components are named Same"):
        with_components({"paths": paths})
