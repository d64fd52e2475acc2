"""Pages, descriptions and metrics, for which everybody may ask."""

import asyncio
import gzip
import time
from itertools import count
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from prometheus_client.exposition import choose_encoder
from sentiment_service.api.routes import metrics


@pytest.mark.parametrize(
    "path",
    [
        "/docs/a/%2e%2e/docs.js",
        "/docs/a/..%2fdocs.js",
        "/docs/swagger-ui/%2e%2e/docs.js",
        "/docs/%2e%2e/page.js",
        "/docs/a/%2e%2e/swagger-ui/swagger-ui-bundle.js",
        "/docs/a/%2e%2e/swagger-ui/swagger-ui-bundle.js.gz",
        "/docs/swagger-ui/swagger-ui-bundle.js.gz",
        "/web/%2e%2e%2fmain.py",
    ],
)
def test_a_file_has_one_path(client: TestClient, path: str) -> None:
    """A path with ``..`` leads to no file, and a packed file has only the name without .gz."""
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("name", ["docs.js", "swagger-ui/swagger-ui-bundle.js"])
def test_head_has_the_headers_of_get(client: TestClient, name: str) -> None:
    """HEAD has the same length and ETag, and GET with this ETag is answered with 304."""
    url, headers = f"/docs/{name}", {"accept-encoding": "gzip"}
    asked, got = client.head(url, headers=headers), client.get(url, headers=headers)
    etag = got.headers["etag"]
    assert (asked.status_code, asked.headers["etag"]) == (200, etag)
    assert asked.headers["content-length"] == got.headers["content-length"]
    again = client.get(url, headers={**headers, "if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")


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
    plain = client.get(path, headers={"accept-encoding": "br"})
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


def test_scrapes_that_come_together_share_a_rendering(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty scrapes at once take a few renderings, each as new as the scrape that it answers."""
    renderings = 0

    def choose(accept: str) -> Any:
        encode, content_type = choose_encoder(accept)

        def count(registry: Any) -> bytes:
            nonlocal renderings
            renderings += 1
            return encode(registry)

        return count, content_type

    monkeypatch.setattr(metrics, "choose_encoder", choose)

    async def scrape_fifty_times() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(client.app)
        headers = {"accept-encoding": "gzip"}
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://x", headers=headers
        ) as scraper:
            return await asyncio.gather(*[scraper.get("/metrics") for _ in range(50)])

    assert client.portal is not None
    answers = client.portal.call(scrape_fifty_times)
    assert {answer.headers["content-encoding"] for answer in answers} == {"gzip"}
    assert all("sentiment_http_requests_total" in answer.text for answer in answers)
    assert 1 <= renderings <= 3
    assert client.get("/metrics").text != answers[0].text


@pytest.mark.parametrize(
    ("took_s", "formats", "waits_s"), [(0.003, 1, 0.03), (0.02, 1, 0.05), (0.003, 4, 0.12)]
)
def test_scrapes_take_a_small_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, took_s: float, formats: int, waits_s: float
) -> None:
    """After a rendering, ten times as long is none, 50 ms at most; each scrape is new.

    This holds for all formats together: a flood cannot take more by asking for each of them.
    """
    cpu, now, waits = count(0, took_s), 100.0, []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        nonlocal now
        waits.append(seconds)
        await sleep(0)
        now += max(0.0, seconds)

    async def refresh() -> None:
        pass

    async def scrape() -> list[bytes]:
        asyncio.get_running_loop().time = lambda: now  # type: ignore[method-assign]
        scrapes = metrics.Scrapes(served)
        requests: list[Any] = [SimpleNamespace(headers={"accept": str(n)}) for n in range(formats)]
        await asyncio.gather(*map(scrapes.answer, requests))
        return [bytes((await scrapes.answer(requests[0])).body) for _ in range(3)]

    monkeypatch.setattr(time, "thread_time", lambda: next(cpu))
    monkeypatch.setattr(asyncio, "sleep", note)
    monkeypatch.setattr(
        metrics, "choose_encoder", lambda accept: (lambda registry: b"%d" % len(waits), accept)
    )
    served: Any = SimpleNamespace(registry=None, gpus=SimpleNamespace(refresh=refresh))
    assert asyncio.run(scrape()) == [b"%d" % (formats + n) for n in (1, 2, 3)]
    rest_s = waits_s / formats
    assert waits[formats:] == pytest.approx([waits_s, rest_s, rest_s])
