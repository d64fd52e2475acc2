"""Compose, kustomize and Helm can give the service a port for gRPC, and reach it."""

import pytest
from sentiment_service.settings.settings import Settings

from checks.deploy.chart import rendered
from checks.deploy.check import violations
from checks.support.manifests import Object, load, only, render
from tests.support.serving import ROOT

KUBERNETES = ROOT / "deploy/kubernetes"
VARIABLE = "SENTIMENT_GRPC_PORT"


@pytest.fixture(scope="module")
def kustomized(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """The objects of the base with the component for gRPC."""
    folder = tmp_path_factory.mktemp("overlay")
    (folder / "kustomization.yaml").write_text(
        f"resources: [{KUBERNETES / 'base'}]\ncomponents: [{KUBERNETES / 'components/grpc'}]\n"
    )
    return render(folder)


@pytest.fixture(scope="module")
def chart() -> list[Object]:
    """The objects of the chart with a port for gRPC."""
    pytest.importorskip("helm_python", reason="make install-dev installs it")
    return rendered({"service": {"grpcPort": 9000}})


def test_compose_publishes_the_port_that_it_sets() -> None:
    """The additional file sets the variable and publishes the same port, on loopback only."""
    (service,) = load(ROOT / "docker-compose.grpc.yml")[0]["services"].values()
    port = service["environment"][VARIABLE]
    assert Settings(grpc_port=port).grpc_port == 9000
    assert service["ports"] == [f"127.0.0.1:${{GRPC_PORT:-{port}}}:{port}"]


@pytest.mark.parametrize("objects", ["kustomized", "chart"])
def test_a_pod_gets_the_port_and_calls_reach_it(
    objects: str, request: pytest.FixtureRequest
) -> None:
    """Variable, container, Service and policy name one port; the objects fit their schemas.

    The policy admits those who may send HTTP requests.
    """
    made: list[Object] = request.getfixturevalue(objects)
    specs: dict[str, list[Object]] = {}
    for one in made:
        specs.setdefault(one["kind"], []).append(one.get("spec", {}))
    ((container,),) = (one["template"]["spec"]["containers"] for one in specs["Deployment"])
    values = {entry["name"]: entry.get("value") for entry in container["env"]}
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert ports["grpc"] == values[VARIABLE]
    (port,) = (p for p in specs["Service"][0]["ports"] if p["name"] == "grpc")
    assert (port["port"], port["targetPort"]) == (9000, "grpc")
    rules = [rule for policy in specs["NetworkPolicy"] for rule in policy["ingress"]]
    admitted = {
        name: [rule["from"] for rule in rules if {"port": name} in rule["ports"]]
        for name in ("http", "grpc")
    }
    assert admitted["grpc"] == admitted["http"] != []
    assert list(violations(objects, made)) == []


@pytest.mark.parametrize(
    ("values", "protocols"),
    [
        ({}, {"http": None, "grpc": "kubernetes.io/h2c"}),
        ({"tlsSecret": "tls"}, {"http": "https", "grpc": "https"}),
    ],
    ids=str,
)
def test_meshes_and_gateways_learn_whether_a_port_has_tls(
    values: dict[str, str], protocols: dict[str, str | None]
) -> None:
    """With a certificate, the Service says so of both ports: else, Istio goes by their names."""
    pytest.importorskip("helm_python", reason="make install-dev installs it")
    service = only(rendered(values | {"service": {"grpcPort": 9000}}), "Service")
    assert {p["name"]: p.get("appProtocol") for p in service["spec"]["ports"]} == protocols


def test_no_port_for_grpc_by_default() -> None:
    """Nobody gets a port that nobody asked for: neither from the base nor from the chart."""
    assert "grpc" not in str(render(KUBERNETES / "base")).lower()
    pytest.importorskip("helm_python", reason="make install-dev installs it")
    assert "grpc" not in str(rendered({})).lower()
