"""The replay finds every change of an answer, and tolerates only what it says."""

import socket
import threading
from pathlib import Path

import pytest

from tests.replay.__main__ import main
from tests.replay.comparison import differences
from tests.replay.corpus import request
from tests.replay.recording import LONG, RecordedExchange, read, write
from tests.replay.sending import send

BODY = '{"label": "positive", "score": 0.95}'


def _record(
    body: str = BODY,
    *,
    status: str = "HTTP/1.1 200 OK",
    headers: tuple[str, ...] = ("content-type: application/json", "x-a: 1"),
    connection: str = "kept",
) -> RecordedExchange:
    lengthened = [*headers, f"content-length: {len(body)}"]
    answer = {"status": status, "headers": lengthened, "body": body}
    return {"answers": [answer], "connection": connection}  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("after", "what"),
    [
        (_record(status="HTTP/1.1 201 Created"), "status"),
        (_record(BODY.replace("positive", "negative")), "body"),
        (_record(BODY.replace(": ", ":")), "body"),
        (_record(BODY.replace("0.95", "0.96")), "body"),
        (_record(headers=("content-type: application/json", "x-a: 2")), "headers"),
        (_record(headers=("content-type: application/json",)), "headers"),
        (_record(connection="closed"), "connection"),
        ({"answers": [], "connection": "kept"}, "answers"),
    ],
)
@pytest.mark.parametrize("tolerance", [0.0, 1e-4])
def test_a_changed_answer_is_found(after: RecordedExchange, what: str, tolerance: float) -> None:
    """A change of status, body, headers, or the connection, is described."""
    (found,) = differences({"a": _record()}, {"a": after}, tolerance=tolerance)
    assert found.startswith(f"a\n  {what}")


def test_the_order_of_headers_counts_only_for_equal_names() -> None:
    """Headers with different names may change places; headers with the same name may not."""
    before = {"a": _record(headers=("x-a: 1", "x-b: 1", "x-a: 2"))}
    same = {"a": _record(headers=("x-b: 1", "x-a: 1", "x-a: 2"))}
    other = {"a": _record(headers=("x-a: 2", "x-b: 1", "x-a: 1"))}
    assert list(differences(before, same)) == []
    assert len(list(differences(before, other))) == 1


@pytest.mark.parametrize("padding", ["", "x" * LONG])
def test_the_tolerance_is_for_fractions(tmp_path: Path, padding: str) -> None:
    """Nearly the same score passes with a tolerance only, in a body kept as a digest as well.

    Another score never passes.
    """
    body = f'{BODY[:-1]}, "padding": "{padding}"}}'
    close = {"a": _record(body.replace("0.95", "0.95001"))}
    write(tmp_path / "recording", {"a": _record(body)})
    before = read(tmp_path / "recording")
    assert list(differences(before, close, tolerance=1e-4)) == []
    assert len(list(differences(before, close))) == 1
    other = {"a": _record(body.replace("0.95", "0.96"))}
    assert len(list(differences(before, other, tolerance=1e-4))) == 1


def test_a_request_that_only_one_recording_has_is_found() -> None:
    """A new request must be recorded."""
    (found,) = differences({}, {"a": _record()})
    assert found == "a\n  is only in the second"


def test_the_command_compares_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 0 for the same answers and 1 for others, which are printed."""
    before, after = tmp_path / "before", tmp_path / "after"
    write(before, {"a": _record(), "b": _record()})
    write(after, {"a": _record(), "b": _record(BODY.replace("0.95", "0.90"))})
    for other, code in ((before, 0), (after, 1)):
        assert main(["compare", str(before), str(other)]) == code
    assert "b\n  body:" in capsys.readouterr().out


INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
PROBE_ANSWER = b"HTTP/1.1 200 OK\r\nx-request-id: replay-probe\r\ncontent-length: 0\r\n\r\n"
HALF_A_BODY = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc"


@pytest.mark.parametrize(
    ("sent", "answers", "outcome"),
    [
        (CHUNKED, [("HTTP/1.1 200 OK", b"abc")], "closed"),
        (
            INTERIM + CHUNKED,
            [("HTTP/1.1 100 Continue", b""), ("HTTP/1.1 200 OK", b"abc")],
            "closed",
        ),
        (CHUNKED + PROBE_ANSWER, [("HTTP/1.1 200 OK", b"abc")], "kept"),
        (b"HTTP/1.0 200 OK\r\n\r\nabc", [("HTTP/1.0 200 OK", b"abc")], "closed"),
        (HALF_A_BODY, [("HTTP/1.1 200 OK (cut off)", b"abc")], "closed"),
        (HALF_A_BODY[:9], [("cut off", HALF_A_BODY[:9])], "closed"),
        (b"", [], "closed"),
    ],
)
def test_all_that_a_server_sends_is_read(
    sent: bytes, answers: list[tuple[str, bytes]], outcome: str
) -> None:
    """Interim answers, chunks, half an answer, and whether the connection is kept."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        found, connection = send(url, request("a", "GET /"))
        thread.join()
    assert [(one.status, one.body) for one in found] == answers
    assert connection == outcome


def test_a_silent_server_is_noted() -> None:
    """A server that does not answer holds up the replay for a limited time only."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert send(url, request("a", "GET /"), timeout_s=0.1) == ([], "silent for 0.1 s")
