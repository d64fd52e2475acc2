"""What the figures rest on: the load generator, the texts, the report."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sentiment_service.main import create_app
from sentiment_service.settings.settings import Settings

from benchmarks.cpu_time.client import send_slice
from benchmarks.subject import Goal
from tests.conftest import SET_BY_HAND
from tests.support.serving import listening

BODIES = ['{"inputs": "love"}', '{"inputs": "worst"}']


@pytest.fixture
def url(bundle: Path) -> Iterator[str]:
    """Where the service, on a real socket, classifies."""
    with listening(create_app(Settings.model_validate({"model": (bundle,), **SET_BY_HAND}))) as url:
        yield f"{url}/classify"


def test_a_slice_counts_complete_answers(url: str) -> None:
    """CPU time is read before the first request and after the last answer, and shared out."""
    readings = iter((np.array([0, 10_000]), np.array([2_000, 30_000])))
    found = asyncio.run(
        send_slice(
            url,
            BODIES,
            connections=3,
            seconds=0.2,
            cpu_ns=lambda: next(readings),
        )
    )
    assert found.answers >= 3
    assert found.cpu_us * found.answers == pytest.approx([2.0, 20.0])
    assert found.per_second == found.answers / found.seconds


def test_the_report_has_goals_tables_and_conditions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A section replaces its earlier run and leaves the others; a missed goal is called so."""
    from benchmarks import report  # it imports matplotlib

    conditions = {"date": "2026-01-02", "machine": "a machine", "versions": "some"}
    row = {"model": "tiny", "texts/s": 123.4, "p50 ms": 1.234, "p99 ms": 5.0, "connections": 2}
    goals = [Goal("fast", 0.9, 0.8), Goal("late", 30.0, 20.0, most=True, remark="1 to 2")]
    report.keep(tmp_path, "tiny by connections", conditions, [row, *goals])
    report.keep(tmp_path, "other", conditions, [{"x": 1}])
    report.keep(tmp_path, "other", conditions, [{"x": 2}])
    report.write(tmp_path)
    assert "MISSED" in capsys.readouterr().out
    text = (tmp_path / "README.md").read_text()
    assert "| fast | 0.9 | ≥ 0.8 |  |" in text
    assert "| late | 30 (**missed**) | ≤ 20 | 1 to 2 |" in text
    assert "| tiny | 123 | 1.23 | 5 | 2 |" in text
    assert "2026-01-02. a machine. some" in text
    assert json.loads((tmp_path / "results.json").read_text())["other"]["rows"] == [{"x": 2}]
    assert (tmp_path / "connections.svg").stat().st_size > 1_000
