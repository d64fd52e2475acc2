"""Faults of the worker processes of a service: they are killed, stopped, and reloaded then."""

import asyncio
import json
import os
import random
import signal
from functools import partial
from typing import Any

from checks.soak.faults.outcomes import DONE, LOST, Fault
from checks.soak.faults.reloads import LOOK_S, READY_S, Act, Reloads
from checks.soak.traffic import Traffic
from checks.soak.wire import Connection, Lost, request


def faults(traffic: Traffic, order: random.Random, reloads: Reloads) -> dict[str, Fault]:
    """What happens to workers. One thing at a time, so that another one serves meanwhile."""
    workers = _Workers(traffic, order)
    return {
        "kill -9 of a worker": Fault(0.4, reloads.alone(workers.kill), {DONE}),
        "SIGSTOP of a worker for some seconds": Fault(0.4, reloads.alone(workers.stop), {DONE}),
        "reload by HTTP while a worker restarts": Fault(
            0.3, reloads.alone(partial(workers.kill, reloads.by_http)), {DONE}
        ),
        "reload by SIGHUP while a worker restarts": Fault(
            0.3, reloads.alone(partial(workers.kill, reloads.by_sighup)), {DONE}
        ),
        "recalibration, loaded by the successor of a killed worker": Fault(
            0.4, reloads.recalibration(workers.kill), {DONE}
        ),
    }


class _Workers:
    def __init__(self, traffic: Traffic, order: random.Random) -> None:
        self._traffic = traffic
        self._order = order

    async def kill(self, then: Act | None = None) -> str:
        """Kill the last worker, so that the memory of the first one shows what grows."""
        killed = (await self._all_ready())[-1]
        self._traffic.may_be_late()
        self._traffic.deaths.kill(killed, self._traffic.port)
        if then is not None:
            await asyncio.sleep(self._order.uniform(0, 4))
            seen = await then()
            if seen not in {"200", DONE}:
                return seen
        await self._all_ready(without=killed)
        self._traffic.may_be_late()
        return DONE

    async def stop(self) -> str:
        """Stop any worker; it must be back afterwards."""
        stopped = self._order.choice(await self._all_ready())
        os.kill(stopped, signal.SIGSTOP)
        for _ in range(self._order.randint(1, 8)):
            self._traffic.may_be_late()
            await asyncio.sleep(1)
        os.kill(stopped, signal.SIGCONT)
        self._traffic.may_be_late()
        return DONE if stopped in await self._all_ready() else LOST

    async def _all_ready(self, *, without: int = 0) -> list[int]:
        """Wait until all workers are ready, none of them this process; their ids, by number.

        Until they are, the others have more work than they can do.

        Raises:
            TimeoutError: they are not, although they had the time.
        """
        async with asyncio.timeout(READY_S):
            while True:
                workers = await self._workers()
                pids = [worker["pid"] for worker in workers if worker["stage"] == "ready"]
                if workers and len(pids) == len(workers) and without not in pids:
                    return pids
                self._traffic.may_be_late()
                await asyncio.sleep(LOOK_S)

    async def _workers(self) -> list[dict[str, Any]]:
        """The workers as ``GET /info`` shows them; none if it was refused, or its worker killed."""
        try:
            async with await Connection.open(self._traffic.port) as connection:
                answer = await connection.ask(request("GET", "/info"))
        except Lost:
            return []
        if answer.status != 200:
            return []
        workers: list[dict[str, Any]] = json.loads(answer.body)["workers"]
        return workers
