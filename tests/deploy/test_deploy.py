"""The files for images, Compose and Kubernetes match the service and each other."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sentiment_service.cli import health_check
from sentiment_service.settings import sources
from sentiment_service.settings.settings import Settings

from checks.support.manifests import OVERLAYS, Object, containers, kubectl, load, only, render
from deploy.prometheus import operator
from tests.conftest import served
from tests.support.serving import ROOT, Process

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
STAGES = re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)
PORT = str(Settings.model_fields["port"].default)
COMPOSE = load(ROOT / "docker-compose.yml")[0]
COMPOSE_GPU = load(ROOT / "docker-compose.gpu.yml")[0]
MARGIN_S = 5  # seconds of a grace period in addition to the drain
SETTINGS = {f"SENTIMENT_{name.upper()}" for name in Settings.model_fields}


embedded = served(embedded=True)


def _spec(overlay: Path) -> dict[str, Any]:
    spec: dict[str, Any] = only(render(overlay), "Deployment")["spec"]["template"]["spec"]
    return spec


def _container(overlay: Path) -> Object:
    container: Object
    (container,) = _spec(overlay)["containers"]
    return container


# The image


def test_the_image_listens_where_platforms_and_manifests_expect_it() -> None:
    """The image names the service's own port, and sets none: a platform's variable decides.

    SENTIMENT_PORT in the image would win over the variables of Cloud Run, Vertex AI and others.
    """
    assert re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE) == [PORT]
    assert not {"SENTIMENT_PORT", *sources.PORT_VARIABLES} & set(re.findall(r"(\w+)=", DOCKERFILE))
    assert COMPOSE["services"]["sentiment"]["ports"][0].endswith(f":{PORT}")
    for overlay in OVERLAYS:
        ports = {port["name"]: str(port["containerPort"]) for port in _container(overlay)["ports"]}
        settings = {entry["name"]: entry.get("value") for entry in _container(overlay)["env"]}
        assert (ports["http"], ports["metrics"]) == (PORT, settings["SENTIMENT_METRICS_PORT"])


def test_images_say_what_they_are_made_of() -> None:
    """They have OCI's labels; a release gives a value to those that only the builder knows."""
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="(.*)"', DOCKERFILE))
    assert {"title", "description", "licenses", "version"} <= labels.keys()
    workflow = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    for label in ("revision", "source", "created"):
        argument = label.upper()
        assert labels[label] == f"${argument}"
        assert f"\nARG {argument}=\n" in DOCKERFILE
        assert re.search(rf" {argument}=\$\{{\{{ ", workflow)


def test_what_is_deployed_can_be_built() -> None:
    """``docker build .`` makes the CPU image; Compose and the overlays name stages that exist."""
    assert STAGES[-1] == "cpu"
    services = [*COMPOSE["services"].values(), *COMPOSE_GPU["services"].values()]
    built = [service for service in services if "build" in service]
    assert len(built) == 3
    for service in built:
        assert service["image"] == f"sentiment-service:{service['build']['target']}"
    images = {service["image"] for service in built}
    objects = [one for overlay in OVERLAYS for one in render(overlay)]
    images |= {container["image"] for one in objects for container in containers(one)}
    assert {image.removeprefix("sentiment-service:") for image in images} <= set(STAGES)


