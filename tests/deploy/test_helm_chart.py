"""The Helm chart makes what the kustomize files make, and refuses values that it does not know."""

import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path, PurePath
from typing import Any

import pytest
import yaml
from sentiment_service.engine.model.bundle import MANIFEST

from checks.deploy.chart import CASES, CHART, loaded, notes, rendered
from checks.support.manifests import OVERLAYS, Object, load, only, render
from deploy.prometheus.operator import prometheus_rule
from tests.support import http_server
from tests.support.serving import ROOT, run_program

NGINX = "nginx.ingress.kubernetes.io"

helm_python = pytest.importorskip("helm_python", reason="make install-dev installs it")


def _pod(objects: list[Object], kind: str = "Deployment") -> Object:
    pod: Object = only(objects, kind)["spec"]["template"]["spec"]
    return pod


def _environment(objects: list[Object]) -> dict[str, Any]:
    (container,) = _pod(objects)["containers"]
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def test_the_chart_makes_the_pods_of_the_overlay() -> None:
    """With the default values and a tag, the pod is that of the overlay cpu."""
    (cpu,) = (overlay for overlay in OVERLAYS if overlay.name == "cpu")
    ours, theirs = _pod(rendered({"image": {"tag": "cpu"}}, "sentiment-service")), _pod(render(cpu))
    for pod in (ours, theirs):
        pod["containers"][0]["env"].sort(key=lambda entry: str(entry["name"]))
        for constraint in pod["topologySpreadConstraints"]:
            constraint["labelSelector"]["matchLabels"].pop("app.kubernetes.io/instance", None)
    assert ours["containers"][0].pop("imagePullPolicy") == "IfNotPresent"
    assert ours.pop("serviceAccountName") == "sentiment-service"
    assert ours == theirs


def test_a_pod_with_a_gpu_has_the_resources_of_the_overlay() -> None:
    """Eight CPUs, in chart and overlay: two would starve any GPU. Values override them."""
    (gpu,) = (overlay for overlay in OVERLAYS if overlay.name == "gpu")
    values = {"gpu": True, "model": {"name": "mine"}}
    ours, theirs = (_pod(objects)["containers"][0] for objects in (rendered(values), render(gpu)))
    assert ours["resources"] == theirs["resources"]
    assert {theirs["resources"][kind]["cpu"] for kind in ("requests", "limits")} == {"8"}
    small = values | {"resources": {"limits": {"memory": "5Gi"}}}
    limits = _pod(rendered(small))["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "8", "memory": "5Gi", "nvidia.com/gpu": "1"}


@pytest.mark.parametrize("case", CASES)
def test_selectors_fit_the_pods_of_their_release(case: str) -> None:
    """Each selector matches the pods of its release, none others: they may open connections."""
    objects = rendered(CASES[case], "one")
    pods = [only(rendered(CASES[case], name), "Deployment") for name in ("one", "two")]
    own, other = (pod["spec"]["template"]["metadata"]["labels"] for pod in pods)
    spec = {one["kind"]: one["spec"] for one in objects if "spec" in one}
    selectors = [
        spec["Deployment"]["selector"]["matchLabels"],
        spec["Service"]["selector"],
        spec["PodDisruptionBudget"]["selector"]["matchLabels"],
    ]
    if "NetworkPolicy" in spec:
        selectors.append(spec["NetworkPolicy"]["podSelector"]["matchLabels"])
    if "PodMonitor" in spec:
        selectors.append(spec["PodMonitor"]["selector"]["matchLabels"])
    for selector in selectors:
        assert selector.items() <= own.items()
        assert not selector.items() <= other.items()
        assert not selector.items() <= only(objects, "Pod")["metadata"]["labels"].items()
        if "Job" in spec:
            assert not selector.items() <= spec["Job"]["template"]["metadata"]["labels"].items()


def test_secrets_are_mounted_where_the_settings_look_for_them() -> None:
    """Keys and certificate are files, not variables; probes use TLS."""
    objects = rendered(CASES["plain"])
    pod, environment = _pod(objects), _environment(objects)
    (container,) = pod["containers"]
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
    assert secrets == {"keys": "keys", "tls": "tls"}
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    files = {name: value for name, value in environment.items() if "/etc" in str(value)}
    assert {str(PurePath(value).parent) for value in files.values()} <= mounted
    assert files.keys() == {
        *("SENTIMENT_API_KEYS_FILE", "SENTIMENT_ADMIN_KEYS_FILE"),
        *("SENTIMENT_TLS_CERT", "SENTIMENT_TLS_KEY"),
    }
    assert "SENTIMENT_API_KEYS" not in environment
    assert environment["OTEL_TRACES_SAMPLER"] == "always_on"
    schemes = {container[f"{p}Probe"]["httpGet"]["scheme"] for p in ("startup", "liveness")}
    assert schemes == {"HTTPS"}


@pytest.mark.parametrize("name", ["keys", "tls"])
def test_another_content_of_a_secret_makes_other_pods(name: str) -> None:
    """An upgrade replaces them if keys or certificate have changed, not if their labels have."""
    secret: Object = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
    resource = {"name": "secrets", "kind": "Secret", "namespaced": True, "verbs": ["get"]}
    answers = {
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [resource]},
        f"/api/v1/namespaces/texts/secrets/{name}": secret,
    }
    with _cluster(answers) as config:

        def pod(**content: str) -> Object:
            secret["data"] = content
            values = {f"{name}Secret": name}
            files = config.render(loaded(), values, name="mine", namespace="texts")
            made: Object = yaml.safe_load(files["sentiment/templates/deployment.yaml"])
            return made

        before = pod(entry="YQ==")
        secret["metadata"]["labels"] = {"team": "texts"}
        assert pod(entry="YQ==") == before
        assert pod(entry="Yg==") != before
        assert pod(entry="Yg==", another="YQ==") != pod(entry="Yg==")


