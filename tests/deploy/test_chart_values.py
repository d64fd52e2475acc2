"""Values of the Helm chart: conventions, the service's own rules, and clear refusals."""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from sentiment_service.settings.settings import Settings

from checks.deploy.chart import loaded, rendered
from checks.deploy.check import violations
from checks.support.manifests import Object, containers, load, only
from deploy.helm import generate
from tests.conftest import Listen, Start
from tests.server.test_tls import make_certificate
from tests.support.serving import run_program

helm_python = pytest.importorskip("helm_python", reason="make install-dev installs it")

NAME, INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"
SETTINGS = generate.settings_schema()["properties"]
# Of settings of each type; each is tried with every setting.
WRITTEN: tuple[str | int, ...] = (
    *("", " ", "0", "1", "+5", "05", " 7 ", "5.0", ".5", "0.5", "1.0", "1023", "1024", "2000"),
    *("9" * 30, 0, 1, 1023, 2**40, 10**18, "auto", "on", "off", "debug", "json", "fp16"),
    *("cpu", "cuda:0,1", "100/minute", "1234567890/day", "*", "https://a.org, https://b.org"),
    *("https://a.org,,http://b.org:80,", "10.0.0.7", "10.0.0.0/8", "0.0.0.0/0", "::1", "fd00::/8"),
    *("10.1.0.0/16, 192.168.0.0/24,", "2001:db8::/32", "::ffff:10.0.0.7", "1:2:3:4:5:6:7:8"),
    *("/sentiment", "sentiment/", "~/cache", "/measurements", "name", "a,b", "a,"),
    "http://localhost:4318",
)


def _tried(values: dict[str, Any]) -> tuple[list[Object], str]:
    """The objects that Helm makes of the values, or why it refuses them."""
    try:
        return rendered(values), ""
    except helm_python.HelmError as error:
        return [], str(error)


def _refusal(values: dict[str, Any]) -> str:
    return _tried(values)[1]


def _given(made: list[Object]) -> dict[str, Any]:
    """The settings in the environment of a pod of the service, as they are written."""
    (container,) = containers(only(made, "Deployment"))
    variables = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    return {name.removeprefix("SENTIMENT_").lower(): value for name, value in variables.items()}


def _accepts(**settings: str | int) -> bool:
    try:
        Settings(**{name: str(value) for name, value in settings.items()})  # type: ignore[arg-type]
    except ValidationError:
        return False
    return True


def _unnamed(value: Any, names: Iterable[str]) -> list[str]:
    """Those of the settings that the chart, given this value, does not refuse by name."""
    refusal = _refusal({"settings": dict.fromkeys(names, value)})
    return [name for name in names if not re.search(rf"settings[/.]{name}\b", refusal)]


@pytest.mark.parametrize("value", WRITTEN, ids=ascii)
def test_a_setting_that_the_service_takes_reaches_it(value: str | int) -> None:
    """The chart takes it for each setting, and the service gets what was written."""
    right = [name for name in SETTINGS if _accepts(**{name: value})]
    made, refusal = _tried({"settings": dict.fromkeys(right, value)})
    assert refusal == ""
    given = _given(made)
    assert {name: given[name] for name in right} == dict.fromkeys(right, str(value))


@pytest.mark.parametrize("value", [True, None, 1.5, [], ["auto"], {}], ids=repr)
def test_no_setting_is_anything_but_text_or_a_whole_number(value: Any) -> None:
    """YAML's other kinds are refused for each setting, so ``docs: off`` needs quotes."""
    assert _unnamed(value, SETTINGS) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "int8", "device": "cuda"},
        {"precision": "int8", "device": "cpu"},
        {"max_inflight_bytes": 2_097_151},
        {"max_inflight_bytes": "2097152"},
        {"max_inflight_bytes": 999, "max_body_bytes": "1000"},
        {"max_inflight_bytes": "1000", "max_body_bytes": 1000},
        {"max_inflight_bytes": 0, "max_body_bytes": 10**12},
    ],
    ids=str,
)
def test_settings_that_do_not_fit_each_other_are_refused(settings: dict[str, str | int]) -> None:
    """Chart and service agree on settings that depend on another."""
    assert bool(_refusal({"settings": settings})) != _accepts(**settings)


