"""A browser for the pages."""

import os
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.serving import installed

AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    chromium = installed("chromium", "chromium")
    # Chromium's sandbox refuses root.
    flags = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield browser
        browser.close()


def axe_violations(page: Page) -> list[Any]:
    """What axe-core finds: the rule, and the first element that breaks it."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"{AXE}; null")
    found = page.evaluate("axe.run()")["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found]
