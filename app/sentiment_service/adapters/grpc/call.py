"""One gRPC call, as the methods see it, and what all calls may take: docs/grpc.md has the sums.

gRPC does not say how many bytes of a message have come or gone so far, so calls that wait for their
clients are counted here, each for the most that it can take.

The tasks and futures of grpc.aio are ours. It frees what it gave its C library for an operation
only when the task that waits goes on: not when the operation has failed, nor when the task was
cancelled (grpcio 1.85, ``execute_batch``). Clients that reset calls would leave 550 bytes a call.
"""

import asyncio
import math
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import aclosing, contextmanager
from typing import Any, cast
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from sentiment_service import errors
from sentiment_service.adapters.grpc.messages import METHODS, Message, Method, more_fields
from sentiment_service.requests.exchange import UNMATCHED, Arrival, Exchange
from sentiment_service.requests.limits import Waiting, plain_address
from sentiment_service.requests.service import Service

Context = Any  # grpc.aio.ServicerContext; grpcio comes without types

INFER = "/inference.GRPCInferenceService/ModelInfer"  # the method that takes texts
NAMES = ", ".join(path.rpartition("/")[2] for path in METHODS if "GRPCInference" in path)
SHORT_BYTES = 4_096  # the most of a message for any other method
FIELDS = 1_000  # of a message, beside one for each text: a million would hold the event loop
GRPC = "GRPC"  # in the place of HTTP's method, in metrics and log
IDLE_S = 300.0  # after this silence of its client, a stream is ended ...
UNTAKEN_S = 60.0  # ... and a call whose client does not take a message
# What a client may send on a stream before it is read: the window with which HTTP/2 begins.
WINDOW_BYTES = 65_535
# Of a deadline, this is what is left at the arrival. If it was as long as ours, it is no shorter.
UNDER_WAY = 0.95
# However few bytes are allowed: calls, and those of them that wait for their clients.
LEAST_CALLS, LEAST_WAITING = 16, 4
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


class Operation(asyncio.Future[None]):
    """The end of an operation of the C library, also if it failed or its task has given it up."""

    failed = given_up = False
    seen = False  # by the task

    def set_result(self, result: None) -> None:
        if not self.done():
            super().set_result(result)

    def set_exception(self, exception: type[BaseException] | BaseException) -> None:
        if isinstance(exception, grpc.aio.InternalError):
            self.failed = True
            self.set_result(None)
        elif not self.done():
            super().set_exception(exception)

    def result(self) -> None:
        self.seen = True
        return super().result()


class ServingTask(asyncio.Task[object]):
    """A task of grpc.aio. To cancel it while it waits for its latest operation gives that up.

    One waits for the end of a call, and is the ``maker`` of the one that serves it.
    """

    maker: asyncio.Task[object]
    operation: Operation | None = None

    def cancel(self, msg: object = None) -> bool:
        if self.operation is None or self.operation.seen:
            return super().cancel(msg)
        self.operation.given_up = True
        self.operation.set_result(None)
        return True