def test_the_health_check_tells_ready_from_not(embedded: Process) -> None:
    """Exit code 0 if the service is ready, 1 if it does not listen, and a line. No proxy is used.

    It asks the port that the platform or a variable in any case has chosen.
    """
    command = re.search(r"HEALTHCHECK .*\n +CMD (.*)", DOCKERFILE)
    assert command
    _, *arguments = json.loads(command[1])
    refused = (1, "127.0.0.1:1 does not answer: Connection refused\n", "")
    for name, port, expected in (
        ("PORT", embedded.port, (0, '200 {"status":"ready"}\n', "")),
        ("SENTIMENT_PORT", 1, refused),
        ("sentiment_port", 1, refused),
    ):
        variables = {
            "PORT": str(embedded.port),
            name: str(port),
            "http_proxy": "http://127.0.0.1:1",
        }
        variables["PYTHONPATH"] = str(ROOT / "app")
        done = subprocess.run(
            [sys.executable, *arguments],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == expected


@pytest.mark.parametrize("first", [["docker-init", "--", "sentiment"], ["python", "sentiment"]])
@pytest.mark.parametrize("flag", ["--port PORT", "--port=PORT", "--host 0.0.0.0 --port PORT"])
def test_the_health_check_knows_the_flags_of_the_service(
    embedded: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: list[str], flag: str
) -> None:
    """The flags are those of the container's first process; they win over variables."""
    words = [*first, "serve", "--model", "x", *flag.replace("PORT", str(embedded.port)).split()]
    (tmp_path / "cmdline").write_text("\0".join(words) + "\0", encoding="utf-8")
    monkeypatch.setenv("SENTIMENT_PORT", "1")
    assert health_check.main(tmp_path / "cmdline") == 0


def test_the_log_says_which_port_and_model_and_why(embedded: Process) -> None:
    """The first line names the port and the model, each with what decided it."""
    first, *_ = embedded.first_lines.splitlines()
    assert "port 0 (--port); model the embedded one (default)" in first


# Compose


def test_compose_passes_every_setting() -> None:
    """A setting in .env or in the shell reaches the service, except those that Compose decides."""
    environment = COMPOSE["services"]["sentiment"]["environment"]
    ports = {f"SENTIMENT_{name}PORT" for name in ("", "METRICS_", "GRPC_")}
    decided = {"SENTIMENT_HOST", *ports}
    assert (
        environment.keys() - {"FORWARDED_ALLOW_IPS", "HF_HOME", "HF_TOKEN", "HF_ENDPOINT"}
        == SETTINGS - decided
    )
    given = {name for name, value in environment.items() if value is not None}
    assert given == {"SENTIMENT_DRAIN_MS", "SENTIMENT_CACHE_DIR", "HF_HOME"}


def test_compose_gives_no_container_more_than_it_needs() -> None:
    """Containers have read-only roots, no capabilities or new privileges, limits, exact tags."""
    for name, service in COMPOSE["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["tmpfs"] == "/tmp"  # noqa: S108
        assert "memory" in service["deploy"]["resources"]["limits"]
        assert re.search(r":(v?\d+\.\d+\.\d+|cpu|export)$", service["image"])


def test_each_finds_the_next_in_compose() -> None:
    """Prometheus asks the service and tells Alertmanager, and Grafana asks Prometheus."""
    services = COMPOSE["services"]
    (scrape,) = load(ROOT / "deploy/prometheus/prometheus.yml")[0]["scrape_configs"]
    (files,) = scrape["file_sd_configs"]
    mount = f"./deploy/prometheus/targets-compose.yml:/etc/prometheus/{files['files'][0]}:ro"
    assert mount in services["prometheus"]["volumes"]
    targets: Any = load(ROOT / "deploy/prometheus/targets-compose.yml")[0]
    assert targets == [{"targets": [f"sentiment:{PORT}"]}]
    (alerting,) = load(ROOT / "deploy/prometheus/prometheus.yml")[0]["alerting"]["alertmanagers"]
    (file,) = alerting["file_sd_configs"][0]["files"]
    mount = f"./deploy/prometheus/alertmanagers-compose.yml:/etc/prometheus/{file}:ro"
    assert mount in services["prometheus"]["volumes"]
    targets = load(ROOT / "deploy/prometheus/alertmanagers-compose.yml")[0]
    assert targets == [{"targets": ["alertmanager:9093"]}]
    assert services["alertmanager"]["networks"] == ["monitoring"]
    sources = load(ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml")[0]
    assert sources["datasources"][0]["url"] == "http://prometheus:9090"
    providers = load(ROOT / "deploy/grafana/provisioning/dashboards/sentiment.yml")[0]
    folder = providers["providers"][0]["options"]["path"]
    assert f"./deploy/grafana/dashboards:{folder}:ro" in services["grafana"]["volumes"]


# Kubernetes


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_what_is_checked_is_what_kubectl_applies(overlay: Path) -> None:
    """We render an overlay as kubectl does, except for the order."""
    applied = kubectl(overlay)
    if applied is None:
        pytest.skip("kubectl is not installed")
    assert _sorted(render(overlay)) == _sorted(applied)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return sorted(map(_sorted, value), key=lambda one: json.dumps(one, sort_keys=True))
    return value


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_probes_ask_what_the_service_answers(embedded: Process, overlay: Path) -> None:
    """Each probe uses the service's port and a path that answers 200."""
    container = _container(overlay)
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    assert {probe["port"] for probe in probes} == {"http"}
    for probe in probes:
        assert httpx2.get(embedded.url + probe["path"]).status_code == 200
    # A full queue or a drain must not restart a pod.
    assert container["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health/ready"


def test_a_container_has_time_to_finish() -> None:
    """The preStop sleep, the drain and a margin fit into the grace period, also with Compose."""
    service = COMPOSE["services"]["sentiment"]
    drain_s = int(service["environment"]["SENTIMENT_DRAIN_MS"]) / 1000
    assert float(service["stop_grace_period"].removesuffix("s")) >= drain_s + MARGIN_S
    for overlay in OVERLAYS:
        container = _container(overlay)
        drain_ms = {e["name"]: e.get("value") for e in container["env"]}["SENTIMENT_DRAIN_MS"]
        needed = container["lifecycle"]["preStop"]["sleep"]["seconds"] + MARGIN_S
        grace_s = _spec(overlay)["terminationGracePeriodSeconds"]
        assert grace_s >= needed + int(drain_ms) / 1000, overlay


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_a_pod_keeps_to_the_restricted_standard(overlay: Path) -> None:
    """A pod has the image's user, no privileges, no token, and a read-only root with /tmp."""
    for spec in (one["spec"]["template"]["spec"] for one in render(overlay) if containers(one)):
        (container,) = spec["containers"]
        user = spec["securityContext"]
        assert f"{user['runAsUser']}:{user['runAsGroup']}" in re.findall(
            r"^USER (.*)$", DOCKERFILE, re.MULTILINE
        )
        assert user["runAsNonRoot"]
        assert user["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert spec["automountServiceAccountToken"] is False
        assert "/tmp" in [mount["mountPath"] for mount in container["volumeMounts"]]  # noqa: S108


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_objects_select_the_pods_by_labels_that_they_have(overlay: Path) -> None:
    """All selectors match the labels of the pods."""
    objects = render(overlay)
    deployment, service = only(objects, "Deployment"), only(objects, "Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        only(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        *(
            constraint["labelSelector"]["matchLabels"]
            for constraint in _spec(overlay)["topologySpreadConstraints"]
        ),
    ]
    assert all(selector.items() <= labels.items() and selector for selector in selectors)


@pytest.mark.parametrize("overlay", ["model", "gpu"])
def test_an_overlay_serves_what_its_job_exports(overlay: str) -> None:
    """The Job writes the model to the path, in the volume, that the service reads."""
    objects = render(ROOT / "deploy/kubernetes/overlays" / overlay)
    export, service = (only(objects, k)["spec"]["template"] for k in ("Job", "Deployment"))
    (job,), (pod,) = export["spec"]["containers"], service["spec"]["containers"]
    assert job["args"][1:3] == [
        "--output",
        {e["name"]: e for e in pod["env"]}["SENTIMENT_MODEL"]["value"],
    ]
    for template, container in ((export, job), (service, pod)):
        assert "/models" in [mount["mountPath"] for mount in container["volumeMounts"]]
        claims = {v["name"]: v.get("persistentVolumeClaim") for v in template["spec"]["volumes"]}
        assert claims["models"] == {
            "claimName": only(objects, "PersistentVolumeClaim")["metadata"]["name"]
        }
    # The Job opens connections, which the service's policy forbids.
    policy = only(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    assert not policy.items() <= export["metadata"]["labels"].items()


def test_the_gpu_overlay_gives_a_pod_one_gpu() -> None:
    """It asks for the device, tolerates its nodes, has fp16, and gets more time to start."""
    (gpu,) = (overlay for overlay in OVERLAYS if overlay.name == "gpu")
    container = _container(gpu)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert _spec(gpu)["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert {"name": "SENTIMENT_DEVICE", "value": "cuda"} in container["env"]
    probe = container["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == 300
    assert probe["httpGet"]["path"] == "/health/ready"
    (job,) = only(render(gpu), "Job")["spec"]["template"]["spec"]["containers"]
    assert job["args"][3:] == ["--precision", "fp32,fp16"]


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_only_prometheus_reaches_the_metrics(overlay: Path) -> None:
    """One rule of the policy opens the port for requests, the other that for metrics."""
    rules = only(render(overlay), "NetworkPolicy")["spec"]["ingress"]
    opened = [[port["port"] for port in rule["ports"]] for rule in rules]
    assert opened == [["http"], ["metrics"]]
    (prometheus,) = rules[1]["from"]
    assert prometheus["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "monitoring"
    }


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_one_autoscaler_scales_the_deployment(overlay: Path) -> None:
    """An overlay has either HPA or KEDA, and the Deployment does not set the number of replicas."""
    objects = render(overlay)
    deployment = only(objects, "Deployment")
    (scaler,) = (o for o in objects if o["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"))
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_keda_asks_for_metrics_that_the_service_has(embedded: Process) -> None:
    """The service has the metrics, the job's name is right, and the threshold fits in the queue."""
    (path,) = (ROOT / "deploy/kubernetes").rglob("components/keda/scaledobject.yaml")
    spec = load(path)[0]["spec"]
    (scrape,) = load(ROOT / "deploy/prometheus/prometheus.yml")[0]["scrape_configs"]
    text = httpx2.get(f"{embedded.url}/metrics").text
    for trigger in spec["triggers"]:
        assert trigger["type"] == "prometheus"
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
        assert trigger["metricType"] == "AverageValue"  # fallback works only with averages
        series = re.findall(r'(\w+)\{job="(\w+)"', trigger["metadata"]["query"])
        assert series
        for metric, job in series:
            assert metric == "up" or f"\n{metric}{{" in text
            assert job == scrape["job_name"]
    (trigger,) = (one for one in spec["triggers"] if one["name"] == "queue")
    threshold_s = float(trigger["metadata"]["threshold"])
    assert 0 < threshold_s < Settings().deadline_ms / 1000  # before requests are refused
    # Without KEDA, hpa-queue asks for the same.
    (path,) = (ROOT / "deploy/kubernetes").rglob("hpa-queue/horizontalpodautoscaler.yaml")
    pods, rejections = (metric["pods"] for metric in load(path)[0]["spec"]["metrics"])
    assert f"({pods['metric']['name']}{{" in trigger["metadata"]["query"]
    assert pods["target"]["averageValue"] == f"{threshold_s * 1000:.0f}m"
    # prometheus-adapter's rule makes it of the rejections.
    wait, rule = load(ROOT / "deploy/prometheus/adapter.yaml")[0]["rules"]["custom"]
    assert wait["seriesQuery"].startswith(f"{pods['metric']['name']}{{")
    assert rule["name"]["as"] == rejections["metric"]["name"]
    assert spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]


def test_prometheus_operator_finds_the_service() -> None:
    """The monitor selects the Service, its port for metrics, the pod's port, and the job's name."""
    monitor = load(ROOT / "deploy/kubernetes/components/monitoring/servicemonitor.yaml")[0]["spec"]
    service = load(ROOT / "deploy/kubernetes/base/service.yaml")[0]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    assert endpoint.keys() == {"port", "path", "interval"}
    assert (endpoint["port"], endpoint["path"]) == ("metrics", "/metrics")
    ports = {port["name"]: port["targetPort"] for port in service["spec"]["ports"]}
    pod = {port["name"] for port in _container(OVERLAYS[0])["ports"]}
    assert ports["metrics"] in pod
    (scrape,) = load(ROOT / "deploy/prometheus/prometheus.yml")[0]["scrape_configs"]
    assert service["metadata"]["labels"][monitor["jobLabel"]] == scrape["job_name"]


def test_the_operator_gets_all_rules() -> None:
    """The PrometheusRule is what `python -m deploy.prometheus.operator` writes.

    No package has its schema, so the test lists the fields that the operator knows.
    """
    assert operator.OUTPUT.read_text(encoding="utf-8") == operator.as_yaml()
    (rule,) = load(operator.OUTPUT)
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    known = {"record", "alert", "expr", "for", "labels", "annotations"}
    for group in rule["spec"]["groups"]:
        assert group.keys() == {"name", "rules"}
        assert all(one.keys() <= known and "expr" in one for one in group["rules"])
    names = {
        one.get("alert", one.get("record")) for g in rule["spec"]["groups"] for one in g["rules"]
    }
    assert {"SentimentUnavailable", "namespace_job:sentiment_requests:rate5m"} <= names


@pytest.mark.parametrize(
    "address", ["https://git.example.com/main", "https://git.example.com/main/"]
)
def test_links_to_runbooks_are_absolute_with_the_address(address: str, tmp_path: Path) -> None:
    """Every alert's link then begins with it, and no external label is needed."""
    written = tmp_path / "rules.yaml"
    written.write_text(operator.as_yaml(address), encoding="utf-8")
    rules = [
        rule
        for group in load(written)[0]["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert rules
    for rule in rules:
        page = f"https://git.example.com/main/docs/operations.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == page


def test_grafana_gets_the_dashboard() -> None:
    """The ConfigMap has the dashboard and the label that Grafana's sidecar looks for."""
    config = only(render(ROOT / "deploy/grafana"), "ConfigMap")
    dashboard = (ROOT / "deploy/grafana/dashboards/sentiment.json").read_text(encoding="utf-8")
    assert config["data"] == {"sentiment.json": dashboard}
    assert config["metadata"]["labels"] == {"grafana_dashboard": "1"}


def test_what_is_set_is_a_setting() -> None:
    """The service knows each SENTIMENT_ variable of images, Compose and Kubernetes."""
    names = set(re.findall(r"(SENTIMENT_\w+)=", DOCKERFILE))
    for compose in (COMPOSE, COMPOSE_GPU):
        names |= compose["services"]["sentiment"]["environment"].keys()
    for overlay in OVERLAYS:
        names |= {entry["name"] for entry in _container(overlay)["env"]}
    ours = {name for name in names if name.startswith("SENTIMENT_")}
    assert {"SENTIMENT_HOST", "SENTIMENT_DRAIN_MS", "SENTIMENT_DEVICE"} <= ours <= SETTINGS


def test_no_service_link_can_become_a_setting() -> None:
    """The variables that a Service's name creates in pods are not settings of ours."""
    for overlay in OVERLAYS:
        name = only(render(overlay), "Service")["metadata"]["name"]
        variable = name.upper().replace("-", "_")
        assert not {f"{variable}_PORT", f"{variable}_SERVICE_HOST"} & SETTINGS
        assert _spec(overlay)["enableServiceLinks"] is False
