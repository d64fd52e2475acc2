"""The Grafana dashboard in deploy/grafana."""

import json
import re
from typing import Any

import pytest
from sentiment_service.errors import ANSWERS

from deploy.grafana.dashboard import OUTPUT, as_json

DASHBOARD: dict[str, Any] = json.loads(OUTPUT.read_text(encoding="utf-8"))
# Rows are collapsed, so their panels are in them.
ALL = [inner for panel in DASHBOARD["panels"] for inner in (panel, *panel.get("panels", []))]
PANELS = [panel for panel in ALL if panel["type"] != "row"]


def test_the_dashboard_is_what_its_source_says() -> None:
    """The JSON file is what ``python -m deploy.grafana.dashboard`` writes."""
    assert OUTPUT.read_text(encoding="utf-8") == as_json()


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows_and_shows_what_was_chosen(panel: dict[str, Any]) -> None:
    """It has title, unit and description. Its series are limited to the chosen services and
    replicas, recorded series to the chosen models.
    """
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    for target in panel["targets"]:
        series = re.findall(r"((?:\w+:|process_|sentiment_)[\w:]*)\{(.*?)\}", target["expr"])
        assert series
        for name, labels in series:
            assert 'namespace=~"$namespace",job=~"$job"' in labels
            chosen = 'model=~"$model"' if ":" in name else 'instance=~"$instance"'
            assert chosen in labels


def test_panels_do_not_overlap() -> None:
    """No two panels share a cell of the grid or an id."""
    places = [panel["gridPos"] for panel in ALL]
    cells = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in ALL}) == len(places)


def test_the_first_look_needs_no_click() -> None:
    """Four panels are open in one line; all others are in collapsed rows."""
    shown = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert [panel["title"] for panel in shown] == [
        *("Answers by outcome", "p99 against the deadline", "Predicted wait", "Replicas ready"),
    ]
    assert {panel["gridPos"]["y"] for panel in shown} == {0}
    assert all(row["collapsed"] and row["panels"] for row in DASHBOARD["panels"][len(shown) :])


def test_the_first_panel_shows_load_apart_from_rate_limits() -> None:
    """Both have status 429, but only what is overloaded is refused because of load."""
    shown: dict[str, set[str]] = {}
    for target in PANELS[0]["targets"]:
        rules = re.findall(r'(status|outcome)(!?)=~?"(.*?)"', target["expr"])
        for status, outcome in ANSWERS:
            has = {"status": str(status), "outcome": outcome}
            if all(bool(no) is not bool(re.fullmatch(of, has[label])) for label, no, of in rules):
                shown.setdefault(target["legendFormat"], set()).add(outcome)
    failed = {outcome for status, outcome in ANSWERS if status >= 500} - {"client_deadline"}
    assert shown == {"answered": {"ok"}, "refused": {"overloaded"}, "failed": failed}
