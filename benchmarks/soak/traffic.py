"""Open arrivals on kept connections at a share of the capacity, with bursts beyond it.

The capacity is that for this mix of requests, with their clients on the same CPUs.
"""

import asyncio
import random
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from benchmarks.soak.calls import Call, Calls
from benchmarks.soak.tally import Tally
from benchmarks.soak.wire import Connection, Lost

LOAD = 0.6  # of the capacity
BURST = 3.0  # times that
BURST_S, BETWEEN_BURSTS_S = 3.0, 40.0
UNUSED_S = 30.0  # a connection is closed before the server would, 75 s
USUAL = frozenset({200, 429})
AFTERMATH_S = 12.0  # of a burst or a pause: what was admitted then may be late
CLIENTS = 32  # in closed loops
CAPACITY_S = 8.0
FAREWELL_S = 2.0  # of their load before the signal


class Traffic:
    """Asks all the time; every answer is checked."""

    def __init__(self, port: int, calls: Calls, tally: Tally, order: random.Random) -> None:
        self.port = port
        self.calls = calls
        self.tally = tally
        self._order = order
        self._late_until = 0.0
        self._unused: list[tuple[Connection, float]] = []  # the latest last

    async def capacity(self) -> float:
        """Tokens a second that are answered where some clients always wait for their answers."""
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
        """Ask until then, by the monotonic clock, and wait for the last answers."""
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
                # What was late, as after a pause of the server, is not made up for.
                due = max(due, now - 1.0) + self._order.expovariate(rate / call.tokens)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        self.close()

    def close(self) -> None:
        """Close the connections that are kept."""
        while self._unused:
            self._unused.pop()[0].close()

    def may_be_late(self) -> None:
        """A burst or a pause: for a while, answers may be late."""
        self._late_until = time.monotonic() + AFTERMATH_S

    def explains_lateness(self) -> bool:
        """Whether an answer with 504 has its explanation."""
        return time.monotonic() < self._late_until

    async def ask(self, call: Call) -> None:
        """One request on a connection that is free, or on a new one."""
        explained = self.explains_lateness()
        try:
            connection = await self._connection()
            answer = await connection.ask(call.request)
        except (Lost, OSError) as error:
            self.tally.lost(call, repr(error))
            return
        explained |= self.explains_lateness()
        self.tally.answered(call, answer, USUAL | {504} if explained else USUAL)
        if answer.closes:
            connection.close()
        else:
            self._unused.append((connection, time.monotonic()))

    async def farewell(self, end: Coroutine[Any, Any, None]) -> None:
        """Closed loops, on kept and on new connections; ``end`` sends the signal meanwhile."""
        asking = [self._until_refused(kept=number % 2 == 0) for number in range(CLIENTS)]
        await asyncio.gather(end, *asking)

    async def _until_refused(self, *, kept: bool) -> None:
        """Ask until the server says that it closes, or listens no more."""
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

    async def _connection(self) -> Connection:
        while self._unused and self._unused[0][1] < time.monotonic() - UNUSED_S:
            self._unused.pop(0)[0].close()
        return self._unused.pop()[0] if self._unused else await Connection.open(self.port)
