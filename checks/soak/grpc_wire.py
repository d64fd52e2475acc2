"""A gRPC client. Its answers have the statuses of HTTP, so that one tally counts both."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import grpc

from app.errors import ServiceError
from app.grpc_api.messages import METHODS
from checks.soak.wire import ANSWER_S, KEY, Answer, Lost

STATUSES = {error.code: error.status for error in ServiceError.__subclasses__()}
# gRPC itself refuses calls above a limit, and at the end those that have not begun, without our
# trailing metadata.
REFUSALS = {grpc.StatusCode.RESOURCE_EXHAUSTED: 429, grpc.StatusCode.UNAVAILABLE: 503}
# What grpc puts in the place of the server's status, if the server ended the call while this client
# was writing a message of a stream. The server ends a stream early only to refuse it.
ENDED_WHILE_WRITING = "Internal error from Core"


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

    async def ask(self, path: str, messages: Sequence[bytes], *, key: str = KEY) -> Answer:
        """Send a call's messages and wait for its end.

        Raises:
            Refused: nobody listens.
            Lost: the call ended without the trailing metadata with which the service ends each.
        """
        options = {"metadata": (("authorization", f"Bearer {key}"),), "timeout": ANSWER_S}
        try:
            if not METHODS[path].streams:
                received = [await self._channel.unary_unary(path)(*messages, **options)]
            else:
                received = await _stream(self._channel.stream_stream(path)(**options), messages)
        except grpc.aio.AioRpcError as error:
            trailing = {name: str(value) for name, value in error.trailing_metadata() or ()}
            detail = error.details() or ""
            if code := trailing.get("error-code"):
                return Answer(STATUSES[code], trailing, detail.encode())
            if "failed to connect" in detail:
                raise Refused(detail) from error
            status = 429 if detail == ENDED_WHILE_WRITING else REFUSALS.get(error.code())
            if status:
                return Answer(status, trailing, detail.encode())
            raise Lost(f"{error.code()}: {detail}") from error
        return Answer(200, {}, b"", tuple(received))


async def _stream(call: Any, messages: Sequence[bytes]) -> list[bytes]:
    # The server may end the call before it has read everything. Given an iterator, grpc would then
    # report that this client cancelled the call, instead of the server's status.
    with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
        for message in messages:
            await call.write(message)
        await call.done_writing()
    return [message async for message in call]
