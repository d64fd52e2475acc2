"""Sockets: waiting connections are accepted together, and requests begin in turns."""

import asyncio
import errno
import socket
import time
from functools import partial
from itertools import chain

import httpx2
import pytest
from sentiment_service.errors import UserError
from sentiment_service.requests.limits import PathSet
from sentiment_service.server.arrivals import (
    STARTS_AT_ONCE,
    Listener,
    Starts,
    Turns,
)
from sentiment_service.server.connection import Connection
from sentiment_service.server.process import bind

from benchmarks.service import free_port
from tests.conftest import Start
from tests.support.raw_http import exchange

CONNECTIONS = 150
AT_ONCE = PathSet({"/health/live", "/web/*"})
POST = b"POST /classify HTTP/1.1"


def _connections(address: tuple[str, int]) -> list[socket.socket]:
    return [socket.create_connection(address, timeout=30) for _ in range(CONNECTIONS)]


async def test_connections_that_wait_are_accepted_together() -> None:
    """Waiting connections are accepted in a few iterations of the event loop, not one in each."""
    site = bind("127.0.0.1", 0)
    listener = Listener(site, asyncio.Protocol)
    clients = _connections(site.getsockname())
    iterations = 0
    while listener.arrivals.accepted < CONNECTIONS:
        await asyncio.sleep(0)
        iterations += 1
    await listener.close()
    for client in clients:
        client.close()
    assert iterations < CONNECTIONS / 10


async def test_a_listener_that_closes_takes_what_the_kernel_has_accepted() -> None:
    """A complete connection is served, even if the listener closes before it is accepted."""

    class Greeting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, Connection)
            transport.write(b"hello")
            transport.close()

    site = bind("127.0.0.1", 0)
    listener = Listener(site, Greeting)
    clients = _connections(site.getsockname())
    await listener.close()
    await listener.close()  # may be said twice
    await asyncio.sleep(0.1)
    for client in clients:
        assert client.recv(100) == b"hello"
        client.close()


async def test_without_file_descriptors_it_waits_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Connections wait in the kernel and are accepted when file descriptors are free again."""
    full, tried, accepted = True, asyncio.Event(), asyncio.Event()

    class Site(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            if full:
                tried.set()
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    class Noting(asyncio.Protocol):
        def connection_made(self, _: asyncio.BaseTransport) -> None:
            accepted.set()

    site = Site()
    site.bind(("127.0.0.1", 0))
    site.setblocking(False)
    listener = Listener(site, Noting)
    with socket.create_connection(site.getsockname(), timeout=30):
        await tried.wait()
        full = False
        await accepted.wait()
    await listener.close()
    assert listener.arrivals.accepted == 1
    said = [record.getMessage() for record in caplog.records]
    assert 1 <= len(said) <= 4
    assert "Too many open files" in said[0]


async def test_a_port_where_another_server_listens_is_said_in_one_line() -> None:
    """If two servers bind one port, the second one to listen reports an error."""
    first = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    said = f"cannot listen on 127.0.0.1 port {port}: Address"
    with bind("127.0.0.1", port) as second:
        listener = Listener(first, asyncio.Protocol)
        with pytest.raises(UserError, match=said):
            Listener(second, asyncio.Protocol)
    await listener.close()


async def test_a_few_requests_begin_in_an_iteration() -> None:
    """Requests begin in order, a few in each iteration; the loop does its other work between."""
    turns = Turns()
    begun: list[list[int]] = [[]]
    for number in range(3 * STARTS_AT_ONCE + 1):
        turns.take(partial(lambda n: begun[-1].append(n), number))
    for _ in range(4):
        begun.append([])
        await asyncio.sleep(0)
    assert max(map(len, begun)) <= STARTS_AT_ONCE
    assert [*chain(*begun)] == list(range(3 * STARTS_AT_ONCE + 1))


@pytest.mark.parametrize(("patience_s", "begun"), [(60.0, [0, 1, 2, 3]), (0.001, [3, 0, 2, 1])])
async def test_requests_that_are_late_do_not_make_all_others_late(
    patience_s: float, begun: list[int]
) -> None:
    """When requests are late, every second one to begin is the latest; none is forgotten."""
    turns = Turns(patience_s=patience_s)
    seen: list[int] = []
    for _ in range(STARTS_AT_ONCE):
        turns.take(lambda: None)
    for number in range(4):
        turns.take(partial(seen.append, number))
    time.sleep(0.01)  # noqa: ASYNC251 - the event loop is busy
    await asyncio.sleep(0.05)
    assert seen == begun


@pytest.mark.parametrize(
    ("line", "waits"),
    [
        (b"GET /health/live HTTP/1.1", False),
        (b"HEAD /health/live?x=/ HTTP/1.1", False),
        (b"GET /web/page.js HTTP/1.1", False),
        (b"POST /health/live HTTP/1.1", True),
        (b"GET /health/live/x HTTP/1.1", True),
        (b"GET /below/health/live HTTP/1.1", False),
        (b"GET /belowhealth/live HTTP/1.1", True),
        (b"GET /openapi.json HTTP/1.1", True),
        (b"GET", True),
    ],
)
async def test_a_probe_does_not_wait_for_a_turn(line: bytes, waits: bool) -> None:
    """However many wait, what reads one of the paths begins at once, also below the prefix."""
    starts = Starts(AT_ONCE, "/below")
    begun: list[str] = []
    for _ in range(STARTS_AT_ONCE):
        starts.take(POST, lambda: None)
    starts.take(POST, partial(begun.append, "request"))
    starts.take(line + b"\r\nhost: x", partial(begun.append, "probe"))
    await asyncio.sleep(0.05)
    assert begun == (["request", "probe"] if waits else ["probe", "request"])


async def test_a_flood_of_probes_holds_up_no_probe_of_others() -> None:
    """A probe of somebody else begins at once."""
    starts = Starts(AT_ONCE)
    begun: list[str] = []
    for _ in range(100):
        starts.take(b"GET /health/live HTTP/1.1", lambda: None, repeats=True)
    starts.take(b"GET /health/live HTTP/1.1", partial(begun.append, "probe"))
    assert begun == ["probe"]


async def test_a_request_that_cannot_begin_holds_up_no_other() -> None:
    """The event loop reports the error of one request; the other requests still begin."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    turns = Turns()
    begun: list[int] = []
    for _ in range(STARTS_AT_ONCE):
        turns.take(lambda: None)
    for number in range(3 * STARTS_AT_ONCE):
        start = partial(begun.append, number) if number % 5 else partial(next, iter(()))
        turns.take(start)
    await asyncio.sleep(0.05)
    assert begun == [n for n in range(3 * STARTS_AT_ONCE) if n % 5]


def test_the_metrics_have_a_port_of_their_own(start: Start) -> None:
    """The metrics port serves only metrics and says so; the service's port names it."""
    port = free_port()
    process = start("--metrics-port", str(port))
    metrics = httpx2.get(f"http://127.0.0.1:{port}/metrics")
    assert 'sentiment_model_ready{model="tiny"} 1.0' in metrics.text
    missing = httpx2.get(f"http://127.0.0.1:{port}/classify").json()
    assert missing["code"] == "not_found"
    assert "has /metrics alone (--metrics-port); use that of --port" in missing["detail"]
    elsewhere = process.client.get("/metrics")
    assert elsewhere.status_code == 404
    assert f"port {port} (--metrics-port)" in elsewhere.json()["detail"]
    assert exchange(port, b"\x00").startswith(b"HTTP/1.1 400 ")
