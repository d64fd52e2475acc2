"""Clients that misbehave and other faults. Each fault returns what its client saw."""

import asyncio
import json
import os
import random
import signal
import time
from contextlib import AsyncExitStack

from checks.soak import bodies, crowds, grpc_abuse, keys, workers
from checks.soak.call import Call
from checks.soak.calls import JSON
from checks.soak.outcomes import (
    CLOSED,
    CORRECT,
    DISCONNECTED,
    DONE,
    KILLED,
    LOST,
    WRONG,
    Fault,
)
from checks.soak.traffic import Traffic
from checks.soak.wire import ADMIN_KEY, Answer, Connection, Lost, request

RATE = 1.5  # faults a second
RELOAD = request("POST", "/models/{name}/reload", authorization=f"Bearer {ADMIN_KEY}")
CROWD = 100
IDLE = 20


class Faults:
    """Draws faults at random, while ``traffic`` runs.

    ``pid`` is the service's process. ``of_workers`` says whether it has workers, for their faults.
    """

    def __init__(
        self, traffic: Traffic, pid: int, name: str, seed: int, *, of_workers: bool = False
    ) -> None:
        self._traffic = traffic
        self._pid = pid
        self._schedule = random.Random(seed)  # decides which fault happens when
        self._order = random.Random(seed)
        self._reload = RELOAD.replace(b"{name}", name.encode())
        answered = {CORRECT, "429"}
        self._faults = {
            "disconnects before its answer": Fault(5, self._disconnects, {DISCONNECTED}),
            "disconnects in the middle of its body": Fault(5, self._half_a_body, {DISCONNECTED}),
            "never reads its answers": Fault(2, self._never_reads, {DISCONNECTED, CLOSED}),
            "closes its sending side": Fault(3, self._half_closes, {*answered, CLOSED}),
            "pipelines several requests": Fault(5, self._pipelines, answered),
            "sends bytes that are not HTTP": Fault(3, self._not_http, {"400"}),
            "sends a header of 100 KB": Fault(3, self._large_header, {"431"}),
            "sends a body above the limit": Fault(3, self._large_body, {"413"}),
            "sends an invalid request body": Fault(3, self._invalid_body, {"422", "429"}),
            "sends invalid Unicode": Fault(3, self._invalid_unicode, {"422", "429"}),
            "sends its body slowly": Fault(5, self._slow_body, answered),
            "never finishes its body": Fault(2, self._unfinished_body, {"504"}),
            "sets a timeout of 1 to 30 ms": Fault(5, self._short_timeout, {*answered, "504"}),
            "requests an unknown path or model": Fault(3, self._unknown, {"404"}),
            f"{CROWD} new connections at once": Fault(1, self._many_connections, {DONE}),
            f"{IDLE} idle connections": Fault(1, self._idle_connections, {DONE}),
            "reload by HTTP": Fault(1, self._reload_by_http, {"200"}),
            "reload by SIGHUP": Fault(1, self._reload_by_sighup, {DONE}),
            "two SIGHUPs in a row": Fault(0.5, self._two_hangups, {DONE}),
            "SIGSTOP for a second": Fault(0.5, self._stop_for_a_second, {DONE}),
            **bodies.faults(traffic.port, self._order),
            **keys.faults(traffic, self._order),
            **crowds.faults(traffic),
            **grpc_abuse.faults(traffic),
        }
        if of_workers:
            self._faults |= workers.faults(
                traffic, self._order, self._reload_by_http, self._reload_by_sighup
            )

    async def run(self, until: float) -> None:
        """Draw faults until this time of the monotonic clock, then wait for their ends.

        At first each has its turn, so that a short run has all of them.
        """
        # Now, because a new key has no access after the wrong ones that come from this address.
        await self.inflict("reload by HTTP")
        kinds, shares = list(self._faults), [fault.share for fault in self._faults.values()]
        first = self._schedule.sample(kinds, len(kinds))
        async with asyncio.TaskGroup() as tasks:
            while time.monotonic() < until:
                kind = first.pop() if first else self._schedule.choices(kinds, shares)[0]
                tasks.create_task(self.inflict(kind))
                await asyncio.sleep(self._schedule.expovariate(RATE))

    async def inflict(self, kind: str) -> None:
        """Run a fault once and count what its client saw."""
        fault, began = self._faults[kind], time.monotonic()
        deaths = self._traffic.deaths
        try:
            outcome = await fault.inflict()
        except (Lost, OSError) as error:
            outcome = KILLED if deaths.explain(error) else LOST
        if "gRPC" in kind and outcome in {LOST, "503"} and deaths.explain_grpc(began):
            outcome = KILLED
        late = {"504"} if self._traffic.explains_lateness() else set[str]()
        self._traffic.tally.fault(kind, outcome, fault.expected | late | {KILLED})

    async def _open(self) -> Connection:
        return await Connection.open(self._traffic.port)

    def _seen(self, call: Call, answer: Answer) -> str:
        if answer.late:
            return "504"
        if answer.status != 200:
            return str(answer.status)
        return CORRECT if self._traffic.tally.checked(call, answer) else WRONG

    async def _status(self, sent: bytes) -> str:
        async with await self._open() as connection:
            return str((await connection.ask(sent)).status)

    async def _disconnects(self) -> str:
        async with await self._open() as connection:
            await connection.send(self._traffic.calls.draw().request)
            await asyncio.sleep(self._order.uniform(0, 0.05))
        return DISCONNECTED

    async def _half_a_body(self) -> str:
        sent = self._traffic.calls.several().request
        async with await self._open() as connection:
            await connection.send(sent[: -self._order.randint(1, 100)])
            await asyncio.sleep(self._order.uniform(0, 1))
        return DISCONNECTED

    async def _never_reads(self) -> str:
        """Ask for more answers than the buffers of the sockets can hold."""
        async with await self._open() as connection:
            try:
                async with asyncio.timeout(self._order.uniform(1, 5)):
                    for _ in range(200):
                        await connection.send(request("GET", "/openapi.json") * 10)
            except TimeoutError:
                return DISCONNECTED
            except Lost:
                return CLOSED  # allowed, because it read nothing
        return DISCONNECTED

    async def _half_closes(self) -> str:
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
        return max(seen, key=lambda outcome: outcome != CORRECT)

    async def _not_http(self) -> str:
        return await self._status(
            self._order.randbytes(self._order.randint(20, 2_000)) + b"\r\n\r\n"
        )

    async def _large_header(self) -> str:
        return await self._status(request("GET", "/health", x_long="a" * 100_000))

    async def _large_body(self) -> str:
        size = self._order.randint(2_200_000, 8_000_000)
        sent = request("POST", "/classify", bytes(size), connection="close", content_type=JSON)
        async with await self._open() as connection:
            await connection.send(sent)  # many clients send the whole body before they read
            return str((await connection.answer()).status)

    async def _invalid_body(self) -> str:
        body = self._order.choice([b'{"inputs": "love"', b"[" * 100_000, b'{"inputs": NaN}', b"{}"])
        return await self._status(request("POST", "/classify", body, content_type=JSON))

    async def _invalid_unicode(self) -> str:
        body = self._order.choice([b'{"inputs": "\xff\xfe"}', rb'{"inputs": "\ud800"}'])
        return await self._status(request("POST", "/classify", body, content_type=JSON))

    async def _slow_body(self) -> str:
        call = self._traffic.calls.several()
        async with await self._open() as connection:
            step = len(call.request) // 10 + 1
            for start in range(0, len(call.request), step):
                await connection.send(call.request[start : start + step])
                await asyncio.sleep(self._order.uniform(0, 0.5))
            return self._seen(call, await connection.answer())

    async def _unfinished_body(self) -> str:
        headers = {"content_type": JSON, "x_request_timeout_ms": "300"}
        sent = request("POST", "/classify", b'{"inputs": "love"}', **headers)
        async with await self._open() as connection:
            await connection.send(sent[:-5])
            return str((await connection.answer()).status)

    async def _short_timeout(self) -> str:
        call = self._traffic.calls.several()
        wanted = f"POST /classify HTTP/1.1\r\nx-request-timeout-ms: {self._order.randint(1, 30)}"
        sent = call.request.replace(b"POST /classify HTTP/1.1", wanted.encode(), 1)
        async with await self._open() as connection:
            answer = await connection.ask(sent)
        return self._seen(call, answer)

    async def _unknown(self) -> str:
        body = json.dumps({"inputs": "love", "model": "none"}).encode()
        unknown = request("POST", "/classify", body, content_type=JSON)
        return await self._status(self._order.choice([unknown, request("GET", "/nowhere")]))

    async def _many_connections(self) -> str:
        self._traffic.may_be_late()
        await asyncio.gather(*(self._one_connection() for _ in range(CROWD)))
        return DONE

    async def _one_connection(self) -> None:
        call = self._traffic.calls.one()
        try:
            async with await self._open() as connection:
                answer = await connection.ask(call.request)
        except (Lost, OSError) as error:
            self._traffic.lost(call, error)
        else:
            self._traffic.tally.answered(call, answer, {429, 504})

    async def _idle_connections(self) -> str:
        async with AsyncExitStack() as stack:
            for _ in range(IDLE):
                await stack.enter_async_context(await self._open())
            await asyncio.sleep(self._order.uniform(5, 30))
        return DONE

    async def _reload_by_http(self) -> str:
        return await self._status(self._reload)

    async def _reload_by_sighup(self) -> str:
        os.kill(self._pid, signal.SIGHUP)
        return DONE

    async def _two_hangups(self) -> str:
        await self._reload_by_sighup()
        await asyncio.sleep(self._order.uniform(0, 0.5))
        return await self._reload_by_sighup()

    async def _stop_for_a_second(self) -> str:
        self._traffic.may_be_late()
        os.kill(self._pid, signal.SIGSTOP)
        await asyncio.sleep(1)
        os.kill(self._pid, signal.SIGCONT)
        return DONE
