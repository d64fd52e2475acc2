"""Bad requests: each gets a clear problem with the right status, and the next request works."""

import pytest
from fastapi.testclient import TestClient
from sentiment_service.errors import Overloaded
from sentiment_service.results import every_prediction

from tests.support.raw_http import HEAD, connect, port_of
from tests.support.streams import chunk


def test_a_body_of_unknown_length_is_refused_when_it_grows_too_large(url: str) -> None:
    """The bytes of a chunked body are counted as they arrive, so it is refused before its end."""
    part = chunk(b" " * 0x10000)
    with connect(port_of(url), HEAD + b"transfer-encoding: chunked\r\n\r\n") as connection:
        for _ in range(33):  # one more than the limit holds
            connection.sendall(part)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


def test_the_error_of_one_text_is_not_changed_for_another() -> None:
    """If texts share an error object, adding a text's index to the message does not change it.

    All else that the error says stays.
    """
    shared = Overloaded("no room", reason="queue_full", retry_after_s=3.0)
    for _ in range(2):
        with pytest.raises(Overloaded, match="text 0, counted from 0: no room") as raised:
            every_prediction([shared, shared])
        assert (raised.value.rejection, raised.value.retry_after_s) == ("queue_full", 3.0)
    assert shared.detail == str(shared) == "no room"


@pytest.mark.parametrize(("method", "path"), [("GET", "/classify"), ("PUT", "/tokenize")])
def test_a_wrong_method_shows_a_call(client: TestClient, method: str, path: str) -> None:
    """Who opens a URL in a browser sees the methods and a call that works, with this address."""
    answer = client.request(method, path, headers={"host": "example.org:81"})
    assert answer.status_code == 405
    detail = answer.json()["detail"]
    assert detail.startswith(f"allowed here: POST; for example: curl http://example.org:81{path} ")
    body = detail.rpartition("-d '")[2].removesuffix("'")
    sent = {"content-type": "application/json"}
    assert client.post(path, content=body, headers=sent).status_code == 200
