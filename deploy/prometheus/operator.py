"""The rules as an object of the Prometheus operator.

``python -m deploy.prometheus.operator`` writes it; kustomize cannot put files into an object. With
``--runbooks``, the address of this repository's files, the links to runbooks are absolute.
"""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
RULES = sorted((HERE / "rules").glob("*.yml"))
OUTPUT = HERE.parent / "kubernetes/components/monitoring/prometheusrule.yaml"
HEADER = "# Written by `python -m deploy.prometheus.operator` from deploy/prometheus/rules.\n"


def prometheus_rule() -> dict[str, Any]:
    """The object; it has the groups of all files, unchanged."""
    files = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in RULES)
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {
            "name": "sentiment-service",
            "labels": {"app.kubernetes.io/name": "sentiment"},
        },
        "spec": {"groups": [group for file in files for group in file["groups"]]},
    }


def as_yaml(runbooks: str = "") -> str:
    """The object as YAML. ``runbooks`` is what the links to runbooks begin with, if it is given."""
    text: str = yaml.safe_dump(prometheus_rule(), sort_keys=False, width=1000)
    if runbooks:
        text = text.replace("{{ $externalLabels.runbooks }}", f"{runbooks.rstrip('/')}/")
    return HEADER + text


if __name__ == "__main__":
    parser = ArgumentParser(description="Write prometheusrule.yaml for kustomize.")
    parser.add_argument("--runbooks", default="", metavar="URL", help="of this repository's files")
    OUTPUT.write_text(as_yaml(parser.parse_args().runbooks), encoding="utf-8")
