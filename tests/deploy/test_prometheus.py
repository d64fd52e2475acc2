"""A real Prometheus checks deploy/prometheus and every query of the dashboard."""

import json
import math
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from sentiment_service.engine.model.bundle import MANIFEST, Evaluation, sha256

from tests.conftest import FLAGS
from tests.support.serving import ROOT, Process, eventually, installed, run_program
from tests.support.tiny_bundle import evaluate, make_bundle

DEPLOY = ROOT / "deploy/prometheus"
RULES = sorted((DEPLOY / "rules").glob("*.yml"))
KEDA = ROOT / "deploy/kubernetes/components/keda/scaledobject.yaml"
DASHBOARD = ROOT / "deploy/grafana/dashboards/sentiment.json"
RUNBOOKS = "{{ $externalLabels.runbooks }}"
SCRAPE_INTERVAL = "250ms"
TEXTS = ["love", "worst", "so so", "love " * 20, "", "love love"]
MIXED = [[2, 0, 0], [0, 1, 0], [1, 0, 3]]  # an evaluation
LENGTHS = Evaluation().lengths | {"8": 5, "24": 2}  # of its texts, which have 60 tokens
KEY = "secret-of-the-press"


def _rules(kind: str) -> list[dict[str, Any]]:
    groups = [
        group
        for path in RULES
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    ]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


def _targets() -> Iterator[str]:
    rows = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    for panel in (inner for row in rows for inner in (row, *row.get("panels", ()))):
        for target in panel.get("targets", ()):
            yield target["expr"]


def _keda() -> list[str]:
    triggers = yaml.safe_load(KEDA.read_text(encoding="utf-8"))["spec"]["triggers"]
    return [trigger["metadata"]["query"] for trigger in triggers]


def _queries() -> dict[str, str]:
    """All expressions by name, changed so that a service that started seconds ago has data.

    A comparison gives data only while an alert fires. With ``bool``, it gives data whenever there
    is something to compare.
    """
    asked = {rule["record"]: rule["expr"] for rule in _rules("record")}
    for rule in _rules("alert"):
        asked[rule["alert"]] = re.sub(r" (==|>) ", r" \1 bool ", rule["expr"])
    asked |= {expression: expression for expression in [*_targets(), *_keda()]}
    return {name: _today(expression) for name, expression in asked.items()}


def _today(expression: str) -> str:
    """Replace a day by a second, and the dashboard's variables by values."""
    chosen = {"offset 1d": "offset 1s", "$__rate_interval": "1m", "$namespace": ".*"}
    chosen |= dict.fromkeys(("$job", "$model", "$instance"), ".+")
    for word, value in chosen.items():
        expression = expression.replace(word, value)
    return expression


