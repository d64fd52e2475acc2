"""Lints the Helm chart and renders it with Helm's own code; no cluster is needed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from benchmarks.service import ROOT

CHART = ROOT / "deploy/helm/sentiment"
# Values that together use every template and every branch.
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "gpu": {
        "gpu": True,
        "gpuResource": "nvidia.com/mig-1g.10gb",
        "runtimeClassName": "nvidia",
        "model": {"name": "mine", "export": {"source": "team/model"}},
        "resources": {"limits": {"memory": "8Gi"}},
        "autoscaling": {"by": "keda"},
        "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
    },
    "model": {
        "settings": {"max_body_bytes": 2000000, "docs": "off"},
        "model": {
            "name": "mine",
            "storageClass": "nfs",
            "export": {
                "source": "team/model",
                "arguments": ["--max-tokens", 128],
                "tokenSecret": "hub",
            },
        },
        "autoscaling": {"by": "queue"},
        "networkPolicy": {"enabled": False},
        "monitoring": {"enabled": True, "runbooks": "https://git.example.com/sentiment/"},
    },
    "plain": {
        "model": {"name": "mine", "claim": "models"},
        "image": {"tag": "1.0"},
        "imagePullSecrets": [{"name": "registry"}],
        "replicaCount": 3,
        "service": {"type": "LoadBalancer", "grpcPort": 9000},
        "ingress": {
            "enabled": True,
            "hosts": [{"host": "texts.example.com"}],
            "className": "nginx",
            "tls": [{"secretName": "certificate", "hosts": ["texts.example.com"]}],
            "annotations": {"nginx.ingress.kubernetes.io/proxy-body-size": "2m"},
        },
        "networkPolicy": {"requestsFrom": ["web", "10.0.0.0/8"]},
        "podAnnotations": {"team": "texts"},
        "keysSecret": "keys",
        "keysInSecret": ["api-keys", "admin-keys"],
        "tlsSecret": "tls",
        "extraEnv": [{"name": "OTEL_TRACES_SAMPLER", "value": "always_on"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "batch", "operator": "Exists"}],
    },
}
MODEL = {"name": "mine"}
# Changes as users make them.
CHANGES: tuple[dict[str, Any], ...] = (
    {"image": {"repository": "registry.example.com/team/sentiment", "pullPolicy": "Always"}},
    {"settings": {"deadline_ms": "2000", "max_texts": "500"}},
    {"settings": {"rate_limit": "100/minute", "cors_origins": "https://example.com"}},
    {"settings": {"workers": 2}, "resources": {"limits": {"memory": "2Gi"}}},
    {"gpu": True, "model": MODEL, "replicaCount": 1},
    {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": 1}}},
    {"resources": {"requests": {"memory": "1024Mi", "ephemeral-storage": "1Gi"}}},
    {"model": MODEL},
    {"model": MODEL | {"accessMode": "ReadWriteOnce", "size": "500Mi"}},
    {"model": MODEL | {"claim": "models", "keepMeasurements": False}},
    {"model": {"name": "team/mine.v2", "export": {"source": "/models/checkpoint"}}},
    {"model": MODEL | {"export": {"source": "team/model", "tag": "export"}}},
    {"autoscaling": {"cpuPercent": 50, "minReplicas": 1, "maxReplicas": 1}},
    {"autoscaling": {"by": "keda", "queueWaitMs": 100, "fallbackReplicas": 2}},
    {
        "service": {"type": "NodePort", "port": 8080},
        "networkPolicy": {"requestsFrom": ["0.0.0.0/0"]},
    },
    {"service": {"grpcPort": 9000}, "networkPolicy": {"requestsFrom": []}},
    {"networkPolicy": {"metricsFrom": []}},
    {"ingress": {"enabled": True, "hosts": [{"host": "texts.example.com"}]}},
    {
        "ingress": {
            "enabled": True,
            "hosts": [{"paths": [{"path": "/texts", "pathType": "Exact"}]}, {"host": "*.a.org"}],
        }
    },
    {"monitoring": {"enabled": True, "alerts": False, "dashboard": False}},
    {"affinity": {"nodeAffinity": {}}, "priorityClassName": "high", "nameOverride": "texts"},
    {"fullnameOverride": "texts", "model": MODEL | {"export": {"source": "team/model"}}},
    {"replicaCount": 0},
    {"replicaCount": 3, "autoscaling": {"enabled": True, "maxReplicas": 4}},
    {"autoscaling": {"enabled": False}},
    {"image": {"tag": f"v0.2.0-cpu@sha256:{'0f' * 32}"}},
    {"serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/a"}}},
    {"serviceAccount": {"create": False, "name": "texts", "automount": True}},
    {"podLabels": {"team": "texts"}, "podAnnotations": {"sidecar.istio.io/inject": "false"}},
    {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": 2_000_000_000}},
    {"securityContext": {"readOnlyRootFilesystem": False, "privileged": False}},
    {"service": {"annotations": {"service.beta.kubernetes.io/aws-load-balancer-internal": "true"}}},
    {
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
    },
    {"envFrom": [{"secretRef": {"name": "proxy"}}, {"configMapRef": {"name": "traces"}}]},
    {"topologySpreadConstraints": []},
    {
        "topologySpreadConstraints": [
            {"topologyKey": "rack", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}
        ]
    },
)
CASES |= {str(values): values for values in CHANGES}


@contextmanager
def _copied() -> Iterator[Path]:
    """A copy without symbolic links, as in a packaged chart. Helm logs each link it follows."""
    with TemporaryDirectory() as folder:
        yield Path(shutil.copytree(CHART, Path(folder) / CHART.name))


def chart_problems() -> Iterator[str]:
    """What ``helm lint --strict`` finds in the chart, for all cases."""
    import helm_python

    with _copied() as chart:
        for case, values in CASES.items():
            report = helm_python.lint(chart, values, strict=True, kube_version="v1.34.0")
            errors = [m["error"] for m in report["messages"] if m["severity"] > 1]  # 1: information
            yield from (f"chart, {case}: {error}" for error in [*errors, *report["errors"]])


def rendered(values: dict[str, Any], release: str = "mine") -> list[dict[str, Any]]:
    """The objects that ``helm install`` would create."""
    files = _files(values, release)
    manifests = (text for name, text in files.items() if name.endswith(".yaml"))
    return [one for text in manifests for one in yaml.load_all(text, yaml.CSafeLoader) if one]


def notes(values: dict[str, Any]) -> str:
    """What ``helm install`` would print."""
    (text,) = (text for name, text in _files(values, "mine").items() if name.endswith("NOTES.txt"))
    return text


def _files(values: dict[str, Any], release: str) -> dict[str, str]:
    loaded().validate_schema(values)
    files: dict[str, str] = loaded().render(values, name=release, namespace="texts")
    return files


@cache
def loaded() -> Any:
    import helm_python

    with _copied() as folder:
        return helm_python.Chart.load(folder)