def test_what_is_generated_is_current() -> None:
    """The schema has the service's settings, the README the values: else run the generator."""
    hint = "python -m deploy.helm.generate writes it"
    assert generate.SCHEMA.read_text(encoding="utf-8") == generate.schema(), hint
    assert generate.README.read_text(encoding="utf-8") == generate.readme(), hint
    assert SETTINGS.keys() | generate.DECIDED == Settings.model_fields.keys()


def test_every_value_is_documented_and_in_the_schema() -> None:
    """values.yaml, README and schema have the same names, but for those of earlier charts."""
    readme = generate.README.read_text(encoding="utf-8")

    def names(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> None:
        known = {name for name, one in schema.items() if not one.get("deprecated")}
        assert values.keys() == known - {"global"}
        for name, value in values.items():
            if value and "properties" in schema[name]:
                names(value, schema[name]["properties"], f"{path}{name}.")
            else:
                assert f"\n| `{path}{name}" in readme

    schema = json.loads(generate.SCHEMA.read_text(encoding="utf-8"))
    names(load(generate.VALUES)[0], schema["properties"])


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"settings": {"max_textes": 5}}, "max_textes"),
        ({"settings": {"port": 80}}, "port"),
        ({"settings": {"deadline_ms": 0}}, "settings/deadline_ms"),
        ({"settings": {"deadline_ms": "10s"}}, "settings/deadline_ms"),
        ({"settings": {"max_header_bytes": 1023}}, "settings/max_header_bytes"),
        ({"settings": {"runners": 1025}}, "settings/runners"),
        ({"settings": {"workers": 0}}, "settings/workers"),
        ({"settings": {"shadow_share": 2}}, "settings/shadow_share"),
        ({"settings": {"device": "gpu"}}, "settings/device"),
        ({"settings": {"docs": "true"}}, "settings/docs"),
        ({"settings": {"rate_limit": "100/minutes"}}, "settings/rate_limit"),
        ({"settings": {"cors_origins": "example.org"}}, "settings/cors_origins"),
        ({"settings": {"trusted_proxies": "localhost"}}, "settings/trusted_proxies"),
        ({"settings": {"root_path": "/a b"}}, "settings/root_path"),
        ({"settings": {"otlp_endpoint": "collector:4318"}}, "settings/otlp_endpoint"),
        ({"autoscaling": {"by": "load"}}, "autoscaling/by"),
        ({"autoscaling": {"enabled": "yes"}}, "autoscaling/enabled"),
        ({"autoscaling": {"minReplicas": 11}}, "minReplicas is above autoscaling.maxReplicas"),
        ({"autoscaling": {"prometheus": "prometheus:9090"}}, "autoscaling/prometheus"),
        ({"replicas": 3}, "replicas"),
        ({"replicaCount": "3"}, "replicaCount"),
        ({"replicaCount": -1}, "replicaCount"),
        ({"monitoring": {"runbooks": "https://git.example.com"}}, "monitoring/runbooks"),
        ({"model": {"export": {"source": "team/model"}}}, "model.name is empty"),
        ({"model": {"name": "../x"}}, "model/name"),
        ({"model": {"size": "10 GB"}}, "model/size"),
        ({"gpu": True}, "gpu needs model.name"),
        ({"gpu": True, "model": {"name": "a"}, "settings": {"precision": "int8"}}, "precision"),
        ({"service": {"port": 80, "grpcPort": 80}}, "service.grpcPort is service.port"),
        ({"service": {"port": 65536}}, "service/port"),
        ({"service": {"type": "LoadBalancer"}}, "networkPolicy.requestsFrom has no network"),
        ({"service": {"annotations": {"internal": True}}}, "service/annotations/internal"),
        ({"resources": {"limits": {"cpu": "1500m"}}}, "the request of cpu (2) is above its limit"),
        ({"resources": {"requests": {"memory": "2Gi"}}}, "the request of memory (2Gi) is above"),
        ({"resources": {"limits": {"memory": "1GB"}}}, "resources/limits/memory"),
        ({"resources": {"limit": {"memory": "1Gi"}}}, "limit"),
        ({"image": {"repository": "ghcr.io/team/sentiment:v1"}}, "image/repository"),
        ({"image": {"tag": "sha256:abc"}}, "image/tag"),
        ({"imagePullSecrets": ["registry"]}, "imagePullSecrets/0"),
        ({"fullnameOverride": "Texts"}, "fullnameOverride"),
        ({"nameOverride": "a" * 54}, "nameOverride"),
        ({"keysSecret": "my_keys"}, "keysSecret"),
        ({"keysInSecret": []}, "keysInSecret"),
        ({"keysSecret": "keys", "keysInSecret": None}, "keysInSecret"),
        ({"serviceAccount": "texts"}, "serviceAccount"),
        ({"serviceAccount": {"create": "true"}}, "serviceAccount/create"),
        ({"podLabels": {"team": 7}}, "podLabels/team"),
        ({"podLabels": {NAME: "other"}}, NAME),
        ({"podAnnotations": {"inject": False}}, "podAnnotations/inject"),
        ({"nodeSelector": {"gpu": True}}, "nodeSelector/gpu"),
        ({"tolerations": {"key": "gpu"}}, "tolerations"),
        ({"affinity": []}, "affinity"),
        ({"podSecurityContext": None, "securityContext": "none"}, "securityContext"),
        ({"extraEnv": [{"name": "A", "value": 1}]}, "extraEnv/0/value"),
        ({"extraEnv": {"A": "1"}}, "extraEnv"),
        ({"envFrom": [{"secret": "proxy"}]}, "envFrom/0"),
        ({"extraVolumes": [{"configMap": {"name": "ca"}}]}, "extraVolumes/0"),
        ({"extraVolumeMounts": [{"name": "ca"}]}, "extraVolumeMounts/0"),
        ({"topologySpreadConstraints": [{"topologyKey": "rack"}]}, "topologySpreadConstraints/0"),
        ({"ingress": {"enabled": True}}, "ingress.enabled needs ingress.hosts"),
        ({"ingress": {"host": "a.org"}}, "'host' not allowed"),
        ({"ingress": {"hosts": ["a.org"]}}, "ingress/hosts/0"),
        ({"ingress": {"hosts": [{"host": "https://a.org"}]}}, "ingress/hosts/0/host"),
        ({"ingress": {"hosts": [{"paths": ["/"]}]}}, "ingress/hosts/0/paths/0"),
        ({"ingress": {"tls": [{"secret": "certificate"}]}}, "ingress/tls/0"),
        ({"networkPolicy": {"requestsFrom": ["10.0.0.0"]}}, "networkPolicy/requestsFrom/0"),
        # The names of earlier charts, and what they are now.
        ({"image": {"pullSecrets": [{"name": "a"}]}}, "image.pullSecrets is now imagePullSecrets"),
        ({"autoscaling": {"by": "none"}}, "autoscaling.by: none is now replicaCount"),
        ({"autoscaling": {"queueTokens": 9}}, "queueTokens is now autoscaling.queueWaitMs"),
        (
            {"image": {"pullSecrets": []}, "autoscaling": {"by": "none"}},
            "image.pullSecrets is now imagePullSecrets; autoscaling.by: none is now",
        ),
    ],
    ids=str,
)
def test_wrong_values_are_refused(values: dict[str, Any], named: str) -> None:
    """Unknown and old names, wrong kinds and what does not fit are errors that name the value."""
    assert named in _refusal(values)


