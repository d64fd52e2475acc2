"""A browser for the pages."""

import os
from collections.abc import Iterator
from importlib.resources import files

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.serving import installed

AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
# The machine may be busy.
expect.set_options(timeout=30_000)


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


class Visits:
    """Opens pages, and records their requests and errors."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.requests: list[str] = []
        self.errors: list[str] = []

    def open(self, url: str, *, example: bool = True) -> Page:
        """Open the page of a server and wait until it has answered its own example."""
        page = self.context.new_page()
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text))
        with page.expect_response("**/models"):
            page.goto(url)
        if example:
            expect(page.locator("#result article")).to_be_visible()
            expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
            expect(page.get_by_text("Computing the effect")).to_have_count(0)
        return page


def faults(page: Page) -> list[tuple[str, str]]:
    """What axe-core finds, once it is loaded: each rule, and the first element that breaks it."""
    page.evaluate(f"{AXE}; null")
    violations = page.evaluate("axe.run().then((found) => found.violations)")
    return [(fault["id"], fault["nodes"][0]["html"]) for fault in violations]


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """What the pages of a module share, which keep nothing but in their own tabs."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    yield context
    context.close()


@pytest.fixture
def visits(context: BrowserContext) -> Iterator[Visits]:
    """Every test also proves that all requests go to the server, and that no script fails."""
    visits = Visits(context)
    yield visits
    for page in context.pages:
        page.close()
    assert all(url.startswith("http://127.0.0.1:") for url in visits.requests)
    # The console also lists answers with an error status, and that a test came before autofocus.
    expected = ("Failed to load resource", "Autofocus processing was blocked")
    assert not [error for error in visits.errors if not error.startswith(expected)]
