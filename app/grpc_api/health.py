"""``grpc.health.v1.Health``: the state of the service, as load balancers and Kubernetes ask it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from app.errors import NotFound, NotReady, ShuttingDown
from app.grpc_api.call import Answers, Call
from app.grpc_api.messages import SERVICES, Message

LOOK_S = 1.0  # between two looks at the state for Watch
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


async def check(call: Call, request: Message) -> Message:
    """Whether the service answers: all services of this server have the same state.

    Raises:
        NotFound: the server has no service of that name.
    """
    if not _known(request.service):
        raise NotFound(f"no service has that name; the services are: {', '.join(SERVICES)}")
    return call.method.response(status=await _status(call))


async def watch(call: Call) -> AsyncGenerator[Message, None]:
    """The state now, and again whenever it changes, until the service stops."""
    received = await call.read()
    known = _known(received.message.service)
    received.release()
    closing = call.service.lifecycle.closing
    told = None
    ended = False
    while not ended:
        ended = closing.is_set()
        status = await _status(call) if known else SERVICE_UNKNOWN
        if status != told:
            told = status
            yield call.method.response(status=status)
        if not ended:
            with suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), LOOK_S)


def _known(name: str) -> bool:
    return name in ("", *SERVICES)


async def _status(call: Call) -> int:
    try:
        await call.service.models.check_ready()
    except (NotReady, ShuttingDown):
        return NOT_SERVING
    return SERVING


ANSWERS: Answers = {"/grpc.health.v1.Health/Check": check, "/grpc.health.v1.Health/Watch": watch}
