"""One gRPC call, as the methods see it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from starlette.types import Scope

from app.api.answers import check_number, timing
from app.api.middleware.limits import no_room
from app.api.routes.stream import IDLE_S
from app.api.service import Service
from app.api.work import Work, note_asked, note_done
from app.engine.classifier import Classification
from app.engine.text.encoded_text import TextOptions
from app.engine.text.pairs import Input
from app.errors import DeadlineExceeded, InvalidRequest, PayloadTooLarge, ShuttingDown
from app.grpc_api.messages import Message, Method

Context = Any  # grpc.aio.ServicerContext; grpcio comes without types


@dataclass(slots=True)
class Received:
    """A message of the client, the time by which it must be answered, and when it came.

    ``deadline`` is on the event loop's clock, ``at`` on the clock ``time.perf_counter``. Call
    ``release`` when its bytes are no longer needed.
    """

    message: Message
    deadline: float
    at: float
    size: int
    service: Service

    def release(self, done: object = None) -> None:
        """Give back the bytes that the message holds. May be a callback of a task that is done."""
        self.service.inflight.give(self.size)


class Call:
    """Reads a call's messages within the service's limits, and classifies texts for it.

    ``deadline`` is the time by which the call must be answered, on the event loop's clock. In a
    stream, each message has a deadline of its own, and ``ends`` is the end of the whole call.
    """

    def __init__(
        self,
        service: Service,
        method: Method,
        scope: Scope,
        context: Context,
        *,
        deadline: float,
        ends: float,
    ) -> None:
        self.service = service
        self.method = method
        self.timing = ""  # the time that each stage took, in the form of the header server-timing
        self._scope = scope
        self._context = context
        self.deadline = deadline
        self._ends = ends

    async def read(self) -> Received:
        """The only message of a call that is not a stream.

        Raises:
            DeadlineExceeded: it did not arrive in time.
            PayloadTooLarge: it has too many bytes, or is missing.
            Overloaded: the messages and bodies of all requests take too many bytes.
            InvalidRequest: its bytes are no such message.
        """
        try:
            async with asyncio.timeout_at(self.deadline):
                content = await self._context.read()
        except TimeoutError:
            raise DeadlineExceeded("the message did not arrive within the time allowed") from None
        if content is grpc.aio.EOF:
            # gRPC ends a call like this if its message is longer than allowed, and has told the
            # client so. No client that is generated from a .proto file leaves out the message.
            most = self.service.settings.max_body_bytes
            raise PayloadTooLarge(f"no message arrived, or one of more than {most} bytes")
        return self._received(content, self.deadline)

    async def messages(self) -> AsyncGenerator[Received, None]:
        """The messages of a stream, each with a deadline of its own.

        Raises:
            ShuttingDown: streams must end now.
            DeadlineExceeded: the client was silent for too long.
            PayloadTooLarge, Overloaded, InvalidRequest: as in ``read``.
        """
        loop = asyncio.get_running_loop()
        closing = loop.create_task(self.service.lifecycle.closing.wait())
        reading: asyncio.Task[Any] | None = None
        try:
            while True:
                reading = loop.create_task(self._context.read())
                await asyncio.wait(
                    (reading, closing), timeout=IDLE_S, return_when=asyncio.FIRST_COMPLETED
                )
                if closing.done():
                    raise ShuttingDown("the service is shutting down; send the rest again")
                if not reading.done():
                    raise DeadlineExceeded(f"nothing arrived for {IDLE_S:g} s")
                if (content := reading.result()) is grpc.aio.EOF:
                    return
                allowed_s = self.service.settings.deadline_ms / 1000
                yield self._received(content, min(loop.time() + allowed_s, self._ends))
        finally:
            closing.cancel()
            if reading is not None:
                reading.cancel()

    async def classify(
        self,
        texts: Sequence[Input],
        options: TextOptions,
        *,
        deadline: float,
        model: str | None = None,
    ) -> Classification:
        """Classify texts; the same as ``classify_texts`` does for HTTP.

        Raises:
            TooManyTexts: there are more texts than a request may have.
            ServiceError: ``model`` is not served, or the request as a whole failed.
        """
        check_number(self.service, texts)
        classifier = self.service.models.classifier(model)
        work = self._noted(classifier.model.name, len(texts))
        done = await classifier.classify(texts, options, deadline=deadline)
        if not self.method.streams:
            self.timing = timing(done)["server-timing"]
            note_done(work, done, done.outcomes)
        elif work is not None:  # the stages of its texts overlap
            work.add_tokens(done.outcomes)
        return done

    def _noted(self, model: str, texts: int) -> Work | None:
        """What the access log says of the call; the texts of a stream add up."""
        work: Work | None = self._scope["state"].get("work")
        if work is None:
            return note_asked(self._scope, model, texts)
        work.texts += texts
        return work

    def _received(self, content: bytes, deadline: float) -> Received:
        try:
            message = self.method.request.FromString(content)
        except DecodeError:
            name = self.method.request.DESCRIPTOR.full_name
            raise InvalidRequest(f"the bytes of the message are no {name}") from None
        if not self.service.inflight.take(len(content)):
            raise no_room(self.service)
        return Received(message, deadline, time.perf_counter(), len(content), self.service)


# What answers the methods, by their paths: with one message each way, or with streams.
Answers = Mapping[
    str,
    Callable[[Call, Message], Awaitable[Message]] | Callable[[Call], AsyncGenerator[Message, None]],
]
