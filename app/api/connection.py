"""Work that is cancelled when its client disconnects."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from fastapi import Request

from app.errors import ClientDisconnected

T = TypeVar("T")

# Shorter work is finished even if the client has left: to watch the connection takes a task.
LOOK_AFTER_S = 0.1


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled if the client disconnects first.

    ASGI does not cancel a request when its client disconnects. Call this only after the request's
    body has been read.

    Raises:
        ClientDisconnected: the client disconnected.
    """
    loop = asyncio.get_running_loop()
    working = cast(asyncio.Task[Any], asyncio.current_task())
    watching: asyncio.Task[None] | None = None
    left = False

    async def watch() -> None:
        nonlocal left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left = True
        working.cancel()

    def begin() -> None:
        nonlocal watching
        watching = loop.create_task(watch())

    look = loop.call_later(LOOK_AFTER_S, begin)
    try:
        return await work
    except asyncio.CancelledError:
        if left and not working.uncancel():  # 0: the server has not cancelled
            raise ClientDisconnected("the client closed the connection before its answer") from None
        raise
    finally:
        look.cancel()
        if watching is not None:
            watching.cancel()
