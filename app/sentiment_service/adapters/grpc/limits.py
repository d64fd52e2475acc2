"""Bounds the memory of calls whose messages have not arrived: docs/grpc.md has the arithmetic.

Bytes that have arrived as a whole message are counted in ``Service.inflight``. gRPC does not say
how many of a message have come so far, so calls and messages are counted here, each for the most
that it can take.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sentiment_service.errors import Overloaded
from sentiment_service.service import Service

# What a client may send on a stream before it is read: the window with which HTTP/2 begins. A
# client that does not answer our settings may use all of it, so a shorter one would not hold.
WINDOW_BYTES = 65_535
# However few bytes are allowed.
LEAST_CALLS = 16
LEAST_ARRIVING = 2


class CallLimits:
    """The calls in progress, which are ``running``, and their messages that are arriving."""

    def __init__(self, service: Service) -> None:
        settings, workers = service.settings, service.board.workers
        bytes_allowed = service.inflight.limit // 2 // workers
        self.service = service
        self.most_calls = max(
            LEAST_CALLS, bytes_allowed // (WINDOW_BYTES + settings.max_header_bytes)
        )
        self.most_arriving = max(LEAST_ARRIVING, bytes_allowed // settings.max_body_bytes)
        self.running: set[asyncio.Task[object]] = set()
        self._watching = 0
        # What gives up each message that is arriving. The oldest comes first.
        self._arriving: dict[object, Callable[[], object]] = {}

    def check(self) -> None:
        """Return if the calls in progress are not too many.

        Raises:
            Overloaded: they are.
        """
        if len(self.running) > self.most_calls:
            raise self._overloaded(f"{self.most_calls} gRPC calls are in progress")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Wait for changes of the state in this context, for which a call needs no key.

        Raises:
            Overloaded: half of all calls that are accepted do so already.
        """
        if self._watching >= self.most_calls // 2:
            raise self._overloaded(f"{self._watching} calls of Watch are in progress")
        self._watching += 1
        try:
            yield
        finally:
            self._watching -= 1

    @contextmanager
    def arriving(self, give_up: Callable[[], object]) -> Iterator[None]:
        """Wait for a message in this context. ``give_up`` is called if it must end.

        When there are too many, the one that began first is given up. A message that was sent at
        once is complete before a few others begin. So clients that hold theirs back lose against
        those that do not.

        Raises:
            Overloaded: this message was given up.
            ShuttingDown: so were all.
        """
        if len(self._arriving) >= self.most_arriving:
            self._arriving.pop(next(iter(self._arriving)))()
        key = object()
        self._arriving[key] = give_up
        try:
            yield
        finally:
            if self._arriving.pop(key, None) is None:
                self.service.lifecycle.check()
                raise self._overloaded(f"{self.most_arriving} later gRPC messages are arriving")

    def give_up_all(self) -> None:
        """Give up all messages that are arriving, because the service is stopping."""
        for give_up in self._arriving.values():
            give_up()
        self._arriving.clear()

    def _overloaded(self, detail: str) -> Overloaded:
        error = Overloaded(f"{detail}, the most that are accepted", reason="inflight_bytes")
        self.service.models.classifier(None).observer.failure(error, texts=0)
        return error
