"""docker-compose.yml as it stands, and two replicas behind nginx."""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import yaml
from grpc import insecure_channel

from benchmarks.service import ROOT, free_port
from checks.containers.engine import START_S, Container, Engine, EngineError, classify, wait
from checks.containers.images import CPU, TOOLS
from checks.containers.service import CLIENTS, PUBLISHED
from checks.support.environments import InstallFailed, python
from checks.support.load import constant_load

PROJECT = "sentiment-check"
FILES = ("docker-compose.yml", "docker-compose.grpc.yml")
PORTS = ("PORT", "PROMETHEUS_PORT", "GRAFANA_PORT", "GRPC_PORT")
SERVING = b"\x08\x01"  # the message HealthCheckResponse: field 1 has the value 1
ALERT = "SentimentUnavailable"
ALERT_S = 180  # it must last for a minute, and Prometheus looks every 15 s
# Debian's Prometheus in the place of the one that Compose names, started as that one is.
DEBIANS = {
    "image": TOOLS,
    "user": "65534",
    "entrypoint": [
        *("prometheus", "--config.file=/etc/prometheus/prometheus.yml"),
        "--storage.tsdb.path=/prometheus",
    ],
}
NGINX = ("-g", "daemon off; pid /tmp/pid; error_log stderr;")
WRITABLE = ("--tmpfs", "/var/lib/nginx", "--tmpfs", "/var/log/nginx")
USER = ("--user", "33")  # www-data; without capabilities, nginx cannot change to it
REPLICAS = {"sentiment-1": "10.231.7.11", "sentiment-2": "10.231.7.12"}


def compose(engine: Engine) -> str:
    """Service, gRPC and Prometheus work together; an alert fires when the service is stopped."""
    if (program := _program(engine)) is None:
        return "not run: Docker has no Compose here"
    ports = {name: str(free_port()) for name in PORTS}
    services = yaml.safe_load((ROOT / FILES[0]).read_text())["services"]
    here = {name: engine.has_image(services[name]["image"]) for name in ("prometheus", "grafana")}
    override: dict[str, Any] = {} if here["prometheus"] else {"prometheus": DEBIANS}
    started = ["sentiment", "prometheus", *(["grafana"] if here["grafana"] else [])]
    with _project(program, engine.environment | ports, override) as command:
        command("up", "--detach", "--no-build", *started)
        service, prometheus, grafana, grpc = (f"127.0.0.1:{port}" for port in ports.values())
        wait(partial(_is_ok, f"{service}/health/ready"), START_S, "the service is ready")
        classify(f"http://{service}", "I love this!")
        with insecure_channel(grpc) as channel:
            health = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert health(b"", timeout=10, wait_for_ready=True) == SERVING
        if here["grafana"]:
            wait(partial(_is_ok, f"{grafana}/api/health"), START_S, "Grafana is ready")
        wait(lambda: _value(prometheus, 'up{job="sentiment"}') == "1", START_S, "the target is up")
        groups = httpx2.get(f"http://{prometheus}/api/v1/rules").json()["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        wrong = [rule for rule in rules if rule["health"] == "err"]
        assert ALERT in {rule["name"] for rule in rules}, "the alerts are not loaded"
        assert not wrong, wrong
        command("stop", "sentiment")
        stopped = time.monotonic()
        firing = f'ALERTS{{alertname="{ALERT}",alertstate="firing"}}'
        wait(lambda: _value(prometheus, firing) == "1", ALERT_S, f"{ALERT} fires")
        seconds = time.monotonic() - stopped
    result = f"HTTP, gRPC, {len(rules)} rules; {ALERT} fired {seconds:.0f} s after the stop"
    missing = ", ".join(name for name in here if not here[name])
    return f"{result}; out of reach: {missing} (Debian's Prometheus ran)" if missing else result


def _program(engine: Engine) -> list[str] | None:
    """How to start Compose; None if Docker does not have it."""
    if engine.name == "docker":
        program = ["docker", "compose"]
        there = subprocess.run([*program, "version"], capture_output=True, check=False)
        return None if there.returncode else program
    try:
        packages = Path(__file__).parent / "requirements/podman_compose.txt"
        return [str(python(packages)), "-m", "podman_compose"]
    except InstallFailed as error:
        raise EngineError(f"podman-compose could not be installed: {error}") from None


@contextmanager
def _project(
    program: list[str], environment: dict[str, str], override: dict[str, Any]
) -> Iterator[Callable[..., None]]:
    """A command of Compose for the project, which is removed in the end."""

    def command(*words: str) -> None:
        done = subprocess.run(
            [*program, "--project-name", PROJECT, *files, *words],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise EngineError(f"compose {words[0]}: {done.stderr[-1000:]}")

    with tempfile.NamedTemporaryFile("w", suffix=".yml") as changes:
        json.dump({"services": override}, changes)
        changes.flush()
        files = [f"--file={path}" for path in (*FILES, *([changes.name] if override else []))]
        try:
            yield command
        finally:
            command("down", "--volumes", "--timeout", "20")


def _is_ok(address: str) -> bool:
    return httpx2.get(f"http://{address}").status_code == 200


def _value(prometheus: str, query: str) -> str | None:
    """The value of the only series that a query finds; None if it finds none."""
    answer = httpx2.get(f"http://{prometheus}/api/v1/query", params={"query": query})
    results = answer.json()["data"]["result"]
    return results[0]["value"][1] if results else None


def replicas(engine: Engine) -> str:
    """Behind nginx, one of two replicas is replaced under load, and no request fails."""
    mount = f"--volume={ROOT / 'deploy/nginx/nginx.conf'}:/etc/nginx/nginx.conf:ro"
    with (
        engine.made("network", "--subnet", "10.231.7.0/24") as network,
        ExitStack() as replaced,
        _replica(engine, network, "sentiment-2"),
    ):
        first = replaced.enter_context(_replica(engine, network, "sentiment-1"))
        options = ("--network", network, "--publish", "127.0.0.1::8080", mount, *WRITABLE, *USER)
        with engine.container(TOOLS, *options, "--entrypoint", "nginx", words=NGINX) as nginx:
            address = engine.run("port", nginx.identity, "8080")
            wait(partial(_is_ok, f"{address}/health/ready"), START_S, "nginx answers")
            with constant_load(f"http://{address}", CLIENTS, lambda _: "answered") as seen:
                wait(lambda: seen["answered"] > 100, START_S, "100 answers")
                engine.run("stop", first.identity)
                replaced.close()
                new = replaced.enter_context(_replica(engine, network, "sentiment-1"))
                wait(lambda: _answers(new) > 20, START_S, "the new replica gets requests")
            answered = _answers(new)
    assert set(seen) == {"answered"}, dict(seen)
    return f"{seen['answered']} answers, {answered} of them by the new replica; 0 failed"


@contextmanager
def _replica(engine: Engine, network: str, name: str) -> Iterator[Container]:
    # nginx asks for the address of a name only when it starts.
    options = ("--network", network, "--network-alias", name, "--ip", REPLICAS[name])
    with engine.container(CPU, *PUBLISHED, *options) as container:
        container.ready()
        yield container


def _answers(container: Container) -> int:
    """How many requests a replica has answered."""
    metrics = httpx2.get(f"{container.url}/metrics").text
    labels = 'method="POST",operation="classify",outcome="ok",route="/classify",status="200"'
    line = f"sentiment_http_requests_total{{{labels}}} "
    return int(float(metrics.partition(line)[2].partition("\n")[0] or 0))
