"""What the supervisor and its workers send each other over their sockets."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from sentiment_service.engine.model_registry import ModelRegistry
from sentiment_service.errors import InvalidBundle
from sentiment_service.shared_memory import Board
from sentiment_service.workers.channels import (
    DECODER,
    Control,
    Fault,
    Reload,
    Reloaded,
    Switch,
)
from sentiment_service.workers.member import Member

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


def test_messages_to_one_that_hangs_or_has_ended_are_given_up(pair: Pair) -> None:
    """The sender does not wait. An end is noticed, and what is sent later does no harm."""

    async def run() -> None:
        own_end, other_end = pair()
        ended = asyncio.Event()
        sender = Control(own_end, lambda *_: None, ended.set)
        for number in range(MESSAGES):
            sender.send(Switch(number))
        other_end.close()
        await asyncio.wait_for(ended.wait(), 30)
        sender.send(Switch(0))

    asyncio.run(run())


def test_an_answer_to_a_dead_worker_does_not_reach_the_next(pair: Pair) -> None:
    """It asked for a reload and died. Its successor, which asks too, waits for its own answer."""

    async def run() -> None:
        models = cast(ModelRegistry, SimpleNamespace(classifier=lambda _: None))
        requests: list[str] = []
        for _ in range(2):
            own_end, other_end = pair()
            member = Member(Board.alone(), other_end)
            member.join(models, hang_up=lambda: None, take=lambda _: None, stop=lambda: None)
            asking = asyncio.create_task(member.reload(models, "tiny"))
            await asyncio.sleep(0)
            asked = DECODER.decode(own_end.recv(1_000))
            assert isinstance(asked, Reload)
            requests.append(asked.request)
        damaged = Fault(InvalidBundle.code, "damaged")
        for request, fault in zip(requests, (None, damaged), strict=True):
            own_end.send(msgspec.json.encode(Reloaded(request, fault)))
        with pytest.raises(InvalidBundle):
            await asyncio.wait_for(asking, 30)

    asyncio.run(run())
