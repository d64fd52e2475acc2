"""Clients that keep the service busy with nothing. Beside each, a probe must be answered soon."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial

from checks.soak.calls.http import JSON
from checks.soak.faults.outcomes import DONE, WRONG, Fault
from checks.soak.traffic import Traffic
from checks.soak.wire import Connection, Kept, Lost, request

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

Flood = Callable[[int, float], Awaitable[set[str]]]  # of a port, until a time


def faults(traffic: Traffic) -> dict[str, Fault]:
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
    return {
        f"flood: {name}": Fault(0.5, partial(_inflict, traffic, *flood), {DONE})
        for name, flood in floods.items()
    }


async def _inflict(traffic: Traffic, flood: Flood, clients: int, expected: set[str]) -> str:
    port = traffic.port
    until = time.monotonic() + SECONDS
    floods = asyncio.gather(*(flood(port, until) for _ in range(clients)))
    longest, seen = await asyncio.gather(_probe(port, until), floods)
    if unexpected := set[str]().union(*seen) - expected:
        return f"{WRONG}: {sorted(unexpected)}"
    late = longest > PROBE_S and not traffic.explains_lateness()
    return f"a probe waited {longest:.1f} s" if late else DONE


async def _probe(port: int, until: float) -> float:
    """The longest wait for an answer of /health/live."""
    longest = 0.0
    while time.monotonic() < until:
        began = time.monotonic()
        async with await Connection.open(port) as connection:
            await connection.ask(request("GET", "/health/live"))
        longest = max(longest, time.monotonic() - began)
        await asyncio.sleep(0.05)
    return longest


async def _endless(head: bytes, rest: bytes, port: int, until: float) -> set[str]:
    """Send the rest again and again, whatever the server answers."""
    seen = set()
    while time.monotonic() < until:
        async with await Connection.open(port) as connection:
            with suppress(Lost):
                await connection.send(head + rest)
                seen.add(str((await connection.answer()).status))
                while time.monotonic() < until:
                    await connection.send(rest)
    return seen


async def _ahead(port: int, until: float) -> set[str]:
    """Send many requests before reading, then read what has been answered."""
    seen, sent = set(), request("GET", "/health/live") * AHEAD
    while time.monotonic() < until:
        async with await Connection.open(port) as connection:
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


async def _again(sent: bytes, port: int, until: float) -> set[str]:
    """Send a request again as soon as it is answered."""
    seen = set()
    async with Kept(port) as kept:
        while time.monotonic() < until:
            seen.add(str((await kept.ask(sent)).status))
    return seen


async def _anew(sent: bytes, port: int, until: float) -> set[str]:
    """Send a request on a new connection as soon as the one before is answered."""
    seen = set()
    while time.monotonic() < until:
        async with await Connection.open(port) as connection:
            seen.add(str((await connection.ask(sent)).status))
    return seen


async def _keeps(sent: bytes, port: int, until: float) -> set[str]:
    """Keep many connections after one request on each."""
    seen = set()
    async with AsyncExitStack() as stack:
        for _ in range(KEPT):
            connection = await stack.enter_async_context(await Connection.open(port))
            seen.add(str((await connection.ask(sent)).status))
        await asyncio.sleep(max(0.0, until - time.monotonic()))
    return seen
