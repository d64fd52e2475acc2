"""The supervisor's parts: messages, the pauses before starts, and reloads by all workers."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from sentiment_service.engine.model_registry import ModelRegistry
from sentiment_service.errors import InvalidBundle
from sentiment_service.settings.credentials import Credentials
from sentiment_service.settings.settings import Settings
from sentiment_service.shared_memory import Board, WorkerPhase
from sentiment_service.workers.channels import (
    DECODER,
    Control,
    Decided,
    Done,
    Fault,
    Message,
    NewCredentials,
    Reload,
    Reloaded,
)
from sentiment_service.workers.member import Member
from sentiment_service.workers.supervisor import LATE, GroupReload
from sentiment_service.workers.worker_process import (
    LEAST_PAUSE_S,
    MOST_PAUSE_S,
    STEADY_S,
    VARIABLE,
    Assignment,
    WorkerProcess,
)

from tests.support.batching import until

MESSAGES = 2_000  # more than a socket holds


Pair = Callable[[], tuple[socket.socket, socket.socket]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of new sockets; they are closed with the test."""
    with ExitStack() as stack:

        def make() -> tuple[socket.socket, socket.socket]:
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in ends:
                stack.enter_context(end)
            return ends

        yield make


async def test_messages_to_one_that_hangs_or_has_ended_are_given_up(pair: Pair) -> None:
    """The sender does not wait. An end is noticed, and what is sent later does no harm."""
    own_end, other_end = pair()
    ended = asyncio.Event()
    sender = Control(own_end, lambda *_: None, ended.set)
    for number in range(MESSAGES):
        sender.send(Decided(number, switch=True))
    other_end.close()
    await ended.wait()
    assert not sender.send(Decided(0, switch=True))


