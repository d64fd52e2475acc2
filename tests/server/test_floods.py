"""What clients send to keep the service busy with nothing: it costs the others little."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.conftest import FLAGS
from tests.support.raw_http import HEAD, HEALTH, connect, post, read_all, read_answer, statuses
from tests.support.serving import Process

KEY = "a-key-of-a-client"
LAST = HEALTH[:-2] + b"connection: close\r\n\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
CHUNKS = b"5\r\nabcde\r\n" * 100_000


@pytest.fixture(scope="module")
def process(bundle: Path) -> Iterator[Process]:
    """A real server that asks for a key."""
    with Process("--model", str(bundle), *FLAGS, "--api-keys", KEY) as process:
        yield process


def _send_for(seconds: float, client: socket.socket, data: bytes) -> int:
    """Send the data again and again, and read nothing; how many bytes were taken."""
    client.setblocking(False)
    until, sent, left = time.monotonic() + seconds, 0, memoryview(data)
    while time.monotonic() < until:
        try:
            taken = client.send(left)
        except BlockingIOError:
            time.sleep(0.001)
        except OSError:
            break
        else:
            sent += taken
            left = left[taken:] or memoryview(data)
    client.settimeout(30)
    return sent


def test_lines_without_a_request_are_refused(process: Process) -> None:
    """One end of a line may come before a request; what follows it must be a request."""
    for lines in (b"\r\n\r\n", b"\n", b"\r\r\n", b"\r\n\n", b"\r\n" * 500_000):
        with connect(process.port) as client, suppress(ConnectionError):
            client.sendall(lines)
            assert statuses(read_all(client)) == [400]
    with connect(process.port, b"\r\n" + HEALTH + b"\r\n" + LAST) as client:
        assert statuses(read_all(client)) == [200, 200]


def test_a_refused_body_in_chunks_ends_the_connection(process: Process) -> None:
    """Its end could be found only by parsing it. The answer says that the connection closes."""
    with connect(process.port, CHUNKED + b"5\r\nabcde\r\n") as client:
        answer = read_all(client)
    assert statuses(answer) == [401]
    assert b"\r\nconnection: close\r\n" in answer


def test_the_rest_of_a_refused_body_is_not_parsed(process: Process) -> None:
    """To drop tiny chunks costs a tenth, at most, of the 0.06 s that parsing a megabyte takes."""
    with connect(process.port, CHUNKED) as client:
        assert read_answer(client)[0] == 401
        before = process.cpu_seconds()
        sent = _send_for(2, client, CHUNKS)
        spent = process.cpu_seconds() - before
    assert sent > 5_000_000
    assert spent < 0.006 * sent / 1_000_000 + 0.05, f"{spent} s for {sent} bytes"


@pytest.mark.parametrize("cut", [0, 1, 1_000])
def test_behind_a_refused_body_the_next_request_is_answered(process: Process, cut: int) -> None:
    """The end of a body with a length is known, wherever its last packet is cut."""
    size = 2_000_000
    body = HEAD + b"content-length: %d\r\n\r\n" % size + b"a" * size
    sent = body + HEALTH + post(b"{}", b"authorization: Bearer " + KEY.encode()) + LAST
    with connect(process.port) as client:
        client.sendall(sent[: len(body) - 500])
        assert read_answer(client)[0] == 401
        client.sendall(sent[len(body) - 500 : len(body) + cut])
        client.sendall(sent[len(body) + cut :])
        assert statuses(read_all(client)) == [200, 422, 200]


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(HEAD + b"content-length: 60000\r\n\r\n" + b"a" * 60_000, id="a refused body"),
        pytest.param(HEALTH[:-2] + b"x: %b\r\n\r\n" % (b"a" * 30_000), id="a long head"),
        pytest.param(HEALTH.replace(b" HTTP", b"?%b HTTP" % (b"a" * 30_000)), id="a long path"),
    ],
)
def test_a_kept_connection_has_nothing_of_its_last_request(process: Process, first: bytes) -> None:
    """Hundreds of idle connections take a few kilobytes each, whatever they have sent."""
    number = 400
    with ExitStack() as stack:

        def open_all(count: int) -> None:
            for _ in range(count):
                client = stack.enter_context(connect(process.port, first))
                assert read_answer(client)[0] in {200, 401}

        open_all(50)
        before = process.memory_bytes()
        open_all(number)
        assert process.memory_bytes() - before < number * 25_000


def test_one_connection_gets_few_turns(process: Process) -> None:
    """Requests without texts that are sent ahead begin at a limited rate, and in order."""
    with connect(process.port) as client:
        client.sendall(HEALTH)
        assert read_answer(client)[0] == 200
        before, began = process.cpu_seconds(), time.monotonic()
        client.sendall(HEALTH * 300 + LAST)
        assert statuses(read_all(client)) == [200] * 301
        took = time.monotonic() - began
    assert took > 300 * 0.005 / 4 * 0.9
    assert process.cpu_seconds() - before < 0.75 * took


def test_what_is_sent_ahead_waits_with_the_client(process: Process) -> None:
    """For each answer, the server reads no more of it than the request that was answered."""
    with connect(process.port) as client:
        before = process.memory_bytes()
        sent = _send_for(2, client, HEALTH * 2_000)
        assert process.memory_bytes() - before < 2_000_000
        assert sent < 12_000_000


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(HEALTH, id="a probe"),
        pytest.param(HEALTH.replace(b"/health/live", b"/models"), id="a read"),
        pytest.param(post(b'{"inputs": "a"}', b"x: y"), id="a refusal"),
    ],
)
def test_a_connection_for_each_request_gets_few_turns(process: Process, request_: bytes) -> None:
    """What brings no work begins at a limited rate on new connections, too, but for the first."""
    number = 300
    with ExitStack() as stack:
        began = time.monotonic()
        for _ in range(number // 10):
            clients = [stack.enter_context(connect(process.port, request_)) for _ in range(10)]
            for client in clients:
                assert read_answer(client)[0] in {200, 401}
        took = time.monotonic() - began
    assert took > (number - 100) * 0.005 / 4 * 0.9


def test_answers_that_nobody_reads_are_bounded_together(bundle: Path) -> None:
    """Those who have not read for the longest time are cut off; the last can read its answer."""
    limits = ("--max-inflight-bytes", "4000000", "--max-body-bytes", "2000000")
    texts = b",".join([b'"%b"' % (b"a " * 20_000)] * 16)
    asked = post(b'{"inputs": [%b]}' % texts, b"connection: close")
    asked = asked.replace(b"/classify", b"/tokenize")  # an answer of 650 kB
    with Process("--model", str(bundle), *FLAGS, *limits) as process, ExitStack() as stack:
        clients = []
        for _ in range(12):
            clients.append(stack.enter_context(connect(process.port, asked, buffer_bytes=4_096)))
            assert clients[-1].recv(1)
        assert len(read_all(clients[0])) < 400_000
        assert len(read_all(clients[-1])) > 600_000