@pytest.fixture(scope="module")
def promtool() -> str:
    """The path of promtool."""
    return installed("promtool", "prometheus")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny bundle with an evaluation."""
    bundle = make_bundle(tmp_path_factory.mktemp("models") / "tiny")
    return evaluate(bundle, MIXED, lengths=LENGTHS, tokens=60)


@pytest.fixture(scope="module")
def prometheus(
    evaluated: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx2.Client]:
    """A client of a Prometheus with our configuration, except for the port and the intervals.

    The Prometheus scrapes a service that gets some requests, on a machine with two GPUs.
    """
    program = installed("prometheus", "prometheus")
    directory = tmp_path_factory.mktemp("prometheus")
    keys = directory / "keys"
    keys.write_text(f"press={KEY}", encoding="utf-8")
    flags = ("--model", str(evaluated), *FLAGS, "--cache-mb", "1", "--api-keys-file", str(keys))
    gpus = {"PYTHONPATH": str(ROOT / "tests/support/machines/fake_nvml")}
    with Process(*flags, variables=gpus) as service:
        config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
        config["global"] = dict.fromkeys(config["global"], SCRAPE_INTERVAL)
        config["scrape_configs"][0]["authorization"] = {"credentials": KEY}
        service.client.headers["authorization"] = f"Bearer {KEY}"
        targets = [{"targets": [f"127.0.0.1:{service.port}"]}]
        (directory / "targets.yml").write_text(yaml.safe_dump(targets), encoding="utf-8")
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
        (directory / "rules").mkdir()
        for path in RULES:
            (directory / "rules" / path.name).write_text(
                _today(path.read_text(encoding="utf-8")), encoding="utf-8"
            )
        process = subprocess.Popen(
            [
                program,
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            port = _listening_on(process)
            with httpx2.Client(base_url=f"http://127.0.0.1:{port}/api/v1") as api:
                eventually(lambda: api.get("/query?query=up").status_code == 200)  # it is ready
                # A rate begins at the first scrape, so wait for it.
                eventually(lambda: _values(api, "up") == [1])
                for _ in range(6):
                    service.client.post("/classify", json={"inputs": TEXTS}).raise_for_status()
                    time.sleep(0.25)
                yield api
        finally:
            process.kill()
            process.communicate()


def _listening_on(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    log = ""
    while not (address := re.search(r'"Listening on" address=127\.0\.0\.1:(\d+)', log)):
        line = process.stderr.readline()
        assert line, f"Prometheus did not start: {log}"
        log += line
    return address[1]


def _values(prometheus: httpx2.Client, expression: str) -> list[float]:
    answer = prometheus.get("/query", params={"query": expression}).json()
    assert answer["status"] == "success", f"{expression}: {answer['error']}"
    return [float(sample["value"][1]) for sample in answer["data"]["result"]]


def test_every_query_gives_data(prometheus: httpx2.Client) -> None:
    """Every rule and panel uses metrics and labels that the service has."""
    missing = _queries()
    for _ in range(40):  # rules that use other rules have data a few evaluations later
        missing = {
            name: query
            for name, query in missing.items()
            if not any(map(math.isfinite, _values(prometheus, query)))
        }
        if not missing:
            return
        time.sleep(0.25)
    raise AssertionError("no data: " + "\n".join(missing.values()))


def test_the_dashboard_shows_which_model_is_served(
    prometheus: httpx2.Client, evaluated: Path
) -> None:
    """By its digest, as the log shortens it: a bundle without revision changes that alone."""
    (query,) = (target for target in _targets() if "sentiment_model_info" in target)
    assert _values(prometheus, _today(query)) == [1]
    (sample,) = prometheus.get("/query", params={"query": _today(query)}).json()["data"]["result"]
    assert sample["metric"]["digest"] == sha256(evaluated / MANIFEST)[:12]


def test_a_limit_of_a_quantile_is_the_bound_of_a_bucket(prometheus: httpx2.Client) -> None:
    """An alert that compares a quantile with a limit does not depend on an interpolated value."""
    quantiles = [rule["expr"] for rule in _rules("alert") if "histogram_quantile" in rule["expr"]]
    assert quantiles
    for expression in quantiles:
        limit = re.search(r"(sentiment_\w+_bucket)\{[^}]*\}\[5m\]\s*\)\)\) > ([0-9.]+)", expression)
        assert limit, expression
        bucket = f'{limit[1]}{{le=~"{float(limit[2])}|{float(limit[2]):g}"}}'
        assert _values(prometheus, bucket), bucket


def test_a_healthy_service_fires_no_alert(prometheus: httpx2.Client) -> None:
    """The target is up, every rule is evaluated without an error, and no alert fires."""
    (target,) = prometheus.get("/targets").json()["data"]["activeTargets"]
    assert (target["health"], target["labels"]["job"]) == ("up", "sentiment")
    groups = prometheus.get("/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == len(_rules("record")) + len(_rules("alert"))
    assert {(rule["health"], rule.get("state", "inactive")) for rule in rules} == {
        ("ok", "inactive")
    }


def test_viewers_have_something_to_choose(prometheus: httpx2.Client) -> None:
    """The dashboard's variables find the model and the replica."""
    variables = json.loads(DASHBOARD.read_text(encoding="utf-8"))["templating"]["list"]
    found = {}
    for variable in variables[1:]:
        query = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
        assert query, variable["query"]
        series, label = query.groups()
        path, match = f"/label/{label}/values", {"match[]": _today(series)}
        found[variable["name"]] = prometheus.get(path, params=match).json()["data"]
    assert found["namespace"] == []  # outside Kubernetes
    assert found["job"] == ["sentiment"]
    assert found["model"] == ["tiny"]
    assert re.fullmatch(r"127\.0\.0\.1:\d+", *found["instance"])


@pytest.mark.parametrize("tls", [False, True])
def test_the_configuration_is_valid(promtool: str, tmp_path: Path, tls: bool) -> None:
    """promtool finds no error in the configuration and its rules, nor with the lines for TLS."""
    config = shutil.copytree(DEPLOY, tmp_path / "prometheus") / "prometheus.yml"
    if tls:
        text = re.sub(r"# (scheme|tls_config):", r"\1:", config.read_text(encoding="utf-8"))
        (scrape,) = yaml.safe_load(text)["scrape_configs"]
        assert (scrape["scheme"], "tls_config" in scrape) == ("https", True)
        config.write_text(text, encoding="utf-8")
    checked = run_program(promtool, "check", "config", "--lint-fatal", config)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(RULES)} rule files found" in checked.stdout


