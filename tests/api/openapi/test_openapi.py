"""The OpenAPI document is complete, and the service behaves as it says."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from jsonschema_rs import is_valid
from sentiment_service.errors import CLASSIFY_ERRORS
from sentiment_service.main import create_app
from sentiment_service.settings.settings import Settings

from tests.api.openapi import made_up_requests
from tests.conftest import SET_BY_HAND, Serve
from tests.support.serving import Process, run_program
from tests.support.tiny_bundle import make_bundle, write_manifest

CASES = 1_000
ADMIN_KEY = "an-admin-key"
# Members of examples whose value depends on the time or the release.
VARYING = {"id", "created", "version"}


def examples(content: dict[str, Any]) -> dict[str, Any]:
    """The examples of a body by their names. A single one has no name."""
    if "example" in content:
        return {"": content["example"]}
    return {name: one["value"] for name, one in content.get("examples", {}).items()}


def fits(document: dict[str, Any], schema: dict[str, Any], value: Any) -> bool:
    """Whether the value fits a schema of the document."""
    return is_valid({**schema, "components": document["components"]}, value)


def alike(shown: Any, real: Any) -> bool:
    """Whether an example is a real answer, but for what may vary. Scores may differ by 0.03."""
    match shown:
        case dict():
            return set(shown) == set(real) and all(
                type(value) is type(real[name]) if name in VARYING else alike(value, real[name])
                for name, value in shown.items()
            )
        case list():
            return len(shown) == len(real) and all(map(alike, shown, real))
        case float():
            return isinstance(real, float) and abs(shown - real) < 0.03
        case _:
            return type(shown) is type(real) and bool(shown == real)


@pytest.fixture
def operations(client: TestClient) -> dict[tuple[str, str], dict[str, Any]]:
    """The description of each method of each path, with the answers that it refers to."""
    document = client.get("/openapi.json").json()
    shared = document["components"]["responses"]
    found = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                if reference := answer.get("$ref"):
                    operation["responses"][status] = shared[reference.rpartition("/")[2]]
            found[method, path] = operation
    return found


def test_every_error_of_a_classifying_route_is_described(
    operations: dict[tuple[str, str], dict[str, Any]],
) -> None:
    """Every error of a classifying route has its status, its code and an example."""
    errors = set()
    for status, answer in operations["post", "/classify"]["responses"].items():
        if status != "200":
            (content,) = answer["content"].values()
            assert content["schema"] == {"$ref": "#/components/schemas/Problem"}
            errors |= {(int(status), code) for code in content["examples"]}
    assert errors == {(error.status, error.code) for error in CLASSIFY_ERRORS}


def test_refusals_of_keys_and_of_the_rate_limit_are_described(
    serve: Serve, operations: dict[tuple[str, str], dict[str, Any]]
) -> None:
    """Each operation of ours lists 401 and 429 if it answers so without a key, or beyond the limit.

    Generated clients give nothing for a status that the document does not list.
    """
    limited = serve(rate_limit="1/minute", api_keys=ADMIN_KEY, admin_keys=ADMIN_KEY)
    with_key = {"authorization": f"Bearer {ADMIN_KEY}"}
    assert limited.get("/info", headers=with_key).status_code == 200
    for (method, path), operation in operations.items():
        if operation["tags"] != ["compatibility"]:
            url = path.format(name="tiny")
            answers = [limited.request(method, url, headers=one) for one in ({}, with_key)]
            refusals = {str(one.status_code) for one in answers} & {"401", "429"}
            assert refusals <= operation["responses"].keys(), path


@pytest.fixture(scope="module")
def embedded() -> Iterator[TestClient]:
    """The embedded model, whose answers the examples are."""
    with TestClient(create_app(Settings(**(SET_BY_HAND | {"admin_keys": ADMIN_KEY})))) as client:
        yield client


def test_examples_are_true(embedded: TestClient) -> None:
    """Each example of a request gets the example of its answer, if there is one.

    Request and answer fit their schemas.
    """
    document = embedded.get("/openapi.json").json()
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    del document["paths"]["/models/{name}/promote"]  # needs a candidate: see test_shadow.py
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parameters = {
                one["name"]: one.get("example") for one in operation.get("parameters", ())
            }
            ((media_type, answer),) = operation["responses"]["200"]["content"].items()
            bodies = operation.get("requestBody", {"content": {"": {"example": ""}}})["content"]
            for content_type, content in bodies.items():
                for name, body in examples(content).items():
                    assert fits(document, content.get("schema", {}), body), path
                    real = embedded.request(
                        method,
                        path.format(**parameters),
                        headers=headers | {"content-type": content_type, "accept": media_type},
                        content=body if isinstance(body, str) else json.dumps(body),
                    )
                    assert real.status_code == 200, (path, real.text)
                    assert real.headers["content-type"].partition(";")[0] == media_type
                    if media_type == "application/json":
                        assert fits(document, answer["schema"], real.json()), path
                    if not (shown := examples(answer).get(name)):
                        continue
                    if media_type == "application/json":
                        assert alike(shown, real.json()), path
                    elif media_type == "application/x-ndjson":
                        lines = zip(shown.splitlines(), real.iter_lines(), strict=True)
                        assert all(alike(*map(json.loads, pair)) for pair in lines)
                    else:
                        assert shown in real.text, path


def test_examples_of_errors_fit(
    client: TestClient, operations: dict[tuple[str, str], dict[str, Any]]
) -> None:
    """Each example of an error fits its schema, and so does a real error."""
    document = client.get("/openapi.json").json()
    answers = (one for each in operations.values() for one in each["responses"].items())
    for status, answer in answers:
        for content in answer.get("content", {}).values() if status != "200" else ():
            for code, value in examples(content).items():
                assert (value["code"], value["status"]) == (code, int(status))
                assert fits(document, content["schema"], value)
    (content,) = operations["post", "/classify"]["responses"]["422"]["content"].values()
    real = client.post("/classify", json={"inputs": ""}).json()
    assert fits(document, content["schema"], real)
    assert set(examples(content)["empty_text"]) == set(real)


def test_requests_made_up_from_the_document_find_no_fault(tmp_path: Path) -> None:
    """Over a thousand valid and invalid requests: no 5xx, only answers that the document allows.

    What the protocols of others accept, the document does not say. The model takes pairs of texts;
    one that does not would refuse pairs, which the document allows.
    """
    bundle = make_bundle(tmp_path / "pairs")
    write_manifest(bundle, text_pairs=True, max_tokens=512)
    st = str(Path(sys.executable).parent / "st")
    command = [st, "run", "--seed", "1", "--max-examples", "70"]
    command += ["--exclude-tag", "compatibility"]
    with Process("--model", str(bundle)) as process:
        document, hooks = f"{process.url}/openapi.json", made_up_requests.__file__
        done = run_program(
            *command, document, cwd=tmp_path, timeout_s=300, SCHEMATHESIS_HOOKS=hooks
        )
    assert done.returncode == 0, done.stdout
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated
    assert int(generated[1]) >= CASES
