"""When a worker that has ended is started again."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from sentiment_service.settings.settings import Settings
from sentiment_service.shared_memory import Board, WorkerPhase
from sentiment_service.workers import worker_process
from sentiment_service.workers.worker_process import (
    LEAST_PAUSE_S,
    MOST_PAUSE_S,
    STEADY_S,
    WorkerProcess,
)


class Lives:
    """The processes of a worker, one after another, on a clock of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self._code: int | None = None
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(worker_process, "time", clock)
        process = SimpleNamespace(pid=1, poll=lambda: self._code)
        monkeypatch.setattr(WorkerProcess, "_spawn", lambda *_: process)
        self._worker = WorkerProcess(
            0, Board.alone(), 0, lambda: 0, 1, Settings(), _nothing, _nothing
        )

    def pause_after(self, *, ready_s: float | None) -> float:
        """The pause after a process that dies when it was ready for so long; None: never."""
        self._code = None
        self._worker.start()
        self._worker.look()
        if ready_s is not None:
            self._worker.status.phase_number = WorkerPhase.READY
            self._worker.look()
            self.now += ready_s
        self._code = 1
        self._worker.look()
        return self._worker.start_at - self.now


def _nothing(*_: Any) -> None:
    """Do nothing."""


@pytest.mark.parametrize("ready_s", [None, 0.0, STEADY_S / 2])
def test_pauses_double_while_processes_die_young(
    monkeypatch: pytest.MonkeyPatch, ready_s: float | None
) -> None:
    """Whether it was ready or not, up to a longest pause; a process that lasts ends that."""

    async def happen() -> None:
        lives = Lives(monkeypatch)
        pauses = [lives.pause_after(ready_s=ready_s) for _ in range(8)]
        doubled = [LEAST_PAUSE_S * 2**n for n in range(8)]
        assert pauses == [min(pause, MOST_PAUSE_S) for pause in doubled]
        assert lives.pause_after(ready_s=STEADY_S) == LEAST_PAUSE_S

    asyncio.run(happen())
