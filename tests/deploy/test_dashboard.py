"""The Grafana dashboard in deploy/grafana."""

import json
import re
from itertools import pairwise
from typing import Any

import pytest

from deploy.grafana.dashboard import OUTPUT, as_json

DASHBOARD: dict[str, Any] = json.loads(OUTPUT.read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_the_dashboard_is_what_its_source_says() -> None:
    """The JSON file is what ``python -m deploy.grafana.dashboard`` writes."""
    assert OUTPUT.read_text(encoding="utf-8") == as_json()


def test_rows_cover_what_operators_ask() -> None:
    """All rows are there and expanded, and each is followed by a panel."""
    rows = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert [row["title"] for row in rows] == [
        *("Traffic", "Latency", "Batching", "Repeated texts", "Predictions", "Saturation"),
        *("GPUs", "Errors and rejections", "Models"),
    ]
    assert not any(row["panels"] or row["collapsed"] for row in rows)
    kinds = [panel["type"] for panel in DASHBOARD["panels"]]
    assert ("row", "row") not in pairwise(kinds)
    assert kinds[-1] != "row"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    """Each panel has title, unit and description, and uses the chosen data source."""
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["targets"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_shows_what_was_chosen(panel: dict[str, Any]) -> None:
    """Each series is limited to the chosen services and replicas; recorded series to the models."""
    for target in panel["targets"]:
        series = re.findall(r"((?:\w+:|process_|sentiment_)[\w:]*)\{(.*?)\}", target["expr"])
        assert series
        for name, labels in series:
            assert 'namespace=~"$namespace",job=~"$job"' in labels
            chosen = 'model=~"$model"' if ":" in name else 'instance=~"$instance"'
            assert chosen in labels


def test_panels_do_not_overlap() -> None:
    """No two panels share a cell of the grid or an id."""
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)


def test_viewers_choose_the_service_and_its_replicas() -> None:
    """The variables have this order, from the widest on; at first, everything is chosen."""
    variables = DASHBOARD["templating"]["list"]
    assert [variable["name"] for variable in variables] == [
        *("datasource", "namespace", "job", "model", "instance")
    ]
    assert [variable["current"]["value"] for variable in variables[1:]] == ["$__all"] * 4
