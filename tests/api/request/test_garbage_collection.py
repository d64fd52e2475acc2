"""The garbage collector: paused while a body is parsed, and not needed for answered requests."""

import gc
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from app.api.body import collector_paused, parse
from app.api.http_exchange import HttpExchange
from app.server.http_protocol import HttpProtocol
from tests.conftest import Listen
from tests.support.raw_http import BODY, connect, exchange, post, read_answer
from tests.support.serving import Gate, eventually


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    gc.enable()


def test_it_is_paused_and_goes_on() -> None:
    """The collector goes on after the pause, even after an error."""

    def fail() -> None:
        with collector_paused():
            assert not gc.isenabled()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()


def test_what_another_turned_off_stays_off(client: TestClient) -> None:
    """A request does not turn on the collector if the application has turned it off."""
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()
    assert client.post("/classify", json={"inputs": "love"}).status_code == 200
    headers = {"content-type": "application/json"}
    assert client.post("/classify", content=b"{", headers=headers).status_code == 422
    assert not gc.isenabled()


def test_overlapping_pauses_end_with_the_last() -> None:
    """Of two overlapping pauses, the first to end leaves the collector off for the other."""
    inside, leave = threading.Event(), threading.Event()

    def pause() -> None:
        with collector_paused():
            inside.set()
            assert leave.wait(30)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(pause)
        assert inside.wait(30)
        with collector_paused():
            pass
        assert not gc.isenabled()
        leave.set()
        other.result(30)
    assert gc.isenabled()


def test_parsing_pauses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of many lists is parsed without a single collection."""
    seen: list[bool] = []

    def decode(text: str | bytes) -> object:
        seen.append(gc.isenabled())
        return json.loads(text)

    for decoder in ("body.FAST_DECODER", "strict_json.DECODER"):
        monkeypatch.setattr(f"app.api.{decoder}", SimpleNamespace(decode=decode))
    assert parse(b"[[]]", "it") == [[]]
    assert seen == [False]
    assert gc.isenabled()


def test_an_answered_request_is_forgotten_at_once(client: TestClient) -> None:
    """Nothing of it waits for the collector, and nothing of the error that was its answer."""
    gc.collect()
    gc.disable()
    try:
        for path in ("/classify", "/v2", "/none"):
            client.post(path, json={"inputs": "love"})
            client.head(path)
        bad = [b"{", b'{"text": "a"}', b'{"inputs": "\xff"}', b'{"inputs": "%s"}' % (b"a" * 60_000)]
        headers = {"content-type": "application/json"}
        for body in bad:
            assert client.post("/classify", content=body, headers=headers).status_code == 422
        # By type: isinstance() asks each object, and one of PyTorch warns when it is asked.
        assert not [one for one in gc.get_objects() if type(one) is HttpExchange]
    finally:
        gc.enable()


def test_a_lost_connection_is_forgotten_at_once(listen: Listen, gate: Gate) -> None:
    """Nothing of it waits for the collector, whichever side has closed it, and when."""
    port = listen()
    gc.collect()
    gc.disable()
    with connect(port, post()) as client:
        assert read_answer(client)[0] == 200
    assert exchange(port, post(BODY, b"connection: close"))
    gate.close()
    with connect(port, post()):
        assert gate.reached.wait(30)
    gate.open.set()
    eventually(lambda: not [one for one in gc.get_objects() if type(one) is HttpProtocol])
