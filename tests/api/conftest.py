"""Fixtures for the tests of the pages."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    chromium = shutil.which("chromium")
    if not chromium:
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up("the pages' tests need chromium: apt-get install chromium")
    # Chromium's sandbox refuses root.
    flags = ["--no-sandbox"] if os.getuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield browser
        browser.close()