@contextmanager
def _cluster(answers: dict[str, Object]) -> Iterator[Any]:
    """Helm with a cluster of which only these answers of its API are there."""

    def answer(request: BaseHTTPRequestHandler, _: bytes) -> http_server.Answer:
        found = answers.get(request.path.partition("?")[0])
        body = json.dumps(found or {"kind": "Status", "code": 404, "reason": "NotFound"})
        return 200 if found else 404, {"content-type": "application/json"}, body.encode()

    with http_server.listening(answer) as url:
        named = {"name": "x"}
        kubeconfig = {
            "clusters": [named | {"cluster": {"server": url}}],
            "users": [named | {"user": {}}],
            "contexts": [named | {"context": {"cluster": "x", "user": "x"}}],
            "current-context": "x",
        }
        yield helm_python.Config(kubeconfig_content=json.dumps(kubeconfig), namespace="texts")


def test_the_model_is_served_from_where_the_job_writes_it() -> None:
    """Job and pods share the claim and the path; a change of the export makes another Job."""
    objects = rendered(CASES["model"])
    (job,) = _pod(objects, "Job")["containers"]
    path = _environment(objects)["SENTIMENT_MODEL"]
    assert job["args"] == ["team/model", "--output", path, "--max-tokens", "128"]
    for pod in (_pod(objects), _pod(objects, "Job")):
        claims = [v["persistentVolumeClaim"] for v in pod["volumes"] if v["name"] == "models"]
        assert claims == [{"claimName": only(objects, "PersistentVolumeClaim")["metadata"]["name"]}]
    (waiting,) = _pod(objects)["initContainers"]
    assert path in waiting["command"]
    changed = {"model": {"name": "mine", "export": {"source": "team/other"}}}
    names = {only(o, "Job")["metadata"]["name"] for o in (objects, rendered(changed))}
    assert len(names) == 2


