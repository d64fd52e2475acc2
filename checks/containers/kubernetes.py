"""The Deployment of the overlay for CPUs, played by Podman; what Podman cannot play is not run."""

import tempfile

import httpx2
import yaml

from benchmarks.service import ROOT, free_port
from checks.containers.engine import START_S, Engine, classify, wait
from checks.support.manifests import containers, only, render

OVERLAY = ROOT / "deploy/kubernetes/overlays/cpu"


def play(engine: Engine) -> str:
    """The pod is ready where its probes ask, within its limits, as its security context says."""
    if engine.name != "podman":
        return "not run: only Podman plays manifests"
    objects = render(OVERLAY)
    (wanted,) = containers(only(objects, "Deployment"))
    for port in wanted["ports"]:
        port["hostPort"] = free_port()
    ports = {port["name"]: port["hostPort"] for port in wanted["ports"]}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump_all(objects, file)
        file.flush()
        identity = engine.run("kube", "play", file.name).splitlines()[-1]
        try:
            url = f"http://127.0.0.1:{ports['http']}"
            probe = url + wanted["readinessProbe"]["httpGet"]["path"]
            wait(lambda: httpx2.get(probe).status_code == 200, START_S, "the pod is ready")
            classify(url, "I love this!")
            metrics = httpx2.get(f"http://127.0.0.1:{ports['metrics']}/metrics")
            assert "sentiment_model_ready" in metrics.text, metrics.text[:200]
            template = "{{.HostConfig.ReadonlyRootfs}} {{.Config.User}} {{.HostConfig.Memory}}"
            found = engine.run("inspect", "--format", template, identity)
        finally:
            engine.run("kube", "down", file.name)
    assert found == f"true 10001:10001 {2**30}", found
    rest = sorted({one["kind"] for one in objects} - {"Deployment"})
    return f"the Deployment runs; Podman cannot play {', '.join(rest)}"
