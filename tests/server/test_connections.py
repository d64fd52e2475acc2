"""Connections: pipelining, early refusals, clients that do not read, and floods of nothing."""

import asyncio
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx2
import pytest
import uvicorn
from sentiment_service.server.connection import Buffers, Connection
from sentiment_service.server.http_protocol import HttpProtocol
from sentiment_service.server.server import Server

from tests.conftest import FLAGS, Listen, Start, served
from tests.support.raw_http import (
    BODY,
    HEAD,
    HEALTH,
    connect,
    exchange,
    port_of,
    post,
    read_all,
    read_answer,
    statuses,
)
from tests.support.serving import Gate, Process, eventually, metric, patched

KEY = "a-key-of-a-client"
CLOSING = post(BODY, b"connection: close")
LAST = HEALTH[:-2] + b"connection: close\r\n\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
BUFFERS = Buffers()
CHUNKS = b"5\r\nabcde\r\n" * 100_000


process = served("--api-keys", KEY)


OVERRIDDEN = {
    HttpProtocol: """connection_made connection_lost data_received on_message_begin on_header
        on_headers_complete on_body on_message_complete on_response_complete pause_writing
        resume_writing""",
    Server: "startup handle_exit shutdown",
}


@pytest.mark.parametrize("ours", OVERRIDDEN)
def test_what_is_overridden_of_uvicorn_is_still_there(ours: type) -> None:
    """An upgrade of uvicorn that renames or adds a method must be compared with our class."""
    of_uvicorn = ours.__mro__[1]
    names = {name for name in vars(of_uvicorn) if not name.startswith("__")}
    differs = sorted((names & set(vars(ours))) ^ set(OVERRIDDEN[ours].split()))
    assert not differs, f"uvicorn {uvicorn.__version__} changed {of_uvicorn}: {differs}"


