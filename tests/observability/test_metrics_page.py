"""docs/metrics.md lists the metrics of the service, and no others."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import FLAGS, Serve
from tests.support.serving import ROOT, Process, patched
from tests.support.tiny_bundle import evaluate, make_bundle

PAGE = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
ROW = re.compile(r"^- `(\w+)(?:\{([\w,]+)\})?` \((\w+), ([\w ]+)\): \S", re.MULTILINE)
FAKE_GPUS = ROOT / "tests/support/machines/fake_nvml"


def test_the_page_has_each_metric(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Name, labels and type of each line are those of a scrape, with a candidate and with GPUs.

    A name that ends with a unit has this unit.
    """
    monkeypatch.syspath_prepend(FAKE_GPUS)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    (tmp_path / "keys").write_text("press=first-key-1", encoding="utf-8")
    evaluated = evaluate(make_bundle(tmp_path / "tiny"), [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    client = serve(
        model=(evaluated,),
        shadow=make_bundle(tmp_path / "candidate", name="next"),
        api_keys_file=tmp_path / "keys",
    )
    client.headers["authorization"] = "Bearer first-key-1"
    client.get("/info")
    shown = {
        (
            f"{family.name}_total" if family.type == "counter" else family.name,
            frozenset(label for sample in family.samples for label in sample.labels) - {"le"},
            family.type,
        )
        for family in text_string_to_metric_families(client.get("/metrics").text)
    }
    rows = ROW.findall(PAGE)
    listed = {
        (name, frozenset(filter(None, labels.split(","))), kind) for name, labels, kind, _ in rows
    }
    assert listed == shown
    assert len(rows) == len(listed) == PAGE.count("\n- `")
    for name, _, _, unit in rows:
        if found := re.search(r"_(seconds|bytes)(_total)?$", name):
            assert unit == found[1], name


def test_the_clock_may_be_wrong(bundle: Path) -> None:
    """Beyond 2106, where the time of a gzip file ends: every page is answered as today."""
    ahead = patched("real = time.time\ntime.time = lambda: real() + 2.6e9")
    flags = ("--model", str(bundle), *FLAGS)
    with Process(*flags, command=ahead, popen=subprocess.Popen) as process:
        for path in ("/metrics", "/openapi.json", "/docs", "/", "/info", "/models", "/health"):
            answer = process.client.get(path, headers={"accept-encoding": "gzip"})
            assert answer.status_code == 200, path
