"""Draws faults at random, and counts what their clients see."""

import asyncio
import os
import random
import signal
import time

from checks.soak.faults import clients, floods, grpc_abuse, workers
from checks.soak.faults.outcomes import DONE, KILLED, LOST, Fault
from checks.soak.faults.reloads import Reloads
from checks.soak.traffic import Traffic
from checks.soak.wire import Lost

RATE = 1.5  # faults a second


class Faults:
    """Draws faults at random, while ``traffic`` runs.

    ``pid`` is the service's process. ``of_workers`` says whether it has workers, for their faults.
    At ``tls_port`` is another server, which has TLS.
    """

    def __init__(
        self, traffic: Traffic, pid: int, seed: int, tls_port: int, *, of_workers: bool = False
    ) -> None:
        self._traffic = traffic
        self._pid = pid
        self._schedule = random.Random(seed)  # decides which fault happens when
        order = random.Random(seed)
        reloads = Reloads(traffic, pid, order)
        self._faults = {
            **reloads.faults(),
            "SIGSTOP for a second": Fault(0.5, self._stop_for_a_second, {DONE}),
            **clients.faults(traffic, order),
            **floods.faults(traffic, tls_port),
            **grpc_abuse.faults(traffic),
        }
        if of_workers:
            self._faults |= workers.faults(traffic, order, reloads)

    async def run(self, until: float) -> None:
        """Draw faults until this time of the monotonic clock, then wait for their ends.

        At first each has its turn, so that a short run has all of them.
        """
        kinds, shares = list(self._faults), [fault.share for fault in self._faults.values()]
        first = self._schedule.sample(kinds, len(kinds))
        async with asyncio.TaskGroup() as tasks:
            while time.monotonic() < until:
                kind = first.pop() if first else self._schedule.choices(kinds, shares)[0]
                tasks.create_task(self.inflict(kind))
                await asyncio.sleep(self._schedule.expovariate(RATE))

    async def inflict(self, kind: str) -> None:
        """Run a fault once and count what its client saw."""
        fault, began, why = self._faults[kind], time.monotonic(), ""
        deaths, late = self._traffic.deaths, self._traffic.explains_lateness()
        try:
            outcome = await fault.inflict()
        except (Lost, OSError) as error:
            outcome, why = KILLED if deaths.explain(error) else LOST, repr(error)
        if "gRPC" in kind and outcome in {LOST, "499", "503"} and deaths.explain_grpc(began):
            outcome = KILLED
        late |= self._traffic.explains_lateness()
        allowed = {KILLED, "504"} if late else {KILLED}
        self._traffic.tally.fault(kind, outcome, fault.expected | allowed, why)

    async def _stop_for_a_second(self) -> str:
        self._traffic.may_be_late()
        os.kill(self._pid, signal.SIGSTOP)
        await asyncio.sleep(1)
        os.kill(self._pid, signal.SIGCONT)
        return DONE
