"""grpc.aio's server, without two faults of it. Nothing here knows the service.

This uses names that grpcio keeps to itself. If a later version has others, a test fails, and
``GrpcServer`` still starts again what a client has ended.
"""

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

import grpc
from grpc._cython import cygrpc

# The key of the handler for all unknown methods.
UNKNOWN = "unknown"


class AioServer(cygrpc.AioServer):  # type: ignore[misc] # grpcio comes without types
    """Answers calls by the handlers of their paths, and those of other paths by that of UNKNOWN.

    grpc.aio decodes the path of an unknown method as UTF-8, and bytes that are not end the server
    with all its calls. So all methods are registered, gRPC's C library compares their paths, and
    the calls of no method are taken for those of one more. Its name cannot be guessed, because a
    client might call it.

    ``crashed`` is done when the server has ended by itself; its result is the error.
    """

    def __init__(
        self, options: list[tuple[str, int]], handlers: Mapping[str, grpc.RpcMethodHandler]
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop, None, (), (), options, None)
        self.crashed: asyncio.Future[BaseException] = loop.create_future()
        self._unknown = secrets.token_hex()
        named = dict(handlers)
        named[self._unknown] = named.pop(UNKNOWN)
        self.add_registered_method_handlers(named)

    def bind(self, address: str) -> None:
        """Listen on this address.

        Raises:
            RuntimeError: it cannot be used.
        """
        if not self.add_insecure_port(address.encode()):
            raise RuntimeError(f"cannot bind {address}")

    def _make_request_call_future(self, method: bytes | None) -> Any:
        """A future that is done when a call of the method has come, or with None of no method."""
        if method is None:
            return asyncio.get_running_loop().create_future()  # see _unknown
        if method == self._unknown.encode():
            method = None
        return super()._make_request_call_future(method)

    def _serving_task_crash_handler(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self.crashed.done():
            self.crashed.set_result(error)
