"""The tasks and futures of grpc.aio, so that its C library's operations leave nothing in memory.

grpc.aio frees what it gave the library for an operation only when the task that waits goes on: not
when the operation has failed, nor when the task was cancelled (grpcio 1.85, ``execute_batch`` in
``callback_common.pyx.pxi``). Clients that reset calls would fill the memory, 550 bytes a call.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import grpc


class Operation(asyncio.Future[None]):
    """The end of an operation of the C library, for a task that waits.

    It has a result even if the operation has ``failed``, or if the task has ``given_up`` the
    operation and no longer looks at its end.
    """

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
    """A task of grpc.aio: one waits for the end of a call, and has made the one that serves it.

    To cancel it while it waits for its latest operation is to give that up.
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
