"""What the supervisor and its workers send each other over their sockets."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.engine.model_registry import ModelRegistry
from app.errors import InvalidBundle
from app.server.workers.channels import MESSAGE, Control, HandedOver
from app.server.workers.member import Member

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


def test_a_full_channel_loses_no_message(pair: Pair) -> None:
    """The other end reads nothing for a while; then it gets all messages in order."""

    async def run() -> list[int]:
        own_end, other_end = pair()
        sender = Control(own_end, lambda _: None, lambda: None)
        for number in range(MESSAGES):
            sender.send(number=number)
        received: list[int] = []
        all_received = asyncio.Event()

        def note(message: dict[str, Any]) -> None:
            received.append(message["number"])
            if len(received) == MESSAGES:
                all_received.set()

        Control(other_end, note, lambda: None)
        await asyncio.wait_for(all_received.wait(), 30)
        return received

    assert asyncio.run(run()) == [*range(MESSAGES)]


def test_messages_to_one_that_has_ended_are_given_up(pair: Pair) -> None:
    """Its end is noticed, and what is sent later does no harm."""

    async def run() -> None:
        own_end, other_end = pair()
        ended = asyncio.Event()
        sender = Control(own_end, lambda _: None, ended.set)
        for number in range(MESSAGES):
            sender.send(number=number)
        other_end.close()
        await asyncio.wait_for(ended.wait(), 30)
        sender.send(number=0)

    asyncio.run(run())


def test_an_answer_to_a_dead_worker_does_not_reach_the_next(pair: Pair) -> None:
    """It asked for a reload and died. Its successor, which asks too, waits for its own answer."""

    async def run() -> None:
        models = cast(ModelRegistry, SimpleNamespace(classifier=lambda _: None))
        requests: list[str] = []
        for _ in range(2):
            own_end, other_end = pair()
            member = Member(
                other_end, models, hang_up=lambda: None, read_files=lambda: None, stop=lambda: None
            )
            asking = asyncio.create_task(member.reload("tiny"))
            await asyncio.sleep(0)
            requests.append(json.loads(own_end.recv(1_000))["request"])
        for request, error in zip(requests, (None, [InvalidBundle.code, "damaged"]), strict=True):
            told = {"kind": "reloaded", "request": request, "error": error}
            own_end.send(json.dumps(told).encode())
        with pytest.raises(InvalidBundle):
            await asyncio.wait_for(asking, 30)

    asyncio.run(run())


def test_a_connection_that_is_lost_does_not_stay_counted(pair: Pair) -> None:
    """The kernel passes a message without its connection if the worker has no descriptor left."""

    async def run() -> tuple[int, list[socket.socket]]:
        supervisor_end, worker_end = pair()
        worker_end.setblocking(False)
        losses = 0

        def note() -> None:
            nonlocal losses
            losses += 1

        taken: list[socket.socket] = []

        def take(connection: socket.socket) -> bool:
            taken.append(connection)
            return True

        HandedOver(worker_end, take, note)
        supervisor_end.send(MESSAGE)
        supervisor_end.close()
        await asyncio.sleep(0.01)
        return losses, taken

    assert asyncio.run(run()) == (1, [])
