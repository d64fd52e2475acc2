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


HALF_A_BODY = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc"


@pytest.mark.parametrize(
    ("sent", "status", "body"),
    [
        (HALF_A_BODY, "HTTP/1.1 200 OK (cut off)", b"abc"),
        (HALF_A_BODY[:9], "cut off", HALF_A_BODY[:9]),
    ],
)
def test_an_answer_that_is_cut_off_is_noted(sent: bytes, status: str, body: bytes) -> None:
    """In its head or in its body. The recorded answers have whole ones of every kind."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(30)
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
    assert [(one.status, one.body) for one in found] == [(status, body)]
    assert connection == "closed"
