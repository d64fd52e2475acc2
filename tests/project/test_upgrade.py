"""What users of version 0.2.0 have: settings, values of the chart, bundles. See docs/upgrade.md."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient
from sentiment_export.cli import main as export
from sentiment_service.cli.command import main
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE, Bundle
from sentiment_service.errors import UserError

from tests.conftest import Start
from tests.support.checkpoints import exported
from tests.support.tiny_bundle import load, make_bundle, write_manifest

# Every setting of 0.2.0 but model and port, with a value that it took.
SETTINGS = {
    "SERVED_NAME": "ours",
    "HOST": "127.0.0.1",
    "DEVICE": "auto",
    "PRECISION": "fp32",
    "RUNNERS": "1",
    "THREADS": "1",
    "MAX_BATCH_TOKENS": "512",
    "CACHE_DIR": "cache",
    "TARGET_LATENCY_MS": "20",
    "MAX_QUEUE_TOKENS": "65536",
    "CACHE_MB": "8",
    "MAX_TEXTS": "50",
    "MAX_TEXT_CHARS": "50000",
    "MAX_BODY_BYTES": "2097152",
    "MAX_INFLIGHT_BYTES": "0",
    "MAX_HEADER_BYTES": "32768",
    "DEADLINE_MS": "2000",
    "DRAIN_MS": "2000",
    "API_KEYS": "a-key-of-ours,another-key",
    "ADMIN_KEYS": "an-admin-key",
    "RATE_LIMIT": "1000/second",
    "CORS_ORIGINS": "https://example.com",
    "DOCS": "off",
    "METRICS_PORT": "0",
    "GRPC_PORT": "0",
    "OTLP_ENDPOINT": "",
    "LOG_FORMAT": "json",
    "ACCESS_LOG": "off",
    "LOG_LEVEL": "info",
}


@pytest.mark.parametrize("as_flags", [False, True])
def test_the_settings_of_the_last_release_start_the_service(
    start: Start, tmp_path: Path, *, as_flags: bool
) -> None:
    """Each is still known: there is no warning of it, and the model has the name that it says."""
    given = SETTINGS | {"CACHE_DIR": str(tmp_path)}
    flags = [
        word
        for name, value in given.items()
        if value
        for word in (f"--{name.lower().replace('_', '-')}", value)
    ]
    variables = {} if as_flags else {f"SENTIMENT_{name}": value for name, value in given.items()}
    process = start(*(flags if as_flags else ()), variables=variables)
    logged = [json.loads(line) for line in process.first_lines.splitlines()]
    assert [line["message"] for line in logged if line["level"] not in ("info", "debug")] == []
    answer = process.client.post(
        "/classify", json={"inputs": "love"}, headers={"authorization": "Bearer another-key"}
    )
    assert answer.json()["model"]["name"] == "ours"


def test_metrics_that_have_changed_are_there_under_their_new_names(client: TestClient) -> None:
    """What docs/upgrade.md names, from the first scrape."""
    scraped = client.get("/metrics").text
    for name in ("queue_wait_seconds", "queue_tokens", "model_info"):
        assert f"\nsentiment_{name}{{" in scraped
    assert re.search('sentiment_model_info{.*digest="', scraped)
    assert "sentiment_texts_shared_total" not in scraped


# Every value of the chart of 0.2.0, but for those that have another name now.
VALUES = yaml.safe_load("""
image: {repository: team/sentiment, tag: cpu, pullPolicy: Always}
settings: {deadline_ms: 2000, rate_limit: "100/second", docs: "off"}
keysSecret: keys
gpu: false
resources: {requests: {cpu: "2", memory: 512Mi}, limits: {cpu: "2", memory: 1Gi}}
model:
  name: mine
  claim: ""
  size: 10Gi
  accessMode: ReadWriteMany
  storageClass: nfs
  export:
    source: team/model
    arguments: [--max-tokens, 128]
    tag: export
    tokenSecret: hub
    resources: {requests: {cpu: "2", memory: 4Gi}, limits: {memory: 8Gi}}
autoscaling:
  by: keda
  minReplicas: 2
  maxReplicas: 10
  cpuPercent: 70
  fallbackReplicas: 4
  prometheus: http://prometheus-operated.monitoring:9090
