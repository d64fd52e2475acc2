"""A gRPC client. Its answers have the statuses of HTTP, so that one tally counts both."""

from typing import Self

import grpc
from sentiment_service.errors import ServiceError

from checks.soak.calls.call import Call
from checks.soak.wire import ANSWER_S, KEY, Answer, Lost

STATUSES = {error.code: error.status for error in ServiceError.__subclasses__()}
# gRPC itself refuses calls above a limit, and at the end those that have not begun, without our
# trailing metadata. It may cancel those that come at the very moment of the end.
CANCELLED = 499
REFUSALS = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.CANCELLED: CANCELLED,
}


class Refused(OSError):
    """The server does not listen."""


class GrpcClient:
    """Calls on one channel, which connects again by itself. Belongs to one event loop."""

    def __init__(self, port: int) -> None:
        # Otherwise all channels of a process share a connection.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def ask(self, call: Call) -> Answer:
        """Send a call's message and wait for its end.

        Raises:
            Refused: nobody listens.
            Lost: the call ended without the trailing metadata with which the service ends each.
        """
        metadata = (("authorization", f"Bearer {KEY}"),)
        try:
            method = self._channel.unary_unary(call.method)
            received = await method(call.request, metadata=metadata, timeout=ANSWER_S)
        except grpc.aio.AioRpcError as error:
            trailing = {name: str(value) for name, value in error.trailing_metadata() or ()}
            detail = error.details() or ""
            if code := trailing.get("error-code"):
                return Answer(STATUSES[code], trailing, detail.encode())
            if "failed to connect" in detail:
                raise Refused(detail) from error
            if status := REFUSALS.get(error.code()):
                return Answer(status, trailing, detail.encode())
            raise Lost(f"{error.code()}: {detail}") from error
        return Answer(200, {}, received)
