"""The pages of documentation: their links, the modules that they name, and their length."""

import re
from pathlib import Path

import pytest

from tests.support.serving import ROOT

DOCS = sorted((ROOT / "docs").glob("*.md"))
MEASUREMENTS = sorted((ROOT / "docs/measurements").glob("*.md"))
PAGES = [
    page
    for folder in ("", "app/**/", "benchmarks/**/", "checks/**/", "deploy/**/", "docs/**/")
    for page in sorted(ROOT.glob(f"{folder}*.md"))
]


def test_the_documentation_stays_short() -> None:
    """Words: docs/ has 16,000, docs/measurements/ 9,000 and the README 1,300 at most."""
    assert sum(map(_words, DOCS)) <= 16_000
    assert sum(map(_words, MEASUREMENTS)) <= 9_000
    assert _words(ROOT / "README.md") <= 1_300


def test_the_changes_stay_short() -> None:
    """What is unreleased has at most 120 lines in CHANGELOG.md."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    unreleased = text.partition("## [Unreleased]\n")[2].partition("\n## [")[0]
    assert len(unreleased.splitlines()) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link of a page names a file, and a heading of it if it has a fragment."""
    text = _prose(page)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    broken = []
    for target in (target for target in targets if "://" not in target):
        path, _, fragment = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (fragment and fragment not in _anchors(file)):
            broken.append(target)

    assert broken == []


def test_every_page_is_listed() -> None:
    """docs/README.md links to each page of docs/, so that none is forgotten."""
    text = (ROOT / "docs/README.md").read_text("utf-8")

    assert [
        page.name for page in DOCS if page.name != "README.md" and f"({page.name})" not in text
    ] == []


def test_modules_have_the_names_by_which_they_are_called() -> None:
    """Each module that a page, a comment or a docstring names by its file is there."""
    folders = ("app", "model_export", "models", "benchmarks", "checks", "deploy", "docs", "tests")
    modules = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    there = [f"/{path.relative_to(ROOT)}" for path in modules]
    unknown = [
        f"{place.relative_to(ROOT)}: {name}"
        for place in (*modules, *PAGES)
        for name in re.findall(r"`([\w/]+\.py)`(?! of commit)", place.read_text("utf-8"))
        if not any(path.endswith(f"/{name}") for path in there)
    ]
    assert unknown == []


def _anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them of headings that all differ."""
    headings = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def _words(page: Path) -> int:
    return len(page.read_text("utf-8").split())
