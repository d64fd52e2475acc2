"""The rules as an object of the Prometheus operator.

``python -m deploy.prometheus.operator`` writes it; kustomize cannot put files into an object.
"""

from pathlib import Path
from typing import Any

import yaml

from deploy.check import load
from deploy.dockerfile import ROOT

RULES = sorted((ROOT / "deploy/prometheus/rules").glob("*.yml"))
OUTPUT = ROOT / "deploy/kubernetes/components/monitoring/prometheusrule.yaml"
HEADER = "# Written by `python -m deploy.prometheus.operator` from deploy/prometheus/rules.\n"


def prometheus_rule() -> dict[str, Any]:
    """The object; it has the groups of all files, unchanged."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "sentiment-service",
            "labels": {"app.kubernetes.io/name": "sentiment"},
        },
        "spec": {"groups": [group for path in RULES for group in load(path)[0]["groups"]]},
    }


def as_yaml() -> str:
    """The object as YAML."""
    return HEADER + yaml.safe_dump(prometheus_rule(), sort_keys=False, width=1000)


if __name__ == "__main__":
    Path(OUTPUT).write_text(as_yaml(), encoding="utf-8")
