"""Fixtures: a browser, and one server of the tiny model for all tests that only ask it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.conftest import FLAGS
from tests.support.serving import Process


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


@pytest.fixture(scope="session")
def url(bundle: Path) -> Iterator[str]:
    """The URL of a server of the tiny model."""
    with Process("--model", str(bundle), *FLAGS) as process:
        yield process.url
