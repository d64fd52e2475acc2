"""The documentation at /docs, in a real browser on a real server."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.api.conftest import faults
from tests.conftest import FLAGS
from tests.support.serving import Process

KEY = "correct-horse"
WEB = Path(__file__).parents[3] / "app/sentiment_service/web"

# The machine may be busy.
expect.set_options(timeout=15_000)


@pytest.fixture(scope="module")
def tiny(bundle: Path) -> Iterator[str]:
    """The URL of a server of the tiny bundle that needs a key."""
    with Process("--model", str(bundle), *FLAGS, "--api-keys", KEY) as process:
        yield process.url


@pytest.fixture
def page(browser: Browser, tiny: str) -> Iterator[Page]:
    """The open page. All other addresses are blocked, and no script may fail."""
    refused: list[str] = []
    said: list[str] = []

    def refuse(route: Route) -> None:
        refused.append(route.request.url)
        route.abort()

    context = browser.new_context()
    context.route(lambda url: not url.startswith(tiny), refuse)
    page = context.new_page()
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text))
    page.set_default_timeout(30_000)
    page.goto(f"{tiny}/docs")
    yield page
    context.close()
    assert (refused, said) == ([], [])


def operation(page: Page, method: str, path: str) -> Locator:
    """The open box of an operation."""
    box = page.locator(f".opblock-{method}").filter(
        has=page.locator(f'.opblock-summary-path[data-path="{path}"]')
    )
    box.locator(".opblock-summary-control").click()
    return box


def test_all_operations_are_shown(page: Page, tiny: str) -> None:
    """Without internet, the page has each operation of the OpenAPI document.

    Closed, and with an operation open, it breaks none of axe's rules.
    """
    paths = httpx2.get(f"{tiny}/openapi.json").json()["paths"]
    described = {(method, path) for path, methods in paths.items() for method in methods}
    expect(page.locator(".opblock")).to_have_count(len(described))
    for method, path in described:
        shown = page.locator(f'.opblock-{method} .opblock-summary-path[data-path="{path}"]')
        expect(shown).to_have_count(1)
    assert faults(page) == []
    operation(page, "get", "/v1/models/{name}")
    expect(page.locator(".opblock-body")).to_be_visible()
    assert faults(page) == []


def test_a_request_can_be_tried(page: Page) -> None:
    """With a key, "Try it out" sends the example as it is, and shows the answer."""
    page.get_by_role("button", name="Authorize").click()
    page.locator(".auth-container input").fill(KEY)
    page.locator(".auth-container .btn.authorize").click()
    page.locator(".btn-done").click()
    box = operation(page, "post", "/classify")
    box.get_by_role("button", name="Try it out").click()
    box.get_by_role("button", name="Execute").click()
    answer = box.locator(".live-responses-table")
    expect(answer.locator(".response-col_status").last).to_contain_text("200")
    expect(answer).to_contain_text("logits")
    assert faults(page) == []


@pytest.mark.parametrize(("name", "length"), [("-bundle.js", 1_732_839), (".css", 187_956)])
def test_swagger_ui_is_sent_as_it_lies(tiny: str, name: str, length: int) -> None:
    """All clients get the stored file, which is gzip."""
    url = f"{tiny}/docs/swagger-ui/swagger-ui{name}"
    (file,) = (WEB / "docs" / "swagger-ui").glob(f"swagger-ui{name}.gz")
    for accepted in ("gzip, br", "br"):
        with httpx2.stream("GET", url, headers={"accept-encoding": accepted}) as answer:
            raw = b"".join(answer.iter_raw())
        assert (answer.status_code, answer.headers["content-encoding"]) == (200, "gzip")
        assert answer.headers["content-type"].startswith("text/")
        assert raw == file.read_bytes()
    assert len(gzip.decompress(raw)) == length
