"""The OpenAPI document is complete, and the service behaves as it says."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.api.openapi import ERRORS
from app.api.schemas import Problem
from tests.support.serving import Process, environment
from tests.support.tiny_bundle import make_bundle, write_manifest

CASES = 1_000


@pytest.fixture
def operations(client: TestClient) -> dict[tuple[str, str], dict[str, Any]]:
    """The description of each method of each path in the document."""
    paths = client.get("/openapi.json").json()["paths"]
    return {
        (m, path): operation for path, methods in paths.items() for m, operation in methods.items()
    }


def test_every_route_is_described(operations: dict[tuple[str, str], dict[str, Any]]) -> None:
    """Each route has a summary, a description, its answers' media types and all errors by code."""
    posts = {path for method, path in operations if method == "post"}
    classifying = {"/", "/classify", "/classify/stream", "/explain", "/predict", "/v1/classify"}
    assert posts == classifying | {"/tokenize", "/models/{name}/reload"}
    for name, operation in operations.items():
        assert operation["summary"], name
        assert operation["description"], name
        for status, answer in operation["responses"].items():
            assert answer["content"], (name, status)


def test_every_error_of_a_classifying_route_is_described(
    operations: dict[tuple[str, str], dict[str, Any]],
) -> None:
    """Every error of a classifying route has its status, its code and an example."""
    errors = set()
    for status, answer in operations["post", "/classify"]["responses"].items():
        if status != "200":
            (content,) = answer["content"].values()
            assert set(content["schema"]["required"]) == set(Problem.__annotations__)
            errors |= {(int(status), code) for code in content["examples"]}
    assert errors == {(error.status, error.code) for error in ERRORS}


def test_answers_have_examples_that_fit(client: TestClient) -> None:
    """Each example has the same members as a real answer."""
    document = client.get("/openapi.json").json()
    lists = ["love", ""]
    for path, inputs in (("/classify", lists), ("/tokenize", lists), ("/explain", "love it")):
        answer = document["paths"][path]["post"]["responses"]["200"]["content"]
        shown = answer["application/json"]["example"]
        real = client.post(path, json={"inputs": inputs}).json()
        assert set(shown) == set(real)
        many = "results" if "results" in shown else "words"
        assert [set(item) for item in shown[many][:2]] == [set(item) for item in real[many][:2]]


def test_request_bodies_have_examples(
    operations: dict[tuple[str, str], dict[str, Any]],
) -> None:
    """Each example request can be sent as it is."""
    for path in ("/", "/classify", "/explain", "/predict", "/tokenize", "/v1/classify"):
        schema = operations["post", path]["requestBody"]["content"]["application/json"]["schema"]
        assert "examples" in json.dumps(schema), path


PAIRS_HAVE_NO_SENTENCES = """
[[operations]]
include-name = "POST /classify"
checks.positive_data_acceptance.enabled = false
"""


def test_requests_made_up_from_the_document_find_no_fault(tmp_path: Path) -> None:
    """Over a thousand valid and invalid requests: no 5xx, only answers that the document allows.

    The model takes pairs of texts; one that does not would refuse pairs, which the document allows.
    JSON Schema cannot say simply that a pair has no sentences, so POST /classify may refuse more
    than the document does.
    """
    (tmp_path / "schemathesis.toml").write_text(PAIRS_HAVE_NO_SENTENCES, encoding="utf-8")
    bundle = make_bundle(tmp_path / "pairs")
    write_manifest(bundle, text_pairs=True, max_tokens=512)
    st = str(Path(sys.executable).parent / "st")
    command = [st, "run", "--seed", "1", "--max-examples", "60"]
    with Process("--model", str(bundle)) as process:
        done = subprocess.run(
            [*command, f"{process.url}/openapi.json"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stdout
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated
    assert int(generated[1]) >= CASES
