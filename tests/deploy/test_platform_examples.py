"""The examples in deploy/ for hosting platforms fit the service."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.settings import Settings
from deploy.check import load
from tests.support.serving import ROOT

DEPLOY = ROOT / "deploy"
KSERVE = load(DEPLOY / "kserve/inferenceservice.yaml")[0]
CLOUD_RUN = load(DEPLOY / "cloud-run/service.yaml")[0]
AZURE = load(DEPLOY / "azure-ml/deployment.yml")[0]
VERTEX = (DEPLOY / "vertex-ai/deploy.sh").read_text(encoding="utf-8")
SCRIPTS = sorted(DEPLOY.glob("*/deploy.sh"))


def _routes(value: Any) -> Iterator[str]:
    """The paths of probes in a file."""
    if isinstance(value, dict):
        if isinstance(value.get("path"), str) and value.keys() <= {"path", "port"}:
            yield value["path"]
        for inner in value.values():
            yield from _routes(inner)


def test_probes_ask_what_the_service_answers(client: TestClient) -> None:
    """Each probe's path answers 200, and so does each path that predictions are sent to."""
    vertex = re.findall(r"--container-health-route (\S+)", VERTEX)
    paths = {*_routes(KSERVE), *_routes(CLOUD_RUN), *_routes(AZURE), *vertex}
    assert paths == {"/health/ready", "/health/live", "/classify"}
    for path in paths - {"/classify"}:
        assert client.get(path).status_code == 200
    (predict,) = re.findall(r"--container-predict-route (\S+)", VERTEX)
    assert client.post(predict, json={"instances": ["love"]}).status_code == 200


def test_a_platform_that_sets_no_port_calls_the_default() -> None:
    """KServe and Azure ML name the service's own port; Cloud Run and Vertex AI set theirs."""
    default = Settings.model_fields["port"].default
    (container,) = KSERVE["spec"]["predictor"]["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [default]
    routes = AZURE["environment"]["inference_config"].values()
    assert {route["port"] for route in routes} == {default}


def test_kserve_serves_the_name_that_its_clients_use() -> None:
    """The model has the name of the InferenceService, which becomes no setting in its pods."""
    name = KSERVE["metadata"]["name"]
    (container,) = KSERVE["spec"]["predictor"]["containers"]
    assert container["args"] == ["serve", "--served-name", name]
    for service in (name, CLOUD_RUN["metadata"]["name"]):
        variable = f"{service.upper().replace('-', '_')}_PORT"
        assert not variable.startswith("SENTIMENT_")


def test_azure_sends_requests_at_the_same_time() -> None:
    """Its default is one at a time, which would leave nothing to put into a batch."""
    settings = AZURE["request_settings"]
    assert settings["max_concurrent_requests_per_instance"] > 1
    assert settings["request_timeout_ms"] > Settings.model_fields["deadline_ms"].default


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_a_script_is_valid_and_says_how_it_is_called(script: Path) -> None:
    """bash can read it; without arguments it prints its usage and exits with 2."""
    subprocess.run(["bash", "-n", script], check=True)
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "deploy.sh IMAGE" in done.stderr
