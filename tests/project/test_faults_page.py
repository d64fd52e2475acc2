"""docs/measurements/faults.md: each fault in its table is held by a test that exists."""

import ast
import re

import pytest

from tests.support.serving import ROOT

PAGE = (ROOT / "docs/measurements/faults.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| fault", "| **"))
]
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE)))


def test_every_fault_has_a_row() -> None:
    """At least two dozen, each with what is seen."""
    assert len(ROWS) >= 24
    assert [row for row in ROWS if len(row) != 3 or not all(row)] == []


def test_every_row_names_its_test() -> None:
    """None has only words in its last column."""
    tests = re.compile(r"`[\w/]+\.py::test_\w+`(, `[\w/]+\.py::test_\w+`)*")
    assert [row[0] for row in ROWS if not tests.fullmatch(row[-1])] == []


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_that_a_row_names_exists(file: str, test: str) -> None:
    """Under that name in that file: the page cannot rot."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    assert test in {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