service: {type: ClusterIP, port: 80}
networkPolicy: {enabled: true, requestsFrom: [ingress-nginx], metricsFrom: [monitoring]}
monitoring: {enabled: true, labels: {release: p}, alerts: true, dashboard: true, runbooks: ""}
podAnnotations: {team: texts}
nodeSelector: {disk: ssd}
tolerations: [{key: batch, operator: Exists}]
affinity: {}
""")


def test_values_of_the_last_releases_chart() -> None:
    """They are accepted; tests/deploy/test_chart_values.py has those that are named as changed."""
    pytest.importorskip("helm_python", reason="make install-dev installs it")
    from checks.deploy.chart import rendered

    assert {one["kind"] for one in rendered(VALUES)} >= {"Deployment", "ScaledObject", "Job"}


def of_format_1(bundle: Path) -> None:
    """Let the manifest say that an earlier version made the bundle."""
    path = bundle / "manifest.json"
    path.write_text(
        json.dumps(json.loads(path.read_text("utf-8")) | {"format_version": 1}), "utf-8"
    )


def test_the_command_for_an_old_int8_works(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever the checkpoint is now: labels, preprocessing and length stay as they were.

    Until then, the bundle's fp32 is served.
    """
    moved, old, new = (tmp_path / name for name in ("moved", "old", "new"))
    shutil.copytree(exported(tmp_path_factory.getbasetemp(), "roberta").source, tmp_path / "gone")
    options = ["--labels", "bad,so so,good", "--preprocessing", "tweet", "--max-tokens", "20"]
    assert export([str(tmp_path / "gone"), "--output", str(old), *options]) == 0
    (tmp_path / "gone").rename(moved)
    of_format_1(old)
    capsys.readouterr()
    assert main(["classify", "--model", str(old), "love"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    why, _, command = line.partition("; ")
    assert why.endswith("has an int8 variant of format_version 1, which is wrong on some CPUs")
    flags, _, command = command.removeprefix("serve it with ").partition(", or export it again: ")
    assert main(["classify", "--model", str(old), *flags.split(), "love"]) == 0
    program, *words = shlex.split(command)
    assert program == "sentiment-export"
    places = {"CHECKPOINT": str(moved), "DIR": str(new)}
    assert export([places.get(word, word) for word in words]) == 0
    before, after = (Bundle.open(path).manifest for path in (old, new))
    for entry in ("labels", "preprocessing", "max_tokens", "text_pairs"):
        assert getattr(before, entry) == getattr(after, entry), entry
    assert main(["classify", "--model", str(new), "love"]) == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"source": {"repo_id": "team/model", "revision": "0123abc", "files": {}}},
            (
                "--precision fp32, or export it again: sentiment-export team/model --output DIR "
                "--revision 0123abc --labels negative,neutral,positive"
            ),
        ),
        (
            {"source": {"path": "a-directory", "files": {}}, "text_pairs": True},
            (
                "sentiment-export CHECKPOINT --output DIR --labels negative,neutral,positive "
                "--preprocessing tweet --max-tokens 16 --text-pairs"
            ),
        ),
    ],
)
def test_what_an_old_int8_suggests(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    """The hub's commit where it is known, and never the name of a directory that may be gone."""
    path = make_bundle(tmp_path / "old")
    manifest = json.loads((path / "manifest.json").read_text())
    variants = {**manifest["variants"], "int8": manifest["variants"]["fp32"]}
    write_manifest(path, format_version=1, preprocessing="tweet", variants=variants, **changes)
    load(path, "fp32")
    with pytest.raises(UserError) as raised:
        load(path, "int8")
    assert says in str(raised.value)
    assert "a-directory" not in str(raised.value)


def test_a_copy_of_the_embedded_model_of_0_2_0(tmp_path: Path) -> None:
    """There is no checkpoint to export: the service has the model."""
    path = tmp_path / "copy"
    shutil.copytree(EMBEDDED_BUNDLE, path)
    of_format_1(path)
    with pytest.raises(UserError, match=r"; leave out --model: the service has this model$"):
        load(path, "int8")