async def test_a_worker_that_cannot_take_new_keys_ends(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing it has would open a certificate's file; it does not go on with revoked keys."""
    own_end, other_end = pair()
    member, stopped = Member(other_end, Board.alone(), 1.0, 1), asyncio.Event()
    models = cast(ModelRegistry, SimpleNamespace())

    def take(_: Credentials) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    member.join(models, hang_up=_nothing, take=take, stop=stopped.set)
    descriptor = Credentials((), (), None, None).to_descriptor()
    socket.send_fds(own_end, [msgspec.json.encode(NewCredentials())], [descriptor])
    os.close(descriptor)
    await asyncio.wait_for(stopped.wait(), 30)
    assert "keys and certificate cannot be taken: Too many open files" in caplog.text


async def test_an_answer_to_a_dead_worker_does_not_reach_the_next(pair: Pair) -> None:
    """It asked for a reload and died. Its successor, which asks too, waits for its own answer."""
    named = SimpleNamespace(of=lambda _: None)
    models = cast(ModelRegistry, SimpleNamespace(classifiers=named))
    requests: list[str] = []
    for _ in range(2):
        own_end, other_end = pair()
        member = Member(other_end, Board.alone(), 1.0, 1)
        member.join(models, hang_up=lambda: None, take=lambda _: None, stop=lambda: None)
        asking = asyncio.create_task(member.reload(models, "tiny"))
        await asyncio.sleep(0)
        own_end.settimeout(30)
        asked = DECODER.decode(own_end.recv(1_000))
        assert isinstance(asked, Reload)
        requests.append(asked.request)
    damaged = Fault(InvalidBundle.code, "damaged")
    for request, fault in zip(requests, (None, damaged), strict=True):
        own_end.send(msgspec.json.encode(Reloaded(request, fault)))
    with pytest.raises(InvalidBundle):
        await asking


class Lives:
    """The processes of a worker, one after another, on a clock of their own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._code: int | None = None

        class Spawned(WorkerProcess):
            def _spawn(own, *_: Any) -> Any:  # noqa: N805 - self is the other one
                return SimpleNamespace(pid=1, poll=lambda: self._code)

        self._worker = Spawned(
            0, Board.alone(), 0, lambda: 0, 1, Settings(), _nothing, _nothing, lambda: self.now
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
async def test_pauses_double_while_processes_die_young(ready_s: float | None) -> None:
    """Whether it was ready or not, up to a longest pause; a process that lasts ends that."""
    lives = Lives()
    pauses = [lives.pause_after(ready_s=ready_s) for _ in range(8)]
    doubled = [LEAST_PAUSE_S * 2**n for n in range(8)]
    assert pauses == [min(pause, MOST_PAUSE_S) for pause in doubled]
    assert lives.pause_after(ready_s=STEADY_S) == LEAST_PAUSE_S


async def test_a_path_that_is_not_utf_8_reaches_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the supervisor says of a bundle is what its worker opens."""
    started: dict[str, Any] = {}

    def popen(_: list[str], **options: Any) -> SimpleNamespace:
        started.update(options)
        return SimpleNamespace(pid=1, poll=lambda: 0)

    monkeypatch.setattr("sentiment_service.workers.worker_process.subprocess.Popen", popen)
    settings = Settings().model_copy(update={"model": (Path(os.fsdecode(b"/caf\xe9")),)})
    worker = WorkerProcess(0, Board.alone(), 0, lambda: 0, 1, settings, _nothing, _nothing)
    worker.start()
    worker.look()  # it has ended
    monkeypatch.setenv(VARIABLE, started["env"][VARIABLE])
    assignment = Assignment.of_this_process()
    assert assignment
    assert assignment.applied_to(Settings()).model == settings.model


class FakeWorker:
    """Notes the messages that it gets."""

    def __init__(self, phase: WorkerPhase) -> None:
        self.phase = phase
        self.silent = False
        self.fault = ""
        self.messages: list[Any] = []
        self.promoted: tuple[str, bool] | None = None

    def promote(self, name: str, *, loads: bool) -> None:
        """The supervisor says which model its next process serves."""
        self.promoted = name, loads

    def send(self, message: Message) -> None:
        """The supervisor sends this."""
        self.messages.append(message)

    @property
    def kinds(self) -> list[str]:
        """What it was told to do."""
        return [
            ("switch" if message.switch else "drop")
            if isinstance(message, Decided)
            else type(message).__name__.lower()
            for message in self.messages
        ]


class Reloads:
    """The reloads of two fake workers; another one, which stops, asks for them."""

    def __init__(self, loading_s: float = 30.0) -> None:
        self.workers = [FakeWorker(WorkerPhase.READY) for _ in range(2)]
        self.asker = FakeWorker(WorkerPhase.STOPPING)
        self.group = GroupReload(cast(list[WorkerProcess], self.workers), loading_s=loading_s)

    async def ask(self, *, promote: bool = False) -> None:
        """Ask for a reload."""
        await self.tell(self.asker, Reload("tiny", "first", promote))

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


@asynccontextmanager
async def reloading(loading_s: float = 30.0) -> AsyncIterator[Reloads]:
    """Reloads that are carried out meanwhile."""
    reloads = Reloads(loading_s)
    task = asyncio.create_task(reloads.group.run())
    yield reloads
    task.cancel()


async def test_a_worker_that_ends_between_the_two_steps_holds_up_nobody() -> None:
    """It had prepared the new model, and ends while another one prepares it; the others switch."""
    async with reloading() as reloads:
        first, second = reloads.workers
        await reloads.ask()
        await reloads.done(first)
        await reloads.end(first)
        await reloads.done(second)
        assert (first.kinds, second.kinds) == (["prepare"], ["prepare", "switch"])
        await reloads.done(second)
        assert reloads.asker.messages == [Reloaded("first", None)]
        await reloads.ask()  # its successor takes part again
        assert first.kinds == ["prepare", "prepare"]


async def test_a_reload_whose_workers_all_end_has_failed() -> None:
    """No worker is left that has switched to the new model, so it is not said to be reloaded."""
    async with reloading() as reloads:
        await reloads.ask()
        for worker in reloads.workers:
            await reloads.done(worker)
        for worker in reloads.workers:
            assert worker.kinds == ["prepare", "switch"]
            await reloads.end(worker)
        (answer,) = reloads.asker.messages
        assert answer.fault == Fault("not_ready", "no worker could load the model")


async def test_a_worker_that_hangs_at_a_reload_is_replaced() -> None:
    """It does not load the model in time: the others switch, and the next reload is not held up."""
    async with reloading(loading_s=0.1) as reloads:
        first, hangs = reloads.workers
        await reloads.ask()
        await reloads.done(first)
        await until(lambda: first.kinds == ["prepare", "switch"])
        assert hangs.fault
        await reloads.done(first)
        assert [answer.fault for answer in reloads.asker.messages] == [None]
        await reloads.end(hangs)
        await reloads.ask()
        assert first.kinds == ["prepare", "switch", "prepare"]


async def test_a_reload_does_not_wait_for_a_worker_that_is_silent() -> None:
    """It may be stopped; a service of one hung worker and others takes the new model at once."""
    async with reloading() as reloads:
        first, stopped = reloads.workers
        stopped.silent = True
        await reloads.ask()
        await reloads.done(first)
        await reloads.done(first)
        assert (first.kinds, stopped.kinds) == (["prepare", "switch"], [])
        assert reloads.asker.messages == [Reloaded("first", None)]


async def test_workers_that_all_hang_at_a_reload_go_on() -> None:
    """The reload fails in the end, and all keep the old model: ending all would end the service."""
    async with reloading(loading_s=0.1) as reloads:
        await reloads.ask()
        await until(lambda: bool(reloads.asker.messages))
        (answer,) = reloads.asker.messages
        assert answer.fault == LATE
        for worker in reloads.workers:
            assert (worker.kinds, worker.fault) == (["prepare", "drop"], "")


async def test_a_worker_that_starts_during_a_promotion_is_replaced() -> None:
    """It may have loaded the old model already. What is promoted is served from the next start on.

    If one worker cannot load the candidate, nothing changes for anybody.
    """
    async with reloading() as reloads:
        first, second = reloads.workers
        starting = FakeWorker(WorkerPhase.STARTING)
        await reloads.ask(promote=True)
        await reloads.tell(first, Done(1, Fault("invalid_bundle", "it was changed")))
        await reloads.done(second)
        assert (first.kinds, second.kinds) == (["prepare", "drop"], ["prepare", "drop"])
        assert reloads.asker.messages[-1].fault.code == "invalid_bundle"
        assert [worker.promoted for worker in reloads.workers] == [None, None]
        reloads.workers.append(starting)
        await reloads.ask(promote=True)
        assert first.messages[-1].promote
        for _ in range(2):  # prepare, then switch
            for worker in (first, second):
                await reloads.done(worker)
        assert [worker.promoted for worker in (first, second)] == [("tiny", False)] * 2
        assert starting.promoted == ("tiny", True)
        assert reloads.asker.messages[-1] == Reloaded("first", None)