def test_quantities_are_compared_in_all_units_of_the_schema() -> None:
    """A request above its limit is refused and one below it is not, whatever their unit."""
    schema = json.loads(generate.SCHEMA.read_text(encoding="utf-8"))
    (units,) = re.findall(r"\(([A-Za-z|]+)\)", schema["$defs"]["quantity"]["pattern"])
    pairs = [(f"1{unit}", f"2{unit}") for unit in units.split("|")]
    for less, more in [*pairs, (2_000_000, 8_589_934_592)]:  # Helm writes such numbers as 2e+06
        for request, limit in ((less, more), (more, less)):
            resources = {"requests": {"memory": request}, "limits": {"memory": limit}}
            assert ("is above" in _refusal({"resources": resources})) == (request == more), more


@pytest.mark.parametrize("model", [{}, {"gpu": True, "model": {"name": "mine"}}], ids=str)
def test_a_value_without_content_is_its_absence(model: dict[str, Any]) -> None:
    """``settings:`` whose lines are all comments is nothing; what must be there is named."""
    defaults = load(generate.VALUES)[0]
    missing, seen = {}, list[Object]()
    for name in defaults.keys() - model.keys():
        made, refusal = _tried(model | {name: None})
        if refusal:
            missing[name] = refusal
        else:
            assert list(violations(name, [one for one in made if one not in seen])) == []
            seen += made
    groups = {name for name, value in defaults.items() if isinstance(value, dict) and value}
    assert missing.keys() <= {*groups, "gpu", "gpuResource", "keysInSecret"}
    assert all(f"missing property '{name}'" in missing[name] for name in missing)


