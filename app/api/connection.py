"""Work that is cancelled when its client disconnects."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from fastapi import Request

from app.errors import ClientDisconnected

T = TypeVar("T")


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled if the client disconnects first.

    ASGI does not cancel a request when its client disconnects, and to wait for its message takes a
    task. So our server sets ``disconnected`` in the request's state, and calls ``on_disconnect``.

    Raises:
        ClientDisconnected: the client disconnected.
    """
    working = cast(asyncio.Task[Any], asyncio.current_task())
    left = False

    def leave() -> None:
        nonlocal left
        left = True
        working.cancel()

    state = request.scope["state"]
    if state.get("disconnected"):
        work.close()
        raise ClientDisconnected("the client closed the connection after its request")
    state["on_disconnect"] = leave
    try:
        return await work
    except asyncio.CancelledError:
        if left and not working.uncancel():  # 0: the server has not cancelled
            raise ClientDisconnected("the client closed the connection before its answer") from None
        raise
    finally:
        del state["on_disconnect"]
