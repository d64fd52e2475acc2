"""Pages, descriptions and metrics: everybody may ask for them, so they are made once."""

import asyncio
import time
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from prometheus_client.exposition import choose_encoder

from app.api import kept_answers


@pytest.mark.parametrize("encoding", ["br", "gzip", "zstd", "identity"])
def test_an_answer_that_does_not_change_is_made_once(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """The second client gets the same bytes, without another compression."""
    path, headers = "/openapi.json", {"accept-encoding": encoding}
    first = client.get(path, headers=headers)
    monkeypatch.setattr(kept_answers, "CompressMiddleware", None)
    again = client.get(path, headers=headers)
    assert again.headers.get("content-encoding", "identity") == encoding
    assert again.content == first.content
    assert "accept-encoding" in again.headers["vary"].lower()


def test_no_path_makes_another_copy_of_a_file(client: TestClient) -> None:
    """However many paths lead to a file, nothing is kept for them; packed files have one name."""
    packed = "swagger-ui/swagger-ui-bundle.js"
    kept = client.app.state.kept._kept  # type: ignore[attr-defined]
    before = len(kept)
    for number in range(5):
        assert client.get(f"/docs/a{number}/%2e%2e/{packed}.gz").status_code == 404
        assert client.get(f"/docs/a{number}/%2e%2e/docs.js").status_code in (200, 404)
    assert client.get(f"/docs/{packed}.gz").status_code == 404
    assert client.get("/web/page.js").headers["content-encoding"]
    assert len(kept) == before
    for encoding in ("gzip", "identity"):
        answer = client.get(f"/docs/{packed}", headers={"accept-encoding": encoding})
        assert answer.headers.get("content-encoding", "identity") == encoding
        assert "SwaggerUIBundle" in answer.text


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
    answer = client.get("/openapi.json", headers={"accept-encoding": asked})
    assert answer.headers.get("content-encoding") == encoding


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

    monkeypatch.setattr(kept_answers, "choose_encoder", choose)

    async def scrape_fifty_times() -> list[httpx2.Response]:
        transport = httpx2.ASGITransport(client.app)
        headers = {"accept-encoding": "br"}
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://x", headers=headers
        ) as scraper:
            return await asyncio.gather(*[scraper.get("/metrics") for _ in range(50)])

    assert client.portal is not None
    answers = client.portal.call(scrape_fifty_times)
    assert {answer.headers["content-encoding"] for answer in answers} == {"br"}
    assert all("sentiment_http_requests_total" in answer.text for answer in answers)
    assert 1 <= renderings <= 3
    assert client.get("/metrics").text != answers[0].text


@pytest.mark.parametrize(("took_s", "waits_s"), [(0.003, 0.05), (0.02, 0.05)])
def test_scrapes_take_a_small_share_of_the_time(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, took_s: float, waits_s: float
) -> None:
    """A scrape waits ten times as long as the last rendering took, 50 ms at most, and is new."""
    waits: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    def render_slowly(registry: Any) -> bytes:
        until = time.thread_time() + took_s
        while time.thread_time() < until:
            pass
        return b"%d" % len(waits)

    monkeypatch.setattr(asyncio, "sleep", note)
    monkeypatch.setattr(kept_answers, "choose_encoder", lambda accept: (render_slowly, "text/a"))
    answers, rests = [], []
    for _ in range(6):  # on a busy machine, a part of the rest may be over when a scrape arrives
        answers.append(client.get("/metrics").content)
        rests.append(waits[-1])
    assert len({*answers}) == 6
    assert waits_s / 2 < max(rests[1:]) <= waits_s