@pytest.mark.parametrize(
    ("values", "name", "objects"),
    [
        ({}, "sentiment", "mine"),
        ({"nameOverride": "texts"}, "texts", "mine-texts"),
        ({"nameOverride": "mine"}, "mine", "mine"),
        ({"fullnameOverride": "texts"}, "sentiment", "texts"),
        ({"nameOverride": "a", "fullnameOverride": "b"}, "a", "b"),
    ],
    ids=str,
)
def test_names_can_be_chosen(values: dict[str, Any], name: str, objects: str) -> None:
    """Objects and labels have them, references lead to them, and the job of the metrics stays."""
    model = {"model": {"name": "mine", "export": {"source": "team/model"}}}
    monitoring = {"monitoring": {"enabled": True}, "autoscaling": {"by": "keda"}}
    made = rendered(values | model | monitoring)
    for one in made:
        assert one["metadata"]["name"].startswith(objects), one["kind"]
        assert one["metadata"]["labels"][INSTANCE] == "mine"
        assert one["metadata"]["labels"][NAME] in (name, f"{name}-export", f"{name}-test")
    assert only(made, "ScaledObject")["spec"]["scaleTargetRef"]["name"] == objects
    assert f'pod=~"{objects}-[' in str(only(made, "ScaledObject")["spec"]["triggers"])
    labels = only(made, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert only(made, "Deployment")["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels[only(made, "PodMonitor")["spec"]["jobLabel"]] == "sentiment"


def test_objects_have_the_recommended_labels() -> None:
    """Each object says of which chart and version it is; selectors have only what stays."""
    made = rendered({"model": {"name": "mine", "export": {"source": "team/model"}}})
    recommended = {NAME, INSTANCE, "helm.sh/chart"} | {
        f"app.kubernetes.io/{name}" for name in ("version", "managed-by", "part-of")
    }
    assert {frozenset(one["metadata"]["labels"]) for one in made} == {frozenset(recommended)}
    selector = only(made, "Deployment")["spec"]["selector"]["matchLabels"]
    assert selector == {NAME: "sentiment", INSTANCE: "mine"}


@pytest.mark.parametrize(
    ("values", "replicas", "scaled"),
    [
        ({}, None, True),
        ({"replicaCount": 3}, 3, False),
        ({"replicaCount": 0}, 0, False),
        ({"autoscaling": {"enabled": False}}, 2, False),
        ({"autoscaling": {"enabled": False}, "replicaCount": 1}, 1, False),
        ({"autoscaling": {"enabled": True, "by": "keda"}, "replicaCount": 3}, None, True),
    ],
    ids=str,
)
def test_a_number_of_pods_is_fixed_or_scaled(
    values: dict[str, Any], replicas: int | None, scaled: bool
) -> None:
    """A number means: no autoscaler. Where there is one, the Deployment sets no number."""
    made = rendered(values)
    assert only(made, "Deployment")["spec"].get("replicas") == replicas
    kinds = {one["kind"] for one in made}
    assert bool(kinds & {"HorizontalPodAutoscaler", "ScaledObject"}) == scaled


def _pods(made: list[Object]) -> list[Object]:
    """The specifications of all pods: those of the service, of the export and of the test."""
    templates = [one["spec"].get("template", one) for one in made if "spec" in one]
    return [one["spec"] for one in templates if "containers" in one["spec"]]


def test_what_pods_have_in_common_is_that_of_the_values() -> None:
    """Service, export and test have the account, the secrets and the security of the values."""
    made = rendered(
        {
            "model": {"name": "mine", "export": {"source": "team/model"}},
            "imagePullSecrets": [{"name": "registry"}],
            "serviceAccount": {"name": "texts", "annotations": {"role": "reader"}},
            "podSecurityContext": {"runAsUser": None, "fsGroup": 2_000_000_000},
            "securityContext": {"privileged": False},
        }
    )
    assert only(made, "ServiceAccount")["metadata"]["annotations"] == {"role": "reader"}
    pods = _pods(made)
    assert len(pods) == 3
    for pod in pods:
        assert pod["serviceAccountName"] == only(made, "ServiceAccount")["metadata"]["name"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        user = pod["securityContext"]
        assert "runAsUser" not in user
        assert (user["fsGroup"], user["runAsNonRoot"]) == (2_000_000_000, True)
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert (
                container["securityContext"].items()
                >= {
                    "privileged": False,
                    "readOnlyRootFilesystem": True,
                }.items()
            )
    (pod, *_) = _pods(rendered({"serviceAccount": {"create": False}}))
    assert pod["serviceAccountName"] == "default"


def test_a_platform_with_numbers_of_its_own_gives_the_user() -> None:
    """OpenShift refuses the image's numbers; others that somebody has chosen stay."""
    with_openshift = json.dumps({"name": "mine", "api_versions": ["security.openshift.io/v1"]})
    for values, expected in (({}, {}), ({"podSecurityContext": {"fsGroup": 7}}, {"fsGroup": 7})):
        # Chart.render does not take the versions that a cluster has.
        files = json.loads(
            helm_python._native.call_string(
                "helm_render", loaded()._raw(), json.dumps(values), with_openshift
            )
        )
        made = [
            yaml.safe_load(text) for name, text in files.items() if name.endswith("answers.yaml")
        ]
        user = made[0]["spec"]["securityContext"]
        assert user.pop("runAsNonRoot")
        assert {key: value for key, value in user.items() if isinstance(value, int)} == expected


def test_a_pod_gets_what_the_values_add() -> None:
    """Volumes, variables, labels, annotations and the rest are added to those of the chart."""
    values = {
        "podLabels": {"team": "texts"},
        "podAnnotations": {"inject": "false"},
        "priorityClassName": "high",
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
        "envFrom": [{"secretRef": {"name": "proxy"}}],
        "extraEnv": [{"name": "NO_PROXY", "value": "*"}],
        "topologySpreadConstraints": [
            {"topologyKey": "rack", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}
        ],
        "service": {"annotations": {"internal": "true"}},
    }
    made = rendered(values)
    template = only(made, "Deployment")["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "texts"
    assert template["metadata"]["annotations"] == {"inject": "false"}
    pod = template["spec"]
    assert pod["priorityClassName"] == "high"
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp", "ca"]
    (container,) = pod["containers"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/tmp", "/etc/ca"]  # noqa: S108
    assert container["envFrom"] == values["envFrom"]
    assert {"name": "NO_PROXY", "value": "*"} in container["env"]
    (spread,) = pod["topologySpreadConstraints"]
    assert spread["topologyKey"] == "rack"
    assert spread["labelSelector"] == only(made, "Deployment")["spec"]["selector"]
    assert only(made, "Service")["metadata"]["annotations"] == {"internal": "true"}


def test_a_variable_of_the_values_stands_in_place_of_the_charts() -> None:
    """No container has two of one name, which server-side apply refuses."""
    own = ("SENTIMENT_API_KEYS", "SENTIMENT_METRICS_PORT", "SENTIMENT_MAX_TEXTS", "HF_TOKEN")
    added = [{"name": name, "value": "9"} for name in own]
    model = {"name": "mine", "export": {"source": "team/mine", "tokenSecret": "hub"}}
    made = rendered({"settings": {"max_texts": 7}, "model": model, "extraEnv": added})
    for one in _pods(made):
        (container,) = one["containers"]
        given = {variable["name"]: variable for variable in container["env"]}
        assert len(given) == len(container["env"])
        assert all(given.get(one["name"], one) == one for one in added)


def test_the_export_gets_what_a_download_may_need() -> None:
    """Variables such as a proxy's or a mirror's, own certificates, and nodes with taints.

    On nodes that it does not tolerate, the export would wait for ever, and the pods for it. It has
    none of the chart's volumes with keys and certificates, and mounts none. Settings of the service
    would only give the Job another name.
    """
    taint = {"key": "dedicated", "operator": "Exists"}
    values = {
        "gpu": True,
        "model": {"name": "mine", "export": {"source": "team/mine", "tokenSecret": "hub"}},
        "nodeSelector": {"pool": "texts"},
        "tolerations": [taint],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "tlsSecret": "tls",
        "extraVolumeMounts": [{"name": n, "mountPath": f"/etc/{n}"} for n in ("ca", "tls")],
        "envFrom": [{"secretRef": {"name": "proxy"}}],
        "extraEnv": [{"name": n, "value": "x"} for n in ("SENTIMENT_MAX_TEXTS", "HF_ENDPOINT")],
    }
    made = rendered(values)
    job, pod = (only(made, kind)["spec"]["template"]["spec"] for kind in ("Job", "Deployment"))
    (export,) = job["containers"]
    assert [variable["name"] for variable in export["env"]] == ["HF_TOKEN", "HF_ENDPOINT"]
    assert export["envFrom"] == values["envFrom"]
    assert [one["mountPath"] for one in export["volumeMounts"][1:]] == ["/models", "/etc/ca"]
    assert job["volumes"][-1] == pod["volumes"][-1] == {"name": "ca", "configMap": {"name": "ca"}}
    for one in (job, pod, only(made, "Pod")["spec"]):
        assert one["nodeSelector"] == {"pool": "texts"}
        assert [found["key"] for found in one["tolerations"]] == ["nvidia.com/gpu", "dedicated"]


@pytest.mark.parametrize("values", [{}, {"keysSecret": "keys"}], ids=str)
def test_helm_test_asks_the_service(listen: Listen, tmp_path: Path, values: dict[str, Any]) -> None:
    """With the chart's image and a key, the pod's program says what a text is, and else why not."""
    made = rendered(values | {"service": {"port": 8080}})
    pod = only(made, "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (test,), (served,) = pod["spec"]["containers"], _pods(made)[0]["containers"]
    assert test["image"] == served["image"]
    assert test["command"] == ["python", "-c"]
    program, url = test["args"]
    assert url == f"http://{only(made, 'Service')['metadata']['name']}:8080"

    keys = {"SENTIMENT_API_KEYS": "first-key,second-key"}
    served_at = f"http://127.0.0.1:{listen(api_keys=keys['SENTIMENT_API_KEYS'])}"
    if values:
        (entry,) = (one for one in test["env"] if one["name"] == "SENTIMENT_API_KEYS_FILE")
        (mount,) = test["volumeMounts"]
        assert entry["value"] == f"{mount['mountPath']}/api-keys"
        file = tmp_path / "api-keys"
        file.write_text("first-key\nsecond-key\n")
        keys = {"SENTIMENT_API_KEYS_FILE": str(file)}
    code, said = _run(program, served_at, keys)
    assert (code, said[: said.index(",")]) == (0, "tiny: positive")
    code, said = _run(program, served_at, {"SENTIMENT_API_KEYS": "another-key"})
    assert code == 1
    assert "/classify answers 401" in said
    code, said = _run(program, "http://127.0.0.1:1", {})
    assert (code, "http://127.0.0.1:1 does not answer" in said) == (1, True)


def test_helm_test_asks_over_tls(start: Start, tmp_path: Path) -> None:
    """The certificate has the public name, which is not the name in the cluster."""
    pod = only(rendered({"tlsSecret": "certificate"}), "Pod")
    program, url = pod["spec"]["containers"][0]["args"]
    assert url == "https://mine:80"
    certificate, key = make_certificate(tmp_path, "public")
    process = start("--tls-cert", str(certificate), "--tls-key", str(key))
    assert _run(program, process.url.replace("127.0.0.1", "localhost"), {})[0] == 0


def _run(program: str, url: str, variables: dict[str, str]) -> tuple[int, str]:
    changed: dict[str, Any] = {**variables, "http_proxy": "http://127.0.0.1:1"}
    done = run_program(sys.executable, "-c", program, url, **changed)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr
