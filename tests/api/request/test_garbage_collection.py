"""The garbage collector: paused while a body is parsed, and not needed for answered requests."""

import gc
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
from fastapi.testclient import TestClient

from app.api import json_document
from app.api.http_exchange import HttpExchange
from app.api.json_document import collector_paused, parse
from app.server.http_protocol import HttpProtocol
from tests.conftest import FLAGS
from tests.support.serving import (
    BODY,
    Gate,
    Process,
    before_inference,
    connect,
    eventually,
    exchange,
    metric,
    post,
    read_answer,
)

# The command, whose batches never end; it says on standard error when all objects are looked at.
COLLECTIONS = before_inference(
    """
    if number > 1:  # behind the batches of the warm-up
        import gc, os
        gc.callbacks.append(lambda phase, info: info["generation"] == 2 and os.write(2, b"full\\n"))
        time.sleep(600)
"""
)


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

    for decoder in ("FAST_DECODER", "DECODER"):
        monkeypatch.setattr(json_document, decoder, SimpleNamespace(decode=decode))
    assert parse(b"[[]]", "it") == [[]]
    assert seen == [False]
    assert gc.isenabled()


def test_an_answered_request_is_forgotten_at_once(client: TestClient) -> None:
    """Nothing of it waits for the collector, which would have to run more often."""
    gc.collect()
    gc.disable()
    try:
        for path in ("/classify", "/v2", "/none"):
            client.post(path, json={"inputs": "love"})
            client.head(path)
        # By type: isinstance() asks each object, and one of PyTorch warns when it is asked.
        assert not [one for one in gc.get_objects() if type(one) is HttpExchange]
    finally:
        gc.enable()


def test_a_lost_connection_is_forgotten_at_once(listen: Callable[..., int], gate: Gate) -> None:
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


def test_requests_that_wait_are_not_looked_at_again_and_again(bundle: Path) -> None:
    """With 20,000 texts in the queue, the collector has not once looked at all objects."""
    flags = ("--model", str(bundle), *FLAGS, "--max-queue-tokens", "1000000")
    with ExitStack() as stack:
        process = stack.enter_context(Process(*flags, command=COLLECTIONS))
        for number in range(80):
            texts = [f"{number} {index}" for index in range(250)]
            body = json.dumps({"inputs": texts}).encode()
            stack.enter_context(connect(process.port, post(body)))
        client = stack.enter_context(httpx2.Client(base_url=process.url, timeout=30))
        name = "sentiment_queue_texts"
        eventually(lambda: metric(client, name, model="tiny") >= 19_000)
        assert "full" not in process.log
