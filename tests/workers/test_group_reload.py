"""Reloads by all workers while some of them end."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from sentiment_service.shared_memory import WorkerPhase
from sentiment_service.workers.channels import Done, Fault, Message, Reload, Reloaded
from sentiment_service.workers.supervisor import LATE, GroupReload
from sentiment_service.workers.worker_process import WorkerProcess


class FakeWorker:
    """Notes the messages that it gets."""

    def __init__(self, phase: WorkerPhase) -> None:
        self.phase = phase
        self.fault = ""
        self.messages: list[Any] = []

    def send(self, message: Message) -> None:
        """The supervisor sends this."""
        self.messages.append(message)

    @property
    def kinds(self) -> list[str]:
        """What it was told to do."""
        return [type(message).__name__.lower() for message in self.messages]


class Reloads:
    """The reloads of two fake workers; another one, which stops, asks for them."""

    def __init__(self, loading_s: float = 30.0) -> None:
        self.workers = [FakeWorker(WorkerPhase.READY) for _ in range(2)]
        self.asker = FakeWorker(WorkerPhase.STOPPING)
        self.group = GroupReload(cast(list[WorkerProcess], self.workers), loading_s=loading_s)

    async def meanwhile(self, happening: Awaitable[None]) -> None:
        """Carry out reloads while something happens."""
        task = asyncio.create_task(self.group.run())
        await happening
        task.cancel()

    async def ask(self) -> None:
        """Ask for a reload."""
        await self.tell(self.asker, Reload("tiny", "first"))

    async def done(self, worker: FakeWorker) -> None:
        """The worker has done what it was told last."""
        await self.tell(worker, Done(worker.messages[-1].reload, None))

    async def tell(self, worker: FakeWorker, message: Message) -> None:
        """Let the supervisor get this message from the worker."""
        self.group.on_message(cast(WorkerProcess, worker), message)
        await asyncio.sleep(0.01)

    async def end(self, worker: FakeWorker) -> None:
        """The worker's process ends."""
        self.group.ended(cast(WorkerProcess, worker))
        await asyncio.sleep(0.01)


def test_a_worker_that_ends_between_the_two_steps_holds_up_nobody() -> None:
    """It had prepared the new model, and ends while another one prepares it; the others switch."""
    reloads = Reloads()
    first, second = reloads.workers

    async def happen() -> None:
        await reloads.ask()
        await reloads.done(first)
        await reloads.end(first)
        await reloads.done(second)
        assert (first.kinds, second.kinds) == (["prepare"], ["prepare", "switch"])
        await reloads.done(second)
        assert reloads.asker.messages == [Reloaded("first", None)]
        await reloads.ask()  # its successor takes part again
        assert first.kinds == ["prepare", "prepare"]

    asyncio.run(reloads.meanwhile(happen()))


def test_a_reload_whose_workers_all_end_has_failed() -> None:
    """No worker is left that has switched to the new model, so it is not said to be reloaded."""
    reloads = Reloads()

    async def happen() -> None:
        await reloads.ask()
        for worker in reloads.workers:
            await reloads.done(worker)
        for worker in reloads.workers:
            assert worker.kinds == ["prepare", "switch"]
            await reloads.end(worker)
        (answer,) = reloads.asker.messages
        assert answer.fault == Fault("not_ready", "no worker could load the model")

    asyncio.run(reloads.meanwhile(happen()))


def test_a_worker_that_hangs_at_a_reload_is_replaced() -> None:
    """It does not load the model in time: the others switch, and the next reload is not held up."""
    reloads = Reloads(loading_s=0.1)
    first, hangs = reloads.workers

    async def happen() -> None:
        await reloads.ask()
        await reloads.done(first)
        await until(lambda: first.kinds == ["prepare", "switch"])
        assert hangs.fault
        await reloads.done(first)
        assert [answer.fault for answer in reloads.asker.messages] == [None]
        await reloads.end(hangs)
        await reloads.ask()
        assert first.kinds == ["prepare", "switch", "prepare"]

    asyncio.run(reloads.meanwhile(happen()))


def test_workers_that_all_hang_at_a_reload_go_on() -> None:
    """The reload fails in the end, and all keep the old model: ending all would end the service."""
    reloads = Reloads(loading_s=0.1)

    async def happen() -> None:
        await reloads.ask()
        await until(lambda: bool(reloads.asker.messages))
        (answer,) = reloads.asker.messages
        assert answer.fault == LATE
        for worker in reloads.workers:
            assert (worker.kinds, worker.fault) == (["prepare", "drop"], "")

    asyncio.run(reloads.meanwhile(happen()))


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the test polls
            await asyncio.sleep(0.01)
