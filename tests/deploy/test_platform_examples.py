"""The examples in deploy/ for hosting platforms fit the service."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sentiment_service.settings.settings import Settings

from checks.support.manifests import load
from tests.support.serving import ROOT

DEPLOY = ROOT / "deploy"
RUNTIME = load(DEPLOY / "kserve/servingruntime.yaml")[0]
KSERVE = [load(path)[0] for path in sorted(DEPLOY.glob("kserve/inferenceservice*.yaml"))]
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
    paths = {*_routes(RUNTIME), *_routes(CLOUD_RUN), *_routes(AZURE), *vertex}
    assert paths == {"/health/ready", "/health/live", "/classify"}
    for path in paths - {"/classify"}:
        assert client.get(path).status_code == 200
    (predict,) = re.findall(r"--container-predict-route (\S+)", VERTEX)
    assert client.post(predict, json={"instances": ["love"]}).status_code == 200


def test_a_platform_that_sets_no_port_calls_the_default() -> None:
    """KServe and Azure ML name the service's own port; Cloud Run and Vertex AI set theirs."""
    default = Settings.model_fields["port"].default
    (container,) = RUNTIME["spec"]["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [default]
    routes = AZURE["environment"]["inference_config"].values()
    assert {route["port"] for route in routes} == {default}


def test_kserve_serves_the_name_that_its_clients_use() -> None:
    """The model has the name of the InferenceService, which becomes no setting in its pods."""
    (container,) = RUNTIME["spec"]["containers"]
    assert container["args"] == ["serve", "--served-name", "{{.Name}}"]
    for name in (CLOUD_RUN["metadata"]["name"], *(one["metadata"]["name"] for one in KSERVE)):
        variable = f"{name.upper().replace('-', '_')}_PORT"
        assert not variable.startswith("SENTIMENT_")


@pytest.mark.parametrize("service", KSERVE, ids=("knative", "standard"))
def test_an_inference_service_uses_the_runtime(service: Any) -> None:
    """It names the runtime, a format and a protocol of it, and where the bundle is."""
    model = service["spec"]["predictor"]["model"]
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    formats = [one["name"] for one in RUNTIME["spec"]["supportedModelFormats"]]
    assert model["modelFormat"]["name"] in formats
    assert model["protocolVersion"] in RUNTIME["spec"]["protocolVersions"]
    assert model["storageUri"]


def test_kserve_scales_as_keda_does() -> None:
    """Without what selects the pods, the metrics are the triggers of the KEDA component."""
    (standard,) = (one for one in KSERVE if "autoScaling" in one["spec"]["predictor"])
    name = standard["metadata"]["name"]
    found = []
    for metric in standard["spec"]["predictor"]["autoScaling"]["metrics"]:
        query, target = metric["external"]["metric"]["query"], metric["external"]["target"]
        selectors = re.findall(r'pod=~"([^"]+)"', query)
        assert all(re.fullmatch(one, f"{name}-predictor-5d9c7b8f6d-x2x7q") for one in selectors)
        found.append((re.sub(r'pod=~"[^"]+"', "", query), target["value"]))
    component = load(DEPLOY / "kubernetes/components/keda/scaledobject.yaml")[0]
    triggers = [one["metadata"] for one in component["spec"]["triggers"]]
    assert found == [
        (one["query"].replace('job="sentiment"', ""), one["threshold"]) for one in triggers
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_a_script_is_valid_and_says_how_it_is_called(script: Path) -> None:
    """bash can read it; without arguments it prints its usage and exits with 2."""
    subprocess.run(["bash", "-n", script], check=True)
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "deploy.sh IMAGE" in done.stderr
