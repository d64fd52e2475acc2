"""Clients that keep the service busy with nothing. Beside each, a probe must be answered soon."""

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import AsyncExitStack, ExitStack, closing, suppress
from functools import partial

from checks.soak.calls.http import JSON
from checks.soak.faults.outcomes import DONE, WRONG, Fault
from checks.soak.traffic import Traffic
from checks.soak.wire import Connection, Kept, Lost, request
from checks.support.tls import CONTEXT, Client, KeyUpdater

SECONDS = 4.0
CLIENTS = 3
# Far more than the 0.1 s of a quiet machine, because other faults run at the same time.
PROBE_S = 3.0
AHEAD, KEPT, LONG = 2_000, 200, 60
REFUSED = {"content_type": JSON, "authorization": "Bearer wrong"}
CHUNKED = (
    b"POST /classify HTTP/1.1\r\nhost: soak\r\nauthorization: Bearer wrong\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
SIGNS = b"[" + b"[[]]," * 300_000 + b"[]]"
DOCUMENTS = json.dumps({"inputs": ["I would see this film again. " * 1_000] * 2}).encode()

Open = Callable[[], Awaitable[Connection]]
Records = Generator[tuple[socket.socket, bytes], None, None]
Flood = Callable[[Open, float], Awaitable[set[str]]]


def faults(traffic: Traffic, tls_port: int) -> dict[str, Fault]:
    """What each flood does: those of TLS to another server, which has it, at ``tls_port``."""
    return _plain_floods(traffic) | tls_floods(traffic, tls_port)


def _plain_floods(traffic: Traffic) -> dict[str, Fault]:
    floods: dict[str, tuple[Flood, int, set[str]]] = {
        "sends ends of lines": (partial(_endless, b"", b"\r\n" * 30_000), CLIENTS, {"400"}),
        "goes on in tiny chunks after a refusal": (
            partial(_endless, CHUNKED, b"5\r\nabcde\r\n" * 6_000),
            CLIENTS,
            {"401"},
        ),
        "sends GET requests ahead": (_ahead, CLIENTS, {"200"}),
        "reads without a pause": (partial(_again, request("GET", "/models")), 50, {"200"}),
        "has a connection for each request": (
            partial(_anew, request("GET", "/models")),
            20,
            {"200"},
        ),
        "has a connection for each refused body": (
            partial(_anew, request("POST", "/classify", bytes(60_000), **REFUSED)),
            20,
            {"401"},
        ),
        "sends bodies of brackets": (
            partial(_again, request("POST", "/classify", SIGNS, content_type=JSON)),
            CLIENTS,
            {"422", "429"},
        ),
        "sends long documents to /tokenize": (
            partial(_again, request("POST", "/tokenize", DOCUMENTS, content_type=JSON)),
            LONG,
            {"200", "429", "504"},
        ),
        "keeps connections after a refused body": (
            partial(_keeps, request("POST", "/classify", bytes(60_000), **REFUSED)),
            1,
            {"401"},
        ),
    }
    open_ = partial(Connection.open, traffic.port)
    return {
        f"flood: {name}": Fault(0.5, partial(_inflict, traffic, open_, *flood), {DONE})
        for name, flood in floods.items()
    }


def tls_floods(traffic: Traffic, port: int) -> dict[str, Fault]:
    """What each flood of TLS does."""
    floods: dict[str, tuple[Flood, int, set[str]]] = {
        "shakes hands and leaves": (_handshakes, 10, set()),
        "begins handshakes of TLS": (partial(_half_handshakes, port), 1, set()),
        "has a connection with TLS for each request": (
            partial(_anew, request("GET", "/models")),
            10,
            {"200"},
        ),
        # One client of these: to encrypt takes a CPU of the soak's own.
        "updates the keys of TLS": (partial(_pour, _key_updates, port), 1, set()),
        "sends records of one byte": (partial(_pour, _tiny_records, port), 1, set()),
    }
    open_ = partial(Connection.open, port, CONTEXT)
    return {
        f"flood: {name}": Fault(0.25, partial(_inflict, traffic, open_, *flood), {DONE})
        for name, flood in floods.items()
    }


async def _inflict(
    traffic: Traffic, open_: Open, flood: Flood, clients: int, expected: set[str]
) -> str:
    until = time.monotonic() + SECONDS
    floods = asyncio.gather(*(flood(open_, until) for _ in range(clients)))
    longest, seen = await asyncio.gather(_probe(open_, until), floods)
    if unexpected := set[str]().union(*seen) - expected:
        return f"{WRONG}: {sorted(unexpected)}"
    late = longest > PROBE_S and not traffic.explains_lateness()
    return f"a probe waited {longest:.1f} s" if late else DONE


async def _probe(open_: Open, until: float) -> float:
    """The longest wait for an answer of /health/live."""
    longest = 0.0
    while time.monotonic() < until:
        began = time.monotonic()
        async with await open_() as connection:
            await connection.ask(request("GET", "/health/live"))
        longest = max(longest, time.monotonic() - began)
        await asyncio.sleep(0.05)
    return longest


async def _endless(head: bytes, rest: bytes, open_: Open, until: float) -> set[str]:
    """Send the rest again and again, whatever the server answers."""
    seen = set()
    while time.monotonic() < until:
        async with await open_() as connection:
            with suppress(Lost):
                await connection.send(head + rest)
                seen.add(str((await connection.answer()).status))
                while time.monotonic() < until:
                    await connection.send(rest)
    return seen


async def _ahead(open_: Open, until: float) -> set[str]:
    """Send many requests before reading, then read what has been answered."""
    seen, sent = set(), request("GET", "/health/live") * AHEAD
    while time.monotonic() < until:
        async with await open_() as connection:
            sending = asyncio.create_task(_send(connection, sent))
            closes = False
            while not closes and time.monotonic() < until:
                answer = await connection.answer()
                seen.add(str(answer.status))
                closes = answer.closes
            sending.cancel()
    return seen


async def _send(connection: Connection, sent: bytes) -> None:
    with suppress(Lost):  # it was closed by the server, which had said so
        await connection.send(sent)


async def _again(sent: bytes, open_: Open, until: float) -> set[str]:
    """Send a request again as soon as it is answered."""
    seen = set()
    async with Kept(open_) as kept:
        while time.monotonic() < until:
            seen.add(str((await kept.ask(sent)).status))
    return seen


async def _anew(sent: bytes, open_: Open, until: float) -> set[str]:
    """Send a request on a new connection as soon as the one before is answered."""
    seen = set()
    while time.monotonic() < until:
        async with await open_() as connection:
            seen.add(str((await connection.ask(sent)).status))
    return seen


async def _keeps(sent: bytes, open_: Open, until: float) -> set[str]:
    """Keep many connections after one request on each."""
    seen = set()
    async with AsyncExitStack() as stack:
        for _ in range(KEPT):
            connection = await stack.enter_async_context(await open_())
            seen.add(str((await connection.ask(sent)).status))
        await asyncio.sleep(max(0.0, until - time.monotonic()))
    return seen


async def _handshakes(open_: Open, until: float) -> set[str]:
    """Complete a handshake, ask nothing, and begin the next one."""
    while time.monotonic() < until:
        (await open_()).close()
    return set()


async def _half_handshakes(port: int, _open: Open, until: float) -> set[str]:
    """Begin many handshakes and go no further."""
    with ExitStack() as stack:
        for _ in range(KEPT):
            client = stack.enter_context(closing(Client(port)))
            client.raw.sendall(client.hello())
            await asyncio.sleep(0)
        await asyncio.sleep(max(0.0, until - time.monotonic()))
    return set()


async def _pour(
    endless: Callable[[int], Records],
    port: int,
    _open: Open,
    until: float,
) -> set[str]:
    """Send on one connection all that the server takes, and read nothing."""

    def pour() -> None:
        with closing(endless(port)) as records, suppress(TimeoutError):
            for to, sent in records:
                if (left := until - time.monotonic()) <= 0:
                    return
                to.settimeout(left)
                to.sendall(sent)

    await asyncio.to_thread(pour)
    return set()


def _key_updates(port: int) -> Records:
    with closing(KeyUpdater(port)) as client:
        while True:
            yield client.raw, client.updates(5_000)


def _tiny_records(port: int) -> Records:
    head = request("POST", "/classify", content_type=JSON)
    with closing(Client(port)) as client:
        client.shake_hands()
        yield client.raw, client.records(head.replace(b"length: 0", b"length: 2000000"))
        while True:
            yield client.raw, client.records(b" " * 10_000, 1)
