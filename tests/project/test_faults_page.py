"""docs/measurements/faults.md: each fault is held by a test that exists."""

import ast
import re

import pytest

from tests.support.serving import ROOT

PAGE = (ROOT / "docs/measurements/faults.md").read_text(encoding="utf-8")
FAULTS = re.findall(r"^- .*", PAGE, re.MULTILINE)
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(test_\w+)`", PAGE)))


def test_every_fault_names_what_is_seen_and_its_tests() -> None:
    """At least two dozen faults, each with what clients see, and then its tests."""
    tests = r"`[\w/]+\.py::test_\w+`"
    whole = re.compile(rf"- \*\*.+?\*\*: .+\. {tests}(, {tests})*")
    assert len(FAULTS) >= 24
    assert [fault for fault in FAULTS if not whole.fullmatch(fault)] == []


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_a_test_that_the_page_names_exists(file: str, test: str) -> None:
    """Under that name in that file: the page cannot rot."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    assert test in {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