class Operations:
    """The event loop as grpc.aio uses it. Create it on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def create_task(
        self, work: Coroutine[Any, Any, object], *, name: str | None = None
    ) -> ServingTask:
        task = ServingTask(work, loop=self._loop, name=name)
        task.maker = cast(asyncio.Task[object], asyncio.current_task())
        return task

    def create_future(self) -> asyncio.Future[None]:
        task = asyncio.current_task()
        if not isinstance(task, ServingTask):
            return self._loop.create_future()
        task.operation = Operation(loop=self._loop)
        return task.operation

    def call_soon_threadsafe(self, function: Callable[..., None], *args: object) -> None:
        function(*args)  # grpc.aio takes its events on this event loop already


class CallLimits:
    """The calls in progress, which are ``running``, and those of them that wait for their clients.

    ``drop`` ends the call of a task at once, whatever its client has not taken.
    """

    def __init__(
        self,
        service: Service,
        drop: Callable[[ServingTask], object],
        *,
        untaken_s: float = UNTAKEN_S,
    ) -> None:
        settings = service.settings
        bytes_allowed = service.inflight.limit // 2 // service.board.workers
        self.service = service
        self.drop = drop
        self.untaken_s = untaken_s
        self.addresses: Mapping[str, str] = {}  # of clients for which gRPC has other names
        self.call_bytes = WINDOW_BYTES + settings.max_header_bytes
        self.most_calls = max(LEAST_CALLS, bytes_allowed // self.call_bytes)
        self.running: set[ServingTask] = set()
        # A quarter of all calls at most is in each of these, so that others can be answered.
        self.arriving = Waiting(bytes_allowed, LEAST_WAITING)
        self.arriving_bytes = max(settings.max_body_bytes, 4 * self.call_bytes)
        self.leaving = Waiting(bytes_allowed // 4, LEAST_WAITING)
        self._watching = 0

    def begin(self, task: ServingTask) -> None:
        """Count the call of a task until its end."""
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        task.add_done_callback(self.leaving.remove)

    def check(self) -> None:
        if len(self.running) > self.most_calls:
            raise self.overloaded(f"{self.most_calls} gRPC calls are in progress")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Wait for changes of the state, without a key: a quarter of all calls may do so."""
        if self._watching >= self.most_calls // 4:
            raise self.overloaded(f"{self._watching} calls of Watch are in progress")
        self._watching += 1
        try:
            yield
        finally:
            self._watching -= 1

    def leaves(self, task: ServingTask, size: int = 0) -> None:
        """Count a message of this size, or the status, that the client has not taken yet."""
        self.leaving.add(task, self.call_bytes + size, lambda: self.drop(task))

    def overloaded(self, detail: str) -> errors.Overloaded:
        """Count a call that is refused because there are too many; return its error."""
        error = errors.Overloaded(f"{detail}, the most that are accepted", reason="inflight_bytes")
        self.service.models.classifiers.of(None).observer.failure(error, texts=0)
        return error

    def client(self, peer: str) -> str:
        """The address of a call's client, such as ipv4:127.0.0.1:5000 or ipv6:%5B::1%5D:5000."""
        host = self.addresses.get(peer) or unquote(peer).partition(":")[2].rpartition(":")[0]
        return plain_address(host.strip("[]"))


