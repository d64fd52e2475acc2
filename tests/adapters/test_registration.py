"""Adapters register themselves: without one, the service is the same but for its paths."""

import json
import re
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
import sentiment_service
from sentiment_service.main import ADAPTERS

SERVICE = Path(sentiment_service.__file__).parent
# What each adapter answers: requests that get another status than 404 with it.
ASKED = {
    "sentiment_service.adapters.azure_language": (
        "POST /text/analytics/v3.1/sentiment",
        "POST /language/:analyze-text",
    ),
    "sentiment_service.adapters.google_language": (
        "POST /v1/documents:analyzeSentiment",
        "POST /v2/documents:analyzeSentiment",
    ),
    "sentiment_service.adapters.explain": ("POST /explain",),
    "sentiment_service.adapters.huggingface": ("POST /", "POST /predict"),
    "sentiment_service.adapters.vllm": ("POST /v1/classify",),
    "sentiment_service.adapters.open_inference": ("POST /v2/models/tiny/infer",),
    "sentiment_service.adapters.platforms": (
        "POST /invocations",
        "POST /of/vertex",
        "POST /v1/models/tiny:predict",
    ),
    "sentiment_service.adapters.stream": ("POST /classify/stream",),
    "sentiment_service.adapters.tokenize": ("POST /tokenize",),
}
# Another protocol, and one at the path of another adapter.
WITHOUT_A_PATH = ("sentiment_service.adapters.grpc", "sentiment_service.adapters.comprehend")
STATUSES = """
import json, sys
from fastapi.testclient import TestClient
from sentiment_service.settings.settings import Settings
from sentiment_service.main import create_app
settings = Settings(model=(sys.argv[1],), runners=1, threads=1, max_batch_tokens=512)
with TestClient(create_app(settings)) as client:
    assert client.post("/classify", json={"inputs": "love"}).status_code == 200
    for asked in json.loads(sys.argv[2]):
        method, path = asked.split()
        print(asked, client.request(method, path, json={}).status_code)
"""


def _without(adapter: str, tree: Path) -> None:
    """A copy of the package in ``tree`` without this adapter's files and its registration."""
    shutil.copytree(SERVICE, tree / SERVICE.name, ignore=shutil.ignore_patterns("__pycache__"))
    module = tree / adapter.replace(".", "/")
    if module.is_dir():
        shutil.rmtree(module)
    else:
        module.with_suffix(".py").unlink()
    main = tree / SERVICE.name / "main.py"
    lines = main.read_text().splitlines(keepends=True)
    kept = [line for line in lines if not re.match(rf'    "{re.escape(adapter)}",', line)]
    assert len(kept) == len(lines) - 1
    main.write_text("".join(kept))


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_service_works_without_an_adapter(adapter: str, bundle: Path, tmp_path: Path) -> None:
    """It starts and classifies, the other adapters answer, and the adapter's path is 404 or 405."""
    _without(adapter, tmp_path)
    answers = subprocess.run(
        [sys.executable, "-c", STATUSES, str(bundle), json.dumps([*chain(*ASKED.values())])],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "AIP_PREDICT_ROUTE": "/of/vertex"},
        capture_output=True,
        text=True,
    )
    assert answers.returncode == 0, answers.stderr
    statuses = dict(line.rsplit(" ", 1) for line in answers.stdout.splitlines())
    missing = [
        name
        for name, asked in ASKED.items()
        if any(statuses[one] in ("404", "405") for one in asked)
    ]
    assert all(statuses[one] in ("404", "405") for one in ASKED.get(adapter, ()))
    expected = [] if adapter in WITHOUT_A_PATH else [adapter]
    assert missing == expected, f"ASKED must have a request that {adapter} alone answers"