@pytest.mark.parametrize(
    "request_", [HEALTH, post(b'{"inputs": [%b"love"]}' % (b'"love", ' * 999))]
)
def test_clients_that_pipeline_and_do_not_read_hold_up_nobody(
    start: Start, request_: bytes
) -> None:
    """The server answers pipelined requests one by one and stops reading: it keeps few answers.

    Other clients are served, also when these have left.
    """
    process = start()

    def others_are_served() -> bool:
        return process.client.post("/classify", json={"inputs": "love"}).status_code == 200

    def send(client: socket.socket) -> bool:
        """Send until no more is taken; whether something is left."""
        client.settimeout(0.3)
        left = memoryview(request_ * (20_000_000 // len(request_)))
        with suppress(TimeoutError):
            while left:
                left = left[client.send(left) :]
        return bool(left)

    assert others_are_served()
    before = process.memory_bytes()
    with ExitStack() as stack, ThreadPoolExecutor(12) as pool:
        silent = [stack.enter_context(connect(process.port, buffer_bytes=4_096)) for _ in range(12)]
        assert all(pool.map(send, silent))
        assert others_are_served()
        assert process.memory_bytes() < before + 60_000_000
    assert others_are_served()


def test_pipelined_requests_have_all_their_answers(url: str) -> None:
    """Pipelined requests are all answered, in order, however they are split into packets."""
    worst = post(b'{"inputs": "worst"}')
    with connect(port_of(url)) as client:
        sent = (HEALTH + post() + worst) * 200 + CLOSING
        sender = threading.Thread(target=client.sendall, args=(sent,))
        sender.start()
        answers = read_all(client)
        sender.join()
    kinds = re.findall(rb'"status":"live"|"label":"[a-z]+"', answers)
    expected = [b'"status":"live"', b'"label":"positive"', b'"label":"negative"']
    assert kinds == expected * 200 + [b'"label":"positive"']


CROWDED = """
from sentiment_service.requests.service import Service
Service.surplus = property(lambda self: 1, lambda self, value: None)
"""


def test_a_connection_that_should_be_at_another_worker_ends_with_its_last_answer(
    start: Start,
) -> None:
    """The answer says so; requests that were sent ahead are answered before."""
    process = start(command=patched(CROWDED))
    for sent in (HEALTH, post(), HEALTH + post() + HEALTH, post() + post()):
        with connect(process.port, sent) as client:
            answers = read_all(client)
        *before, last = answers.split(b"HTTP/1.1 200 OK")[1:]
        assert len(before) == sent.count(b" HTTP/1.1") - 1
        assert b"connection: close" in last
        assert not any(b"connection: close" in answer for answer in before)


@pytest.mark.parametrize("megabytes", [3, 50])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("key", [True, False])
def test_an_early_refusal_is_seen_by_clients_that_send_all_first(
    process: Process, megabytes: int, version: bytes, key: bool
) -> None:
    """Clients of HTTP/1.0 or with Connection: close receive 413 and 401, without a reset."""
    size = megabytes * 1_000_000
    authorization = b"authorization: Bearer a-key-of-a-client\r\n" if key else b""
    head = HEAD.replace(b"1.1", version) + authorization + b"connection: close\r\n"
    answer = exchange(process.port, head + b"content-length: %d\r\n\r\n" % size, b"a" * size)
    assert statuses(answer) == [413 if key else 401]


@pytest.mark.parametrize("pause_s", [0.02, 0.5], ids=["it goes on", "it is silent"])
async def test_what_is_dropped_is_not_read_for_ever(pause_s: float) -> None:
    """A closing connection ends when its time is over, or after some silence."""
    ours, client = socket.socketpair()
    for end in (ours, client):
        end.setblocking(False)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    connection = Connection(asyncio.Protocol, BUFFERS, ended.set, linger_s=1.0, silence_s=0.2)
    await loop.connect_accepted_socket(lambda: connection, ours)
    connection.sending = lambda: True
    connection.write(b"refused")
    connection.close()
    assert await loop.sock_recv(client, 100) == b"refused"
    assert await loop.sock_recv(client, 100) == b""
    sent = 0
    while not ended.is_set():
        with suppress(ConnectionError):
            await loop.sock_sendall(client, b"a" * 100)
        sent += 1
        await asyncio.sleep(pause_s)
    client.close()
    assert sent > 5 if pause_s < 0.2 else sent <= 2


def test_a_client_that_ends_its_side_has_left(listen: Listen, gate: Gate) -> None:
    """A client that ends its sending side looks like one that has left: it gets no answer."""
    port = listen()
    gate.close()
    with connect(port, post()) as client:
        assert gate.reached.wait(30)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b""
    gate.open.set()


def test_a_client_that_reads_nothing_is_cut_off(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that does not read is cut off after a while, when the write buffer is full."""
    monkeypatch.setattr("sentiment_service.server.http_protocol.SEND_TIMEOUT_S", 0.2)
    port = listen()
    name = "sentiment_http_requests_in_flight"
    with (
        connect(port, buffer_bytes=4_096) as client,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}") as other,
    ):
        client.settimeout(0.2)
        with suppress(TimeoutError, ConnectionError):  # until no more is taken
            client.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 100_000)
        client.settimeout(30)
        eventually(lambda: metric(other, name) == 1)  # the scrape itself
        received = b""
        with suppress(ConnectionError):
            while chunk := client.recv(65536):
                received += chunk
    assert len(statuses(received)) < 100_000


async def test_head_and_body_of_an_answer_leave_together() -> None:
    """A write waits for the next one, at most until the loop's next iteration or the close."""
    written: list[bytes] = []
    below = SimpleNamespace(
        write=written.append, is_closing=lambda: False, close=lambda: written.append(b"closed")
    )
    transport = Connection(asyncio.Protocol, BUFFERS)
    transport.connection_made(cast(asyncio.Transport, below))
    for data in (b"head ", b"body", b"alone"):
        transport.write(data)
    await asyncio.sleep(0)
    transport.write(b"last")
    transport.close()
    await asyncio.sleep(0)
    assert written == [b"head body", b"alone", b"last", b"closed"]


def test_a_begun_head_does_not_cut_the_answer_before_it(listen: Listen, gate: Gate) -> None:
    """The timeout of the next head begins only when the answer before it is complete."""
    with connect(listen(keep_alive_s=1)) as client:
        gate.close()
        client.sendall(post())
        assert gate.reached.wait(30)
        client.sendall(HEALTH[:9])
        time.sleep(1.2)  # longer than the timeout
        gate.open.set()
        assert read_answer(client)[0] == 200
        client.sendall(HEALTH[9:])
        assert read_answer(client)[0] == 200


# What clients send to keep the service busy with nothing: it costs the others little


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


def test_answers_that_nobody_reads_are_bounded_together(bundle: Path) -> None:
    """Those who have not read for the longest time are cut off; the last can read its answer."""
    limits = ("--max-inflight-bytes", "4000000", "--max-body-bytes", "2000000")
    texts = b",".join([b'"%b"' % ((b"a" * 99 + b" ") * 400)] * 16)
    asked = post(b'{"inputs": [%b]}' % texts, b"connection: close")
    asked = asked.replace(b"/classify", b"/tokenize")  # an answer of 650 kB
    with Process("--model", str(bundle), *FLAGS, *limits) as process, ExitStack() as stack:
        clients = []
        for _ in range(16):
            clients.append(stack.enter_context(connect(process.port, asked, buffer_bytes=4_096)))
            assert clients[-1].recv(1)
        for client in (clients[0], clients[-1]):  # through 4 kB at a time, it would take a minute
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1_000_000)
        assert len(read_all(clients[0])) < 400_000
        assert len(read_all(clients[-1])) > 600_000