def test_alerts_fire_and_end(promtool: str) -> None:
    """With test series, each alert fires when it should, ends, and is silent at low traffic."""
    run = run_program(promtool, "test", "rules", *sorted((DEPLOY / "tests").glob("*.yml")))
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("refused", "admitted", "replicas"),
    [
        ("0x20", "0+100x20", 0),  # nothing is refused
        ("0+40x20", "0+100x20", 2.8),  # 1.4 times as many requests as two replicas admit
        ("0+900x20", "0+100x20", 4),  # ten times as many: twice the replicas for now
        ("0+900x20", "0x20", 4),
        ("0x20", "0x20", 0),
        ("0+0.5x20", "0+100x20", 0),  # a refusal now and then
    ],
)
def test_keda_counts_the_replicas_that_rejections_need(
    promtool: str, tmp_path: Path, refused: str, admitted: str, replicas: float
) -> None:
    """The trigger gives the replicas that would have admitted all requests, of two that did not.

    Requests beyond the rate limit of a client and those of a stopping replica do not count.
    """
    series = {
        'up{job="sentiment",instance="a"}': "1x20",
        'up{job="sentiment",instance="b"}': "1x20",
        'sentiment_rejections_total{job="sentiment",reason="deadline"}': refused,
        'sentiment_rejections_total{job="sentiment",reason="shutting_down"}': "0+100x20",
        'sentiment_stage_duration_seconds_count{job="sentiment",stage="queue"}': admitted,
    }
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": _keda()[1],
                "eval_time": "4m",
                "exp_samples": [{"labels": "{}", "value": replicas}],
            }
        ],
    }
    path = tmp_path / "keda.yml"
    path.write_text(yaml.safe_dump({"tests": [test]}), encoding="utf-8")
    run = run_program(promtool, "test", "rules", path)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("unavailable", "muted"),
    [
        ({}, ["SentimentErrors", "SentimentTextsLate a", "SentimentTextsLate b"]),
        ({"model": "a"}, ["SentimentTextsLate a"]),
        ({"model": "a", "job": "other"}, []),
    ],
    ids=str,
)
def test_one_model_that_is_unavailable_mutes_no_alert_of_another(
    unavailable: dict[str, str], muted: list[str]
) -> None:
    """Without replicas, all that follows is muted; without one model, what concerns that model."""
    config = yaml.safe_load((DEPLOY / "alertmanager.yml").read_text(encoding="utf-8"))

    def fits(matchers: list[str], alert: dict[str, str]) -> bool:
        """As Alertmanager does it: a label that is missing is empty."""
        parts = [re.fullmatch(r'(\w+)(!?=)"(\w*)"', matcher) for matcher in matchers]
        return all((alert.get(p[1], "") == p[3]) == (p[2] == "=") for p in parts if p)

    job = {"job": "sentiment"}
    source = job | {"alertname": "SentimentUnavailable"} | unavailable
    alerts = [
        source,
        job | {"alertname": "SentimentErrors"},
        *(job | {"alertname": "SentimentTextsLate", "model": model} for model in "ab"),
    ]
    assert [
        " ".join([alert["alertname"], *([alert["model"]] if "model" in alert else [])])
        for alert in alerts
        if any(
            fits(rule["source_matchers"], source)
            and fits(rule["target_matchers"], alert)
            and all(source.get(label, "") == alert.get(label, "") for label in rule["equal"])
            for rule in config["inhibit_rules"]
        )
    ] == muted


@pytest.mark.parametrize("rule", _rules("alert"), ids=lambda rule: rule["alert"])
def test_every_alert_has_a_test_and_a_runbook(rule: dict[str, Any]) -> None:
    """Each alert has a promtool test, a severity, a description and a section in the runbook."""
    name = rule["alert"]
    tests = "".join(path.read_text(encoding="utf-8") for path in (DEPLOY / "tests").glob("*.yml"))
    assert f"alertname: {name}\n" in tests
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    url = rule["annotations"]["runbook_url"]
    assert url.startswith(RUNBOOKS)
    page, _, section = url.removeprefix(RUNBOOKS).partition("#")
    assert section == name.lower()
    assert f"\n### {name}\n" in (ROOT / page).read_text(encoding="utf-8")
