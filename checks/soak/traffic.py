"""Sends requests at random times, at a share of the capacity, with bursts above it.

The capacity is measured with the same mix of requests, and with the clients on the same CPUs.
"""

import asyncio
import math
import random
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from checks.soak.calls.call import Call
from checks.soak.calls.http import Calls
from checks.soak.faults.deaths import Deaths
from checks.soak.grpc_wire import CANCELLED, GrpcClient
from checks.soak.measuring.tally import Tally
from checks.soak.wire import Answer, Connection, Lost

LOAD = 0.6  # share of the capacity
BURST = 3.0  # times LOAD
BURST_S, BETWEEN_BURSTS_S = 3.0, 40.0
UNUSED_S = 30.0  # then the client closes a connection; the server would after 75 s
USUAL = frozenset({200, 429})
AFTERMATH_S = 12.0  # after a burst or a pause, in which answers may still be late
CLIENTS = 32  # in closed loops
CAPACITY_S = 8.0
FINAL_LOAD_S = 2.0  # of closed-loop load before the signal


class Traffic:
    """Sends requests and checks every answer. All methods must run in one event loop."""

    def __init__(
        self, port: int, grpc_port: int, calls: Calls, tally: Tally, order: random.Random
    ) -> None:
        self.port = port
        self.grpc_port = grpc_port
        self.calls = calls
        self.tally = tally
        self.deaths = Deaths()
        self._order = order
        self._late_until = 0.0
        self._unused: list[tuple[Connection, float]] = []  # in the order of their last use
        self._grpc: GrpcClient | None = None

    async def capacity(self) -> float:
        """Tokens per second in a closed loop of several clients."""
        until = time.monotonic() + CAPACITY_S
        answered = 0

        async def ask_again_and_again() -> None:
            nonlocal answered
            while time.monotonic() < until:
                call = self.calls.draw()
                await self.ask(call)
                answered += call.tokens

        await asyncio.gather(*(ask_again_and_again() for _ in range(CLIENTS)))
        return answered / CAPACITY_S

    async def run(self, until: float, *, capacity: float) -> None:
        """Send until this time of the monotonic clock, then wait for the last answers."""
        due = time.monotonic()
        burst = due + BETWEEN_BURSTS_S
        async with asyncio.TaskGroup() as asking:
            while (now := time.monotonic()) < until:
                if now > burst + BURST_S:
                    burst = now + self._order.expovariate(1 / BETWEEN_BURSTS_S)
                rate = LOAD * capacity
                if now >= burst:
                    rate *= BURST
                    self.may_be_late()
                call = self.calls.draw()
                asking.create_task(self.ask(call))
                # After a pause of the server, do not send all the missed requests.
                due = max(due, now - 1.0) + self._order.expovariate(rate / call.tokens)
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def close(self) -> None:
        """Close the unused connections."""
        while self._unused:
            self._unused.pop()[0].close()
        if self._grpc is not None:
            await self._grpc.close()
            self._grpc = None

    def may_be_late(self) -> None:
        """Allow late answers for some time, because of a burst or a pause."""
        self._late_until = time.monotonic() + AFTERMATH_S

    def explains_lateness(self) -> bool:
        """Whether an answer with 504 is explained by a burst or a pause."""
        return time.monotonic() < self._late_until

    async def ask(self, call: Call) -> None:
        """Send a request on a free connection, or on a new one, and check its answer."""
        began, explained = time.monotonic(), self.explains_lateness()
        try:
            answer = await (self._call(call) if call.is_grpc else self._request(call))
        except (Lost, OSError) as error:
            self.lost(call, error, began)
            return
        if call.is_grpc and answer.status in {503, CANCELLED} and self.deaths.explain_grpc(began):
            self.tally.killed(call)
            return
        explained |= self.explains_lateness()
        self.tally.answered(call, answer, {200, call.overloaded} | ({504} if explained else set()))

    def lost(self, call: Call, error: Exception, began: float = math.inf) -> None:
        """Count an answer that did not come. The call ``began`` then, if it was one of gRPC."""
        if self.deaths.explain(error) or (call.is_grpc and self.deaths.explain_grpc(began)):
            self.tally.killed(call)
        else:
            self.tally.lost(call, repr(error))

    async def _request(self, call: Call) -> Answer:
        connection = await self._connection()
        answer = await connection.ask(call.request)
        if answer.closes:
            connection.close()
        else:
            self._unused.append((connection, time.monotonic()))
        return answer

    async def _call(self, call: Call) -> Answer:
        self._grpc = self._grpc or GrpcClient(self.grpc_port)
        return await self._grpc.ask(call)

    async def final_load(self, end: Coroutine[Any, Any, None]) -> None:
        """Run closed loops on kept and on new connections, while ``end`` sends the signal.

        One client in four uses gRPC.
        """
        http = CLIENTS - CLIENTS // 4
        asking = [self._until_refused(kept=number % 2 == 0) for number in range(http)]
        asking += [self._calls_until_refused() for _ in range(CLIENTS // 4)]
        await asyncio.gather(end, *asking)

    async def _until_refused(self, *, kept: bool) -> None:
        """Send requests until the server closes the connection or stops listening."""
        connection: Connection | None = None
        while True:
            try:
                connection = connection or await Connection.open(self.port)
            except OSError:
                return
            call = replace(self.calls.one(), route="POST /classify, until the end")
            try:
                answer = await connection.ask(call.request)
            except Lost as error:
                self.tally.lost(call, f"{'kept' if kept else 'new'} connection: {error}")
                return
            self.tally.answered(call, answer, USUAL | {503})
            if answer.closes or not kept:
                connection.close()
                connection = None

    async def _calls_until_refused(self) -> None:
        """Send gRPC calls until the server stops listening."""
        async with GrpcClient(self.grpc_port) as client:
            while True:
                call = self.calls.grpc.infer()
                at_end = replace(call, route=f"{call.route}, until the end")
                try:
                    answer = await client.ask(call)
                except OSError:
                    return
                except Lost as error:
                    self.tally.lost(at_end, str(error))
                    return
                self.tally.answered(at_end, answer, USUAL | {503, CANCELLED})

    async def _connection(self) -> Connection:
        while self._unused and self._unused[0][1] < time.monotonic() - UNUSED_S:
            self._unused.pop(0)[0].close()
        return self._unused.pop()[0] if self._unused else await Connection.open(self.port)
