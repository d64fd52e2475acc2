"""Deals the connections of the service to its workers: each to the one that has the fewest."""

import socket
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import count

from app.server.arrivals import Arrivals
from app.server.workers.unserved import refuse
from app.server.workers.worker_process import WorkerProcess


class Dealer:
    """Accepts connections at the ``sites``, and gives each to a worker.

    Of the workers that are ready and answer, the one with the fewest open connections gets the
    next; if several have as many, they take turns. While no worker takes one, connections wait in
    the kernel; while there is no worker, they get 503. Call ``look`` several times a second: it
    looks which workers are ready.
    """

    def __init__(self, sites: Sequence[socket.socket], workers: Sequence[WorkerProcess]) -> None:
        self._sites = sites
        self._workers = workers
        self._best: list[WorkerProcess] = []
        self._turns = count(1)
        self._latest = dict.fromkeys(range(len(workers)), 0)  # turn, by the worker's number
        self._arrivals: list[Arrivals] = []
        self._undealt: deque[tuple[int, socket.socket]] = deque()  # with their sites
        self._closing = False
        self._refused = 0

    @property
    def accepted(self) -> int:
        """The number of connections until now."""
        return sum(arrivals.accepted for arrivals in self._arrivals)

    @property
    def waiting(self) -> bool:
        """Whether connections were accepted that no worker could be given yet."""
        return bool(self._undealt)

    def listen(self) -> None:
        """Accept connections from now on.

        Raises:
            UserError: another process listens on one of the addresses.
        """
        self.look()
        for site, listener in enumerate(self._sites):
            self._arrivals.append(Arrivals(listener, partial(self._deal, site)))

    def look(self) -> None:
        """Look which workers are ready, and deal what waits, or was dealt to one that has ended."""
        for worker in self._workers:
            self._undealt += worker.returned()
        reachable = [worker for worker in self._workers if worker.reachable]
        best = min((worker.rank for worker in reachable), default=None)
        self._best = [worker for worker in reachable if worker.rank == best]
        waited = self.waiting
        while self._undealt and self._try(*self._undealt[0]):
            self._undealt.popleft()
        if waited and not self._undealt:
            for arrivals in self._arrivals:
                arrivals.resume()

    def forget_refused(self) -> int:
        """The number of connections that got 503 since the last call."""
        refused, self._refused = self._refused, 0
        return refused

    async def close(self) -> None:
        """Accept every connection that the kernel has completed, then stop listening.

        Call ``look`` until none is ``waiting``.
        """
        self._closing = True
        for arrivals in self._arrivals:
            await arrivals.close()

    def _deal(self, site: int, connection: socket.socket) -> bool:
        if not self._undealt and self._try(site, connection):
            return True
        self._undealt.append((site, connection))
        return self._closing

    def _try(self, site: int, connection: socket.socket) -> bool:
        """Give the connection to a worker, or refuse it if there is none; False: it must wait."""
        if self._best:
            worker = min(self._best, key=self._burden)
            if self._give(worker, site, connection):
                return True
        others = sorted(
            (worker for worker in self._workers if worker.reachable), key=lambda worker: worker.rank
        )
        if not others:
            self._refused += 1
            refuse(connection)
            return True
        return any(self._give(worker, site, connection) for worker in others)

    def _give(self, worker: WorkerProcess, site: int, connection: socket.socket) -> bool:
        self._latest[worker.number] = next(self._turns)
        return worker.give(site, connection)

    def _burden(self, worker: WorkerProcess) -> tuple[int, int]:
        return worker.status.open, self._latest[worker.number]
