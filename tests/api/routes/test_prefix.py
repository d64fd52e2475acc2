"""The service below a path of nginx, with the pages in a real browser."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect
from sentiment_service.cli.command import main
from sentiment_service.settings.sources import load_settings

from benchmarks.service import free_port
from tests.conftest import FLAGS, Serve, Start
from tests.support.serving import Process, eventually, installed

# With a path behind the address, nginx removes the prefix; without one, it passes it on.
CONFIG = """
events {{}}
http {{
    access_log off;
    server {{
        listen 127.0.0.1:{port};
        location = /removed {{ return 308 /removed/; }}
        location /removed/ {{ proxy_pass {url}/; }}
        location /kept {{ proxy_pass {url}; }}
    }}
}}
"""


@pytest.fixture(scope="module")
def proxy(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of nginx, in front of a service that knows one of the prefixes."""
    program = installed("nginx", "nginx-light")
    directory, port = tmp_path_factory.mktemp("nginx"), free_port()
    with Process("--model", str(bundle), *FLAGS, "--root-path", "/kept") as process:
        config = CONFIG.format(port=port, url=process.url)
        (directory / "nginx.conf").write_text(config, encoding="utf-8")
        settings = f"daemon off; pid {directory}/pid; error_log {directory}/log;"
        command = [program, "-p", str(directory), "-c", "nginx.conf", "-g", settings]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
            try:
                eventually(lambda: (directory / "pid").exists())
                yield f"http://127.0.0.1:{port}"
            finally:
                running.terminate()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page whose scripts must not fail, and whose requests must all be answered."""
    context = browser.new_context()
    page, faults = context.new_page(), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text))
    page.set_default_timeout(30_000)
    yield page
    context.close()
    assert faults == []


@pytest.mark.parametrize("prefix", ["removed", "kept"])
def test_the_page_works_below_a_prefix(page: Page, proxy: str, prefix: str) -> None:
    """It classifies a text, also where the address has no slash at its end."""
    page.goto(f"{proxy}/{prefix}")
    page.get_by_role("textbox", name="Your text").fill("love")
    page.get_by_role("button", name="Classify").click()
    expect(page.locator("#answer")).to_contain_text("positive", timeout=30_000)


@pytest.mark.parametrize("prefix", ["removed", "kept"])
def test_try_it_out_works_below_a_prefix(page: Page, proxy: str, prefix: str) -> None:
    """Swagger UI sends the example to the route below the prefix, and shows the answer."""
    page.goto(f"{proxy}/{prefix}/docs")
    box = page.locator(".opblock-post").filter(
        has=page.locator('.opblock-summary-path[data-path="/classify"]')
    )
    box.locator(".opblock-summary-control").click()
    box.get_by_role("button", name="Try it out").click()
    box.get_by_role("button", name="Execute").click()
    answer = box.locator(".live-responses-table")
    expect(answer.locator(".response-col_status").last).to_contain_text("200", timeout=30_000)
    expect(box.locator(".request-url")).to_contain_text(f"{proxy}/{prefix}/classify")


def test_paths_below_the_prefix_are_those_of_the_service(proxy: str) -> None:
    """Both forms answer, and what only begins like the prefix does not."""
    for path in ("/kept/health", "/removed/health", "/kept/v2/models/tiny"):
        assert httpx2.get(proxy + path).status_code == 200
    assert httpx2.get(f"{proxy}/keptX/health").status_code == 404


def test_the_prefix_alone_is_a_request_as_others(start: Start) -> None:
    """It leads to the page, needs no key, has its line in the log, and counts for the rate."""
    flags = ("--root-path", "/a/b", "--api-keys", "first-key-1", "--rate-limit", "2/hour")
    process = start(*flags, "--access-log", "on", "--log-format", "json")
    answers = [process.client.get("/a/b") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [307, 307, 429]
    assert answers[0].headers["location"] == "b/"
    assert "x-request-id" in answers[0].headers
    assert process.client.post("/a/b").status_code == 401
    log = process.terminate()
    assert log.count('"route":"/a/b"') == 3


def test_the_prefix_alone_takes_texts(serve: Serve) -> None:
    """As / does: clients of clouds send them to the address that they are given, and no further."""
    client = serve(root_path="/a/b")
    aws = {"x-amz-target": "Comprehend_20171127.DetectSentiment"}
    for body, headers in (
        ({"inputs": "love"}, {}),
        ({"Text": "love", "LanguageCode": "en"}, aws),
    ):
        answer = client.post("/a/b", json=body, headers=headers, follow_redirects=False)
        assert answer.json() == client.post("/", json=body, headers=headers).json()
    assert client.put("/a/b").headers["allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize("given", ["sentiment", "/sentiment", "/sentiment/"])
def test_slashes_around_the_prefix_do_not_matter(given: str) -> None:
    """The prefix begins with a slash and ends without one; special characters are refused."""
    assert load_settings({"root_path": given}).root_path == "/sentiment"
    with pytest.raises(ValueError, match=r"^--root-path: give a path without special characters"):
        load_settings({"root_path": f"{given}?a"})


@pytest.mark.parametrize("prefix", ["/health", "/v1", "/classify"])
def test_a_prefix_that_hides_routes_ends_the_start(
    prefix: str, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names a path of the service that nobody would reach."""
    flags = ["--port", "0", "--model", str(bundle), "--root-path", prefix]
    assert main(["serve", *flags]) == 1
    assert f"--root-path: {prefix}" in capsys.readouterr().err
