"""Pages, descriptions and metrics, for which everybody may ask."""

import asyncio
import gzip
import time
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from sentiment_service.http.operations import Scrapes

from tests.conftest import Serve
from tests.support.virtual_time import Simulation


@pytest.mark.parametrize(
    "path",
    [
        "/docs/a/%2e%2e/docs.js",
        "/docs/a/..%2fdocs.js",
        "/docs/swagger-ui/%2e%2e/docs.js",
        "/docs/%2e%2e/page.js",
        "/docs//index.html",
        "/docs/a/%2e%2e/swagger-ui/swagger-ui-bundle.js",
        "/docs/a/%2e%2e/swagger-ui/swagger-ui-bundle.js.gz",
        "/docs/swagger-ui/swagger-ui-bundle.js.gz",
        "/web/%2e%2e%2fmain.py",
    ],
)
def test_a_file_has_one_path(client: TestClient, path: str) -> None:
    """A path with ``..`` or ``//`` leads to no file, nor does the name of a packed one with .gz."""
    assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    "url", ["/", "/web/page.js", "/docs/docs.js", "/docs/swagger-ui/swagger-ui-bundle.js"]
)
def test_head_has_the_headers_of_get(client: TestClient, url: str) -> None:
    """HEAD has the same length and ETag, and GET with this ETag is answered with 304."""
    headers = {"accept-encoding": "gzip", "accept": "text/html"}
    asked, got = client.head(url, headers=headers), client.get(url, headers=headers)
    etag = got.headers["etag"]
    assert (asked.status_code, asked.headers["etag"]) == (200, etag)
    assert asked.headers["content-length"] == got.headers["content-length"]
    again = client.get(url, headers={**headers, "if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("accept", ["text/html", "*/*"])
@pytest.mark.parametrize("docs", ["on", "off"])
def test_the_page_varies_with_what_is_accepted(serve: Serve, docs: str, accept: str) -> None:
    """A cache keeps the page and the status in JSON apart; other files are the same for all."""
    client = serve(docs=docs)
    assert client.get("/", headers={"accept": accept}).headers["vary"] == "Accept"
    other = client.get("/web/page.js", headers={"accept": accept}).headers
    assert other["vary"] == "Accept-Encoding"


@pytest.mark.parametrize(
    ("asked", "encoding"),
    [
        ("gzip, deflate, br", "br"),
        ("GZIP;q=0.5", "gzip"),
        ("br;q=0, gzip", "gzip"),
        ("br; q=0.0, *", "zstd"),
        ("*;q=0", None),
        ("", None),
    ],
)
def test_the_client_chooses_among_encodings(
    client: TestClient, asked: str, encoding: str | None
) -> None:
    """Qualities of 0 exclude an encoding, and * stands for all others."""
    answer = client.get("/web/page.js", headers={"accept-encoding": asked})
    assert answer.headers.get("content-encoding") == encoding


@pytest.mark.parametrize("path", ["/openapi.json", "/metrics"])
def test_what_is_compressed_beforehand_is_unpacked_for_others(
    client: TestClient, path: str
) -> None:
    """A client gets gzip if it accepts it, and otherwise the text."""
    packed = client.get(path, headers={"accept-encoding": "br, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    for others in ("br", "br, gzip;q=0"):
        plain = client.get(path, headers={"accept-encoding": others})
        assert "content-encoding" not in plain.headers
        assert plain.headers["vary"] == "Accept-Encoding"
        assert plain.text[:100] == packed.text[:100]


def test_the_openapi_document_is_made_once(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second client gets the same bytes; nothing is compressed for it."""
    first = client.get("/openapi.json")
    monkeypatch.setattr(gzip, "compress", None)
    assert client.get("/openapi.json").content == first.content


class Registry(CollectorRegistry):
    """One gauge, which counts the renderings."""

    def __init__(self) -> None:
        super().__init__()
        self.renderings = 0

    def collect(self) -> Iterator[Metric]:
        self.renderings += 1
        yield GaugeMetricFamily("renderings", "How many.", self.renderings)


class Gpus:
    async def refresh(self) -> None:
        pass


class Scraper:
    """Scrapes, on an event loop whose time is virtual, that take ``took_s`` of CPU time."""

    def __init__(self, took_s: float = 0.0) -> None:
        self.registry = Registry()
        served: Any = SimpleNamespace(registry=self.registry, gpus=Gpus())
        self._scrapes = Scrapes(served, cpu_time=count(0, took_s).__next__)

    async def scrape(self, accept: str = "") -> httpx2.Response:
        request: Any = SimpleNamespace(headers={"accept": accept})
        answer = await self._scrapes.answer(request)
        return httpx2.Response(
            answer.status_code, headers=answer.headers, content=bytes(answer.body)
        )


ACCEPTED = [
    "",
    "*/*",
    "text/plain; version=1.0.0; escaping=dots",
    "text/html, text/plain; version=0.0.4, application/openmetrics-text",
    "application/openmetrics-text",
    "application/openmetrics-text; version=x",
    "application/openmetrics-text; version=1.0.0; escaping=allow-utf-8; q=0.6, text/plain; q=0.5",
    *(f"application/openmetrics-text; version={version}.0" for version in range(1, 200)),
]


def test_scrapes_that_come_together_share_a_rendering() -> None:
    """Whatever 206 of them accept, there is one rendering of each of two forms."""
    scraper = Scraper()

    async def scrape_all() -> list[httpx2.Response]:
        return await asyncio.gather(*map(scraper.scrape, ACCEPTED))

    answers = Simulation().run(scrape_all())
    assert {answer.status_code for answer in answers} == {200}
    kinds = [answer.headers["content-type"].partition(";")[0] for answer in answers]
    assert kinds == ["text/plain"] * 4 + ["application/openmetrics-text"] * 202
    assert len({answer.content for answer in answers}) == scraper.registry.renderings == 2


@pytest.mark.parametrize(
    ("took_s", "formats", "waits_s"), [(0.003, 1, 0.03), (0.02, 1, 0.05), (0.003, 2, 0.06)]
)
def test_scrapes_take_a_small_share_of_the_time(
    took_s: float, formats: int, waits_s: float
) -> None:
    """After a rendering, ten times as long is none, 50 ms at most; each scrape is new.

    This holds for both formats together: a flood cannot take more by asking for each of them.
    """
    scraper = Scraper(took_s)

    async def scrape() -> list[float]:
        now = asyncio.get_running_loop().time
        began, waited = now(), []
        await asyncio.gather(*map(scraper.scrape, ["", "application/openmetrics-text"][:formats]))
        for number in range(formats + 1, formats + 4):
            assert f"renderings {number}.0" in (await scraper.scrape()).text
            waited.append(now() - began)
            began = now()
        return waited

    rest_s = waits_s / formats
    assert Simulation().run(scrape()) == pytest.approx([waits_s, rest_s, rest_s])


def test_metrics_are_answered_whatever_the_year_is(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that is wrong, or beyond 2106, has no place in a gzip file."""
    monkeypatch.setattr(time, "time", lambda: 2.0**33)
    assert client.get("/metrics").status_code == 200