class Call(Exchange):
    """A call: its messages are read within the service's limits, and a method answers it."""

    def __init__(
        self, limits: CallLimits, path: str, handler: Handler | None, context: Context
    ) -> None:
        """``handler`` is None if no method has this ``path``."""
        metadata = context.invocation_metadata() or ()
        super().__init__(
            limits.service,
            verb=GRPC,
            path=path,
            headers=[
                (name.encode(), value.encode() if isinstance(value, str) else value)
                for name, value in metadata
            ],
            client=limits.client(context.peer()),
            arrival=Arrival(),
        )
        self.timing = ""  # the time that each stage took, in the form of the header server-timing
        self.limits = limits
        self._handler = handler
        self._context = context
        self._task = cast(ServingTask, asyncio.current_task())
        self.route = path if handler else UNMATCHED
        self.status = 200

    @property
    def method(self) -> Method:
        return METHODS[self.path]

    async def _answer(self) -> None:
        paths = self.service.paths
        if self.path not in paths.probes and self.path not in paths.open:
            self.limits.check()
        if self._handler is None:
            raise errors.MethodNotAllowed(f"no gRPC method has this name; the methods are {NAMES}")
        if (left_s := self._context.time_remaining()) is not None:
            left_ms = max(0.0, left_s * 1000)
            self.deadline = min(self.deadline, asyncio.get_running_loop().time() + left_s)
            if left_ms < UNDER_WAY * self.service.settings.deadline_ms:
                self.allow(left_ms)
        handler: Any = self._handler
        if self.method.streams:
            async with aclosing(handler(self)) as responses:
                async for response in responses:
                    await self._write(response)
        else:
            await self._write(await handler(self, await self.read()))
        self._set_trailing()

    async def _write(self, response: Message) -> None:
        """Send a message. A client that does not take it in time, or holds up others, is left."""
        content = response.SerializeToString()
        self.release()
        self.limits.leaves(self._task, len(content))
        try:
            async with asyncio.timeout(self.limits.untaken_s) as timer:
                await self._context.write(content)
        finally:
            self.limits.leaving.remove(self._task)
        if timer.expired():
            self.limits.drop(self._task)
        writing = cast(Operation, self._task.operation)
        if writing.given_up:
            raise asyncio.CancelledError
        if writing.failed:
            raise grpc.aio.InternalError

    async def _fail(self, error: errors.ServiceError, cause: BaseException) -> None:
        self.status = error.status
        self._context.set_code(STATUS_CODES[error.status])
        self._context.set_details(error.detail)
        self._set_trailing(error)
        if isinstance(cause, asyncio.CancelledError):
            # Not ``cause``: its frames would refer to it, and so keep a call that was dropped.
            raise asyncio.CancelledError

    def _error(self, cause: BaseException) -> errors.ServiceError:
        if self.service.lifecycle.stopping:
            if isinstance(cause, grpc.aio.BaseError):  # the connection is closed
                cause = errors.ShuttingDown("the service shut down before the answer")
        elif isinstance(cause, grpc.aio.InternalError):  # of a write to a call that is gone
            cause = errors.ClientDisconnected("the client left before the answer")
        elif isinstance(cause, asyncio.CancelledError):
            left_s = self._context.time_remaining()
            if left_s is not None and left_s <= 0:
                cause = errors.DeadlineExceeded("the call's own deadline passed before its answer")
            else:
                cause = errors.ClientDisconnected("the client cancelled the call before its answer")
        return super()._error(cause)

    def _set_trailing(self, error: errors.ServiceError | None = None) -> None:
        trailing = [("x-request-id", self.request_id)]
        if self.timing:
            trailing.append(("server-timing", self.timing))
        if error is not None:
            trailing.append(("error-code", error.code))
            if (wait_s := error.retry_after_s) is not None:
                trailing.append(("retry-after", str(max(1, math.ceil(wait_s)))))
                # gRPC's own clients wait as long before they retry, where retries are configured.
                trailing.append(("grpc-retry-pushback-ms", str(math.ceil(wait_s * 1000))))
        self._context.set_trailing_metadata(tuple(trailing))

    async def read(self) -> Message:
        """The only message of a call, or the first."""
        content = await self._next(
            self.deadline, "the message did not arrive within the time allowed"
        )
        if content is grpc.aio.EOF:
            # So gRPC ends a call whose message is longer than allowed, and which it has answered.
            most = self.service.settings.max_body_bytes
            raise errors.PayloadTooLarge(f"no message arrived, or one of more than {most} bytes")
        return self._parsed(content)

    async def messages(self) -> AsyncGenerator[Message, None]:
        """The messages of a stream, until the service stops or the client is silent too long."""
        loop = asyncio.get_running_loop()
        while not self.service.lifecycle.stopping:
            content = await self._next(loop.time() + IDLE_S, f"nothing arrived for {IDLE_S:g} s")
            if content is grpc.aio.EOF:
                return
            yield self._parsed(content)
        raise errors.ShuttingDown("the service is shutting down; send the rest again")

    async def _next(self, until: float, late: str) -> bytes:
        """The bytes of the next message, or EOF. ``late`` is the error if none comes in time."""
        key = object()
        arriving = self.limits.arriving
        try:
            async with asyncio.timeout_at(until) as timer:

                def give_up() -> None:
                    if not timer.expired():
                        timer.reschedule(0)

                arriving.add(key, self.limits.arriving_bytes, give_up)
                content: bytes = await self._context.read()
        finally:
            if not arriving.remove(key):
                self.service.lifecycle.check()
                raise self.limits.overloaded("later gRPC messages are arriving")
        if timer.expired():
            raise errors.DeadlineExceeded(late, of_client=True)
        if cast(Operation, self._task.operation).given_up:
            raise asyncio.CancelledError
        return content

    def _parsed(self, content: bytes) -> Message:
        """The message, whose bytes are held until the call answers."""
        if self.path == INFER:
            self.hold(len(content))
        elif len(content) > SHORT_BYTES:  # they count as what a call may send unread
            raise errors.PayloadTooLarge(
                f"the message has {len(content)} bytes; this method takes at most {SHORT_BYTES}"
            )
        kind, most = self.method.request, FIELDS + self.service.settings.max_texts
        try:
            if more_fields(content, kind.DESCRIPTOR, most):
                raise errors.InvalidRequest(f"the message has more than {most} fields")
            return kind.FromString(content)
        except DecodeError:
            name = kind.DESCRIPTOR.full_name
            raise errors.InvalidRequest(f"the bytes of the message are no {name}") from None
