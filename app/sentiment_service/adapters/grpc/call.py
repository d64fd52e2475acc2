"""One gRPC call, as the methods see it."""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from sentiment_service.adapters.grpc.limits import CallLimits
from sentiment_service.adapters.grpc.messages import METHODS, Message, Method, more_fields
from sentiment_service.engine.classifier import Classification
from sentiment_service.engine.predictions import Outcome
from sentiment_service.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    InvalidRequest,
    MethodNotAllowed,
    PayloadTooLarge,
    ServiceError,
    ShuttingDown,
)
from sentiment_service.exchange import UNMATCHED, Arrival, Exchange
from sentiment_service.limits import plain_address

Context = Any  # grpc.aio.ServicerContext; grpcio comes without types

# Fields of a message, its parts' included, beside one for each text. Decoding a million of them
# would hold the event loop.
FIELDS = 1_000
GRPC = "GRPC"  # in the place of HTTP's method, in metrics and log
# A stream whose client is silent for this long is ended.
IDLE_S = 300.0
# By the errors' HTTP statuses.
STATUS_CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,  # as gRPC itself answers
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}

# What answers a method, with one message each way or with streams; and all, by the methods' paths.
Handler = (
    Callable[["Call", Message], Awaitable[Message]]
    | Callable[["Call"], AsyncGenerator[Message, None]]
)
Handlers = Mapping[str, Handler]


class Call(Exchange):
    """A call: its messages are read within the service's limits, and a method answers it."""

    def __init__(
        self, limits: CallLimits, path: str, handler: Handler | None, context: Context
    ) -> None:
        """``handler`` is None if no method has this ``path``."""
        # Such as ipv4:127.0.0.1:5000 or ipv6:%5B::1%5D:5000
        host = unquote(context.peer()).partition(":")[2].rpartition(":")[0]
        client = plain_address(host.strip("[]"))
        headers = {
            name.encode(): value.encode() if isinstance(value, str) else value
            for name, value in context.invocation_metadata() or ()
        }
        metadata = context.invocation_metadata() or ()
        lines = [str(value).encode() for name, value in metadata if name == "x-forwarded-for"]
        client = limits.service.proxies.client(client, lines)
        super().__init__(
            limits.service,
            verb=GRPC,
            path=path,
            headers=headers,
            client=client,
            arrival=Arrival(asyncio.get_running_loop().time()),
        )
        self.timing = ""  # the time that each stage took, in the form of the header server-timing
        self.limits = limits
        self._handler = handler
        self._context = context
        self._failure: ServiceError | None = None
        self.route = path if handler else UNMATCHED
        self.status = 200

    @property
    def method(self) -> Method:
        """The method that is called, which must be known."""
        return METHODS[self.path]

    async def _answer(self) -> None:
        paths = self.service.paths
        if self.path not in paths.probes and self.path not in paths.open:
            self.limits.check()
        if self._handler is None:
            raise MethodNotAllowed("no gRPC method has this name")
        if (left_s := self._context.time_remaining()) is not None:
            self.deadline = min(self.deadline, asyncio.get_running_loop().time() + left_s)
        handler: Any = self._handler
        if self.method.streams:
            async with aclosing(handler(self)) as responses:
                async for response in responses:
                    await self._context.write(response.SerializeToString())
        else:
            response = await handler(self, await self.read())
            await self._context.write(response.SerializeToString())
        self._set_trailing()

    async def _fail(self, error: ServiceError, cause: BaseException) -> None:
        self._failure = error
        self.status = error.status
        self._context.set_code(STATUS_CODES[error.status])
        self._context.set_details(error.detail)
        self._set_trailing()
        if isinstance(cause, asyncio.CancelledError):
            raise cause

    def _error(self, cause: BaseException) -> ServiceError:
        if self.service.lifecycle.stopping:
            if isinstance(cause, grpc.aio.BaseError):  # the connection is closed
                cause = ShuttingDown("the service shut down before the answer")
        elif isinstance(cause, asyncio.CancelledError):
            left_s = self._context.time_remaining()
            if left_s is not None and left_s <= 0:
                cause = DeadlineExceeded("the call's own deadline passed before its answer")
            else:
                cause = ClientDisconnected("the client cancelled the call before its answer")
        return super()._error(cause)

    def _set_trailing(self) -> None:
        trailing = [("x-request-id", self.request_id)]
        if self.timing:
            trailing.append(("server-timing", self.timing))
        if self._failure is not None:
            trailing.append(("error-code", self._failure.code))
            if (wait_s := self._failure.retry_after_s) is not None:
                trailing.append(("retry-after", str(max(1, math.ceil(wait_s)))))
                # gRPC's own clients wait as long before they retry, where retries are configured.
                trailing.append(("grpc-retry-pushback-ms", str(math.ceil(wait_s * 1000))))
        self._context.set_trailing_metadata(tuple(trailing))

    async def read(self) -> Message:
        """The only message of a call, or the first.

        Raises:
            DeadlineExceeded: it did not arrive in time.
            PayloadTooLarge: it has too many bytes, or is missing.
            Overloaded: the messages and bodies of all requests take too many bytes, or others
                came while this message was held back.
            ShuttingDown: the service began to shut down while it was awaited.
            InvalidRequest: its bytes are no such message.
        """
        content = await self._next(
            self.deadline, "the message did not arrive within the time allowed"
        )
        if content is grpc.aio.EOF:
            # gRPC ends a call like this if its message is longer than allowed, and has
            # answered it. No client that is made from a .proto file leaves out the message.
            most = self.service.settings.max_body_bytes
            raise PayloadTooLarge(f"no message arrived, or one of more than {most} bytes")
        message = self._parsed(content)
        if not self.method.streams:  # a stream may last for hours, and its messages are short
            self.hold(len(content))
        return message

    async def messages(self) -> AsyncGenerator[Message, None]:
        """The messages of a stream.

        Raises:
            ShuttingDown: streams must end now.
            DeadlineExceeded: the client was silent for too long.
            Overloaded, InvalidRequest: as in ``read``.
        """
        loop = asyncio.get_running_loop()
        while not self.service.lifecycle.stopping:
            content = await self._next(loop.time() + IDLE_S, f"nothing arrived for {IDLE_S:g} s")
            if content is grpc.aio.EOF:
                return
            yield self._parsed(content)
        raise ShuttingDown("the service is shutting down; send the rest again")

    async def _next(self, until: float, late: str) -> bytes:
        """The bytes of the next message, or EOF. ``late`` is the error if none comes in time."""
        try:
            async with asyncio.timeout_at(until) as timer:

                def give_up() -> None:
                    if not timer.expired():
                        timer.reschedule(0)

                with self.limits.arriving(give_up):
                    content: bytes = await self._context.read()
        except TimeoutError:
            raise DeadlineExceeded(late) from None
        return content

    def classified(self, done: Classification, outcomes: Iterable[Outcome]) -> None:
        """Note the time of each stage for the trailing metadata, too."""
        self.timing = done.server_timing
        super().classified(done, outcomes)

    def _parsed(self, content: bytes) -> Message:
        kind, most = self.method.request, FIELDS + self.service.settings.max_texts
        try:
            if more_fields(content, kind.DESCRIPTOR, most):
                raise InvalidRequest(f"the message has more than {most} fields")
            return kind.FromString(content)
        except DecodeError:
            name = kind.DESCRIPTOR.full_name
            raise InvalidRequest(f"the bytes of the message are no {name}") from None
