"""Clients that misbehave and other faults. Each fault returns what its client saw."""

import asyncio
import gzip
import json
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Set
from contextlib import AsyncExitStack
from dataclasses import dataclass

from benchmarks.soak.calls import JSON, Call
from benchmarks.soak.traffic import Traffic
from benchmarks.soak.wire import Answer, Connection, Lost, request

ADMIN_KEY = "key-of-the-soak"
RATE = 1.5  # faults a second
RELOAD = request("POST", "/models/{name}/reload", authorization=f"Bearer {ADMIN_KEY}")
BOMB = gzip.compress(bytes(50_000_000))
CROWD = 100
IDLE = 20

# What a client saw, if it was not a status.
LEFT, CLOSED, RIGHT, WRONG, LOST, DONE = "left", "closed", "right", "wrong", "no answer", "done"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: its share of all faults, what it does, and what its client may see."""

    share: float
    inflict: Callable[[], Awaitable[str]]
    expected: Set[str]


class Faults:
    """Draws faults at random, while ``traffic`` runs."""

    def __init__(self, traffic: Traffic, pid: int, name: str, seed: int) -> None:
        self._traffic = traffic
        self._pid = pid
        self._schedule = random.Random(seed)  # decides which fault happens when
        self._order = random.Random(seed)
        self._reload = RELOAD.replace(b"{name}", name.encode())
        answered = {RIGHT, "429"}
        self._faults = {
            "leaves before its answer": Fault(5, self._leaves, {LEFT}),
            "leaves within its body": Fault(5, self._half_a_body, {LEFT}),
            "never reads": Fault(2, self._never_reads, {LEFT, CLOSED}),
            "closes its sending side": Fault(3, self._half_closed, {*answered, CLOSED}),
            "pipelines": Fault(5, self._pipelines, answered),
            "sends garbage": Fault(3, self._garbage, {"400"}),
            "sends a huge head": Fault(3, self._huge_head, {"431"}),
            "sends too large a body, then closes": Fault(3, self._too_large, {"413"}),
            "sends broken JSON": Fault(3, self._broken_json, {"422", "429"}),
            "sends broken Unicode": Fault(3, self._broken_unicode, {"422", "429"}),
            "sends a bomb": Fault(2, self._bomb, {"413"}),
            "sends its body slowly": Fault(5, self._slowly, answered),
            "sends its body too slowly": Fault(2, self._too_slowly, {"504"}),
            "has no patience": Fault(5, self._impatient, {*answered, "504"}),
            "asks for what is not there": Fault(3, self._nowhere, {"404"}),
            "a crowd of new connections": Fault(1, self._crowd, {DONE}),
            "idle connections": Fault(1, self._idle, {DONE}),
            "reload by HTTP": Fault(1, self._reloads, {"200"}),
            "reload by SIGHUP": Fault(1, self._hangs_up, {DONE}),
            "SIGSTOP for a second": Fault(0.5, self._pauses, {DONE}),
        }

    async def run(self, until: float) -> None:
        """Draw faults until this time of the monotonic clock, then wait for their ends."""
        shares = [fault.share for fault in self._faults.values()]
        async with asyncio.TaskGroup() as tasks:
            while time.monotonic() < until:
                (kind,) = self._schedule.choices(list(self._faults), shares)
                tasks.create_task(self.inflict(kind))
                await asyncio.sleep(self._schedule.expovariate(RATE))

    async def inflict(self, kind: str) -> None:
        """Run a fault once and count what its client saw."""
        fault = self._faults[kind]
        try:
            outcome = await fault.inflict()
        except (Lost, OSError):
            outcome = LOST
        late = {"504"} if self._traffic.explains_lateness() else set[str]()
        self._traffic.tally.fault(kind, outcome, fault.expected | late)

    async def _open(self) -> Connection:
        return await Connection.open(self._traffic.port)

    def _seen(self, call: Call, answer: Answer) -> str:
        if answer.late:
            return "504"
        if answer.status != 200:
            return str(answer.status)
        return RIGHT if self._traffic.tally.checked(call, answer) else WRONG

    async def _status(self, sent: bytes) -> str:
        async with await self._open() as connection:
            return str((await connection.ask(sent)).status)

    async def _leaves(self) -> str:
        async with await self._open() as connection:
            await connection.send(self._traffic.calls.draw().request)
            await asyncio.sleep(self._order.uniform(0, 0.05))
        return LEFT

    async def _half_a_body(self) -> str:
        sent = self._traffic.calls.several().request
        async with await self._open() as connection:
            await connection.send(sent[: -self._order.randint(1, 100)])
            await asyncio.sleep(self._order.uniform(0, 1))
        return LEFT

    async def _never_reads(self) -> str:
        """Ask for more answers than the buffers of the sockets can hold."""
        async with await self._open() as connection:
            try:
                async with asyncio.timeout(self._order.uniform(1, 5)):
                    for _ in range(200):
                        await connection.send(request("GET", "/openapi.json") * 10)
            except TimeoutError:
                return LEFT
            except Lost:
                return CLOSED  # allowed, because it read nothing
        return LEFT

    async def _half_closed(self) -> str:
        call = self._traffic.calls.one()
        async with await self._open() as connection:
            await connection.send(call.request)
            connection.end_sending()
            try:
                return self._seen(call, await connection.answer())
            except Lost:
                return CLOSED  # after some time, the server takes it for a client that has left

    async def _pipelines(self) -> str:
        calls = [self._traffic.calls.one() for _ in range(self._order.randint(2, 8))]
        async with await self._open() as connection:
            await connection.send(b"".join(call.request for call in calls))
            seen = {self._seen(call, await connection.answer()) for call in calls}
        return max(seen, key=lambda outcome: outcome != RIGHT)

    async def _garbage(self) -> str:
        return await self._status(
            self._order.randbytes(self._order.randint(20, 2_000)) + b"\r\n\r\n"
        )

    async def _huge_head(self) -> str:
        return await self._status(request("GET", "/health", x_long="a" * 100_000))

    async def _too_large(self) -> str:
        size = self._order.randint(2_200_000, 8_000_000)
        sent = request("POST", "/classify", bytes(size), connection="close", content_type=JSON)
        async with await self._open() as connection:
            await connection.send(sent)  # many clients send the whole body before they read
            return str((await connection.answer()).status)

    async def _broken_json(self) -> str:
        body = self._order.choice([b'{"inputs": "love"', b"[" * 100_000, b'{"inputs": NaN}', b"{}"])
        return await self._status(request("POST", "/classify", body, content_type=JSON))

    async def _broken_unicode(self) -> str:
        body = self._order.choice([b'{"inputs": "\xff\xfe"}', rb'{"inputs": "\ud800"}'])
        return await self._status(request("POST", "/classify", body, content_type=JSON))

    async def _bomb(self) -> str:
        headers = {"content_type": JSON, "content_encoding": "gzip"}
        return await self._status(request("POST", "/classify", BOMB, **headers))

    async def _slowly(self) -> str:
        call = self._traffic.calls.several()
        async with await self._open() as connection:
            step = len(call.request) // 10 + 1
            for start in range(0, len(call.request), step):
                await connection.send(call.request[start : start + step])
                await asyncio.sleep(self._order.uniform(0, 0.5))
            return self._seen(call, await connection.answer())

    async def _too_slowly(self) -> str:
        headers = {"content_type": JSON, "x_request_timeout_ms": "300"}
        sent = request("POST", "/classify", b'{"inputs": "love"}', **headers)
        async with await self._open() as connection:
            await connection.send(sent[:-5])
            return str((await connection.answer()).status)

    async def _impatient(self) -> str:
        call = self._traffic.calls.several()
        wanted = f"POST /classify HTTP/1.1\r\nx-request-timeout-ms: {self._order.randint(1, 30)}"
        sent = call.request.replace(b"POST /classify HTTP/1.1", wanted.encode(), 1)
        async with await self._open() as connection:
            answer = await connection.ask(sent)
        return self._seen(call, answer)

    async def _nowhere(self) -> str:
        body = json.dumps({"inputs": "love", "model": "none"}).encode()
        unknown = request("POST", "/classify", body, content_type=JSON)
        return await self._status(self._order.choice([unknown, request("GET", "/nowhere")]))

    async def _crowd(self) -> str:
        self._traffic.may_be_late()
        await asyncio.gather(*(self._comes_and_goes() for _ in range(CROWD)))
        return DONE

    async def _comes_and_goes(self) -> None:
        call = self._traffic.calls.one()
        async with await self._open() as connection:
            answer = await connection.ask(call.request)
        self._traffic.tally.answered(call, answer, {429, 504})

    async def _idle(self) -> str:
        async with AsyncExitStack() as stack:
            for _ in range(IDLE):
                await stack.enter_async_context(await self._open())
            await asyncio.sleep(self._order.uniform(5, 30))
        return DONE

    async def _reloads(self) -> str:
        return await self._status(self._reload)

    async def _hangs_up(self) -> str:
        os.kill(self._pid, signal.SIGHUP)
        return DONE

    async def _pauses(self) -> str:
        self._traffic.may_be_late()
        os.kill(self._pid, signal.SIGSTOP)
        await asyncio.sleep(1)
        os.kill(self._pid, signal.SIGCONT)
        return DONE