STAND_IN = f"""#!/bin/sh
echo "$1" >> "$ASKED"
case "$1" in
    wrong/*) exit 2 ;;
    stopped/*) trap 'echo removed >> "$ASKED"; exit 130' TERM; kill $PPID; sleep 5 & wait ;;
esac
mkdir -p "$3"
echo {{}} > "$3/{MANIFEST}"
"""


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Runs the container of a Job with a stand-in of the export; returns what that was asked."""
    (programs := tmp_path / "bin").mkdir()
    program = programs / "sentiment-export"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    asked = tmp_path / "asked"

    def run(job: Object, code: int = 0) -> list[str]:
        (container,) = _pod([job], "Job")["containers"]
        words = [*container["command"], *container["args"]]
        volume = [word.replace("/models/", f"{tmp_path}/models/") for word in words]
        ran = run_program(*volume, ASKED=str(asked))
        assert ran.returncode == code, ran.stdout + ran.stderr
        return asked.read_text(encoding="utf-8").split()

    return run


def test_an_upgrade_of_the_service_exports_nothing(export: Callable[..., list[str]]) -> None:
    """Weights stay as they are, unless source or arguments of the export change.

    A Job of the same name has the same content, as Kubernetes demands. One with another name may
    start, but finds its model there.
    """

    def job(values: Object, **of_export: Any) -> Object:
        model = {"name": "team/mine", "export": {"source": "first/model"} | of_export}
        return only(rendered({"model": model} | values), "Job")

    upgrades: list[Object] = [
        {},
        {"image": {"tag": "v9-cpu"}, "replicaCount": 3},
        {"image": {"repository": "mirror/sentiment", "pullPolicy": "Always"}},
        {"imagePullSecrets": [{"name": "registry"}], "serviceAccount": {"name": "texts"}},
        {"nodeSelector": {"disk": "ssd"}, "podSecurityContext": {"fsGroup": 7}},
    ]
    jobs = [job(values) for values in upgrades]
    jobs += [job({}, tag="v9-export"), job({}, tokenSecret="hub")]
    names: dict[str, Object] = {}
    for one in jobs:
        if names.setdefault(one["metadata"]["name"], one) is one:
            assert export(one) == ["first/model"]
        assert names[one["metadata"]["name"]] == one
    assert len(names) == len(jobs) - 1

    pinned = ["--revision", "abc"]
    for number, changed in enumerate(
        [
            job({}, source="second/model"),
            job({}),
            job({}, arguments=pinned),
            job({"gpu": True}, arguments=pinned),
        ],
        2,
    ):
        assert len(export(changed)) == number
        assert len(export(changed)) == number


def test_an_export_that_ends_early_has_exported_nothing(export: Callable[..., list[str]]) -> None:
    """Its Job fails and tries again; a SIGTERM reaches it. The model before stays known."""

    def asked(source: str, code: int = 0) -> list[str]:
        values = {"model": {"name": "mine", "export": {"source": source}}}
        return export(only(rendered(values), "Job"), code)

    begin = ["first/model"]
    assert asked("first/model") == begin
    assert asked("wrong/model", code=1) == [*begin, "wrong/model"]
    assert asked("wrong/model", code=1) == (begin := [*begin, "wrong/model", "wrong/model"])
    assert asked("stopped/model", code=1) == (begin := [*begin, "stopped/model", "removed"])
    assert asked("first/model") == begin


def test_the_job_of_kustomize_runs_the_same() -> None:
    """A Job that is deleted and made again exports nothing there, either."""
    (overlay,) = (overlay for overlay in OVERLAYS if overlay.name == "model")
    source = "cardiffnlp/twitter-roberta-base-sentiment-latest"
    chart = rendered({"model": {"name": "mine", "export": {"source": source}}})
    (ours,), (theirs,) = (
        _pod(objects, "Job")["containers"] for objects in (chart, render(overlay))
    )
    for part in ("command", "args"):
        assert ours[part] == theirs[part]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ["curl", "localhost:8000/classify"]),
        ({"tlsSecret": "tls"}, ["curl", "-k", "https://localhost:8000/classify"]),
        (
            {"keysSecret": "keys", "keysInSecret": ["admin-keys", "api-keys"]},
            ["curl", "localhost:8000/classify", "-H", "Authorization: Bearer KEY"],
        ),
        (
            {"keysSecret": "keys", "keysInSecret": ["admin-keys"]},
            ["curl", "localhost:8000/classify"],
        ),
    ],
    ids=["default", "TLS", "keys", "admin keys alone"],
)
def test_the_command_of_the_notes_fits_the_service(values: Object, words: list[str]) -> None:
    """After an install, the shown request uses TLS and a key where the service does.

    Each option is one that curls of any age have.
    """
    (line,) = (line for line in notes(values).splitlines() if line.lstrip().startswith("curl"))
    body = ["-H", "content-type: application/json", "-d", '{"inputs": ["I love it"]}']
    assert shlex.split(line) == words + body


def test_weights_that_may_change_are_told() -> None:
    """A model of the hub without a revision is a warning; one with it, or a directory, is none."""

    def warned(source: str, *arguments: str) -> bool:
        export = {"source": source, "arguments": [*arguments]}
        return "WARNING" in notes({"model": {"name": "mine", "export": export}})

    assert warned("team/model")
    assert not warned("team/model", "--revision", "0123456")
    assert not warned("/models/checkpoint")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"tlsSecret": "tls"}, True),
        ({"tlsSecret": "tls", "ingress": {"enabled": False}}, False),
        ({}, False),
        (
            {
                "tlsSecret": "tls",
                "ingress": {"annotations": {f"{NGINX}/backend-protocol": "HTTPS"}},
            },
            False,
        ),
    ],
    ids=["TLS", "no ingress", "no TLS", "annotated"],
)
def test_an_ingress_before_tls_must_be_told(values: Object, told: bool) -> None:
    """The notes name the annotation without which ingress-nginx would send clear text."""
    ingress = {"enabled": True, "hosts": [{"host": "a.org"}]} | values.get("ingress", {})
    assert (f"{NGINX}/backend-protocol: HTTPS" in notes(values | {"ingress": ingress})) == told


def test_a_pod_may_drain_as_long_as_a_request_may_take() -> None:
    """With a deadline above ten seconds, the drain is as long, and the pod is killed after it."""
    for deadline, drain, grace in (
        (2000, "10000", 25),
        (60_000, "60000", 75),
        (60_500, "60500", 76),
        (" 060500.0 ", "60500", 76),
    ):
        objects = rendered({"settings": {"deadline_ms": deadline}})
        assert _environment(objects)["SENTIMENT_DRAIN_MS"] == drain
        assert _pod(objects)["terminationGracePeriodSeconds"] == grace


def test_a_start_finds_what_another_pod_measured() -> None:
    """The measurements are in a writable folder of the volume, unless the volume is read-only."""
    (container,) = _pod(rendered(CASES["model"]))["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    folder = {"name": "models", "mountPath": "/measurements", "subPath": ".measurements"}
    assert mounts["/measurements"] == folder
    assert mounts["/models"]["readOnly"]
    assert _environment(rendered(CASES["model"]))["SENTIMENT_CACHE_DIR"] == "/measurements"
    for values in ({}, {"model": {"name": "mine", "keepMeasurements": False}}):
        assert "SENTIMENT_CACHE_DIR" not in _environment(rendered(values))


def test_networks_and_namespaces_may_send_requests() -> None:
    """A name is a namespace, an address with a prefix a network outside the cluster."""
    values = {"networkPolicy": {"requestsFrom": ["web", "10.0.0.0/8"]}}
    sources = only(rendered(values), "NetworkPolicy")["spec"]["ingress"][0]["from"]
    namespace = {"matchLabels": {"kubernetes.io/metadata.name": "web"}}
    assert sources[1:] == [{"namespaceSelector": namespace}, {"ipBlock": {"cidr": "10.0.0.0/8"}}]


def test_images_are_those_of_the_release() -> None:
    """Without tags, the images have the version of the service, as releases name them."""
    version = load(CHART / "Chart.yaml")[0]["appVersion"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert version == project["version"]
    objects = rendered({"model": {"name": "mine", "export": {"source": "team/model"}}})
    for kind, target in (("Deployment", "cpu"), ("Job", "cpu")):
        assert _pod(objects, kind)["containers"][0]["image"].endswith(f":v{version}-{target}")
    gpu = rendered({"gpu": True, "model": {"name": "mine"}})
    assert _pod(gpu)["containers"][0]["image"].endswith(f":v{version}-gpu")
    workflow = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    assert ":${{ github.ref_name }}-${{ matrix.target }}" in workflow


def test_an_ingress_leads_to_the_service() -> None:
    """With a host, there is an Ingress with the class and the certificate that are given."""
    objects = rendered(CASES["plain"])
    spec = only(objects, "Ingress")["spec"]
    (rule,) = spec["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    service = only(objects, "Service")
    assert backend["name"] == service["metadata"]["name"]
    assert backend["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}
    assert (rule["host"], spec["ingressClassName"]) == ("texts.example.com", "nginx")
    assert spec["tls"] == [{"hosts": ["texts.example.com"], "secretName": "certificate"}]
    assert "Ingress" not in {one["kind"] for one in rendered({})}


def test_a_pod_gets_one_gpu_and_a_model_for_it() -> None:
    """It asks for the device, uses CUDA or fails, and starts slowly; the export writes fp16."""
    objects = rendered(CASES["gpu"])
    pod = _pod(objects)
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/mig-1g.10gb"] == "1"
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert pod["runtimeClassName"] == "nvidia"
    assert _environment(objects)["SENTIMENT_DEVICE"] == "cuda"
    assert container["startupProbe"]["failureThreshold"] == 300
    (job,) = _pod(objects, "Job")["containers"]
    assert job["args"][-2:] == ["--precision", "fp32,fp16"]


def test_monitoring_is_that_of_kustomize() -> None:
    """The chart has the same rules and dashboard; `runbooks` makes the links absolute."""
    objects = rendered(CASES["gpu"])
    assert only(objects, "PrometheusRule")["spec"] == prometheus_rule()["spec"]
    dashboard = (ROOT / "deploy/grafana/dashboards/sentiment.json").read_text(encoding="utf-8")
    assert only(objects, "ConfigMap")["data"] == {"sentiment.json": dashboard}
    groups = only(rendered(CASES["model"]), "PrometheusRule")["spec"]["groups"]
    urls = [r["annotations"]["runbook_url"] for g in groups for r in g["rules"] if "alert" in r]
    begin = "https://git.example.com/sentiment/docs/operations.md#"
    assert urls
    assert all(url.startswith(begin) for url in urls)


def test_scraped_pods_belong_to_the_job_that_rules_select() -> None:
    """The monitor's job label has the job's name, and KEDA's queries select its pods."""
    objects = rendered(CASES["gpu"])
    monitor = only(objects, "PodMonitor")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    (container,) = _pod(objects)["containers"]
    labels = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert labels[monitor["jobLabel"]] == "sentiment"
    assert endpoint["port"] in {port["name"] for port in container["ports"]}
    for trigger in only(objects, "ScaledObject")["spec"]["triggers"]:
        query = trigger["metadata"]["query"]
        (pods,) = set(re.findall(r'pod=~"([^"]+)"', query))
        assert query.count('pod=~"') == query.count("{")
        assert re.fullmatch(pods, "mine-5d9c7b8f6d-x2x7q")
        assert not re.fullmatch(pods, "mine-too-5d9c7b8f6d-x2x7q")


def test_kedas_rule_is_that_of_kustomize() -> None:
    """Without what selects the pods, the chart's triggers are those of the component."""

    def triggers(objects: list[Object]) -> list[Object]:
        found: list[Object] = only(objects, "ScaledObject")["spec"]["triggers"]
        for one in found:
            one["metadata"]["query"] = re.sub(
                r'job="sentiment"|namespace="[^"]+",pod=~"[^"]+"', "", one["metadata"]["query"]
            )
        return found

    component = load(ROOT / "deploy/kubernetes/components/keda/scaledobject.yaml")
    assert triggers(rendered(CASES["gpu"])) == triggers(component)


def test_the_example_of_the_documentation_works() -> None:
    """The values in docs/containers.md are accepted, and make what they say."""
    page = (ROOT / "docs/containers.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(# mine\.yaml.*?)```", page, re.DOTALL)
    kinds = {one["kind"] for one in rendered(yaml.safe_load(example))}
    assert kinds >= {"Ingress", "Job", "HorizontalPodAutoscaler", "PrometheusRule"}
