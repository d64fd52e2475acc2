"""The garbage collector is not needed for answered requests."""

import gc

from fastapi.testclient import TestClient
from sentiment_service.http.routes import HttpExchange
from sentiment_service.server.http_protocol import HttpProtocol

from tests.conftest import Listen
from tests.support.raw_http import BODY, connect, exchange, post, read_answer
from tests.support.serving import Gate, eventually


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
