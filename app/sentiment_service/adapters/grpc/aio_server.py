"""grpc.aio's server, without three faults of it. Nothing here knows the service.

This uses names that grpcio keeps to itself. If a later version has others, a test fails.
"""

import asyncio
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

import grpc
from grpc._cython import cygrpc

# The key of the handler for all unknown methods.
UNKNOWN = "unknown"
# Calls of a busy method that are taken at the same time.
AT_ONCE = 16


class AioServer(cygrpc.AioServer):  # type: ignore[misc] # grpcio comes without types
    """Answers calls by the handlers of their paths, and those of other paths by that of UNKNOWN.

    grpc.aio decodes the path of an unknown method as UTF-8, and bytes that are not end the server
    with all its calls. So all methods are registered, gRPC's C library compares their paths, and
    the calls of no method are taken for those of one more.

    grpc.aio takes several iterations of the event loop to take one call of a method. When these are
    long, calls wait in the C library, which cancels them without an answer. So each method of
    ``busy`` is registered several times.

    The names of these additional methods cannot be guessed, because a client might call them.

    ``crashed`` is called with the error if the server ends by itself.
    """

    def __init__(
        self,
        options: list[tuple[str, int]],
        handlers: Mapping[str, grpc.RpcMethodHandler],
        *,
        busy: Collection[str] = (),
        crashed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(asyncio.get_running_loop(), None, (), (), options, None)
        self._crashed = crashed
        again = {secrets.token_hex(): path for path in busy for _ in range(AT_ONCE - 1)}
        again[secrets.token_hex()] = UNKNOWN
        named = {**handlers, **{name: handlers[path] for name, path in again.items()}}
        del named[UNKNOWN]
        self.add_registered_method_handlers(named)
        # The method whose calls each additional method takes; None is all unknown ones.
        self._takes = {
            name.encode(): None if path == UNKNOWN else path.encode()
            for name, path in again.items()
        }

    async def _start_shutting_down(self) -> None:
        # ``shutdown`` calls this and then closes the connections. grpc.aio's own waits in between;
        # then calls that come in this time are cancelled, and look so to clients.
        closing_the_port = super()._start_shutting_down()
        with suppress(Exception):  # what has ended the server: see ``crashed``
            closing_the_port.send(None)
        closing_the_port.close()

    def _make_request_call_future(self, method: bytes | None) -> Any:
        """A future that is done when a call of the method has come, or with None of no method."""
        if method is None:
            return asyncio.get_running_loop().create_future()  # see _takes
        taking = super()._make_request_call_future(self._takes.get(method, method))
        # grpc.aio cancels these futures when the server ends. Without the shield, this would free
        # what the C library still writes to when it gives them up.
        taking.add_done_callback(_given_up)
        return asyncio.shield(taking)

    def _serving_task_crash_handler(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._crashed(error)


def _given_up(taking: asyncio.Task[object]) -> None:
    """Read the error with which each ends when the server does, so that asyncio does not log it."""
    if not taking.cancelled():
        taking.exception()
