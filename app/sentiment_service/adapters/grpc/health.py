"""``grpc.health.v1.Health``: the state of the service, for load balancers and Kubernetes.

grpcio-health-checking does not limit the calls of Watch, and lets one that is not read hold up all
others.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from sentiment_service.adapters.grpc.call import Call, Handlers
from sentiment_service.adapters.grpc.messages import SERVICES, Message
from sentiment_service.errors import NotFound, NotReady, ShuttingDown
from sentiment_service.service import Service

LOOK_S = 1.0  # between two checks of the state for a call that watches it
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


async def check(call: Call, request: Message) -> Message:
    """Whether the service answers: all services of this server have the same state.

    Raises:
        NotFound: the server has no service of that name.
    """
    status = await _status(call.service, request.service)
    if status == SERVICE_UNKNOWN:
        raise NotFound(f"no service has that name; the services are: {', '.join(SERVICES)}")
    return call.method.response(status=status)


async def watch(call: Call) -> AsyncGenerator[Message, None]:
    """The state now, and again whenever it changes, until the service stops.

    Raises:
        Overloaded: too many calls watch already.
    """
    name = (await call.read()).service
    closing = call.service.lifecycle.closing
    latest = None
    with call.limits.watching():
        while True:
            ends = closing.is_set()
            if (status := await _status(call.service, name)) != latest:
                latest = status
                yield call.method.response(status=status)
            if ends:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await closing.wait()


async def _status(service: Service, name: str) -> int:
    if name not in ("", *SERVICES):
        return SERVICE_UNKNOWN
    return SERVING if await is_ready(service) else NOT_SERVING


async def is_ready(service: Service) -> bool:
    """Whether all models answer, and shutdown has not begun."""
    try:
        await service.check_ready()
    except (NotReady, ShuttingDown):
        return False
    return True


HANDLERS: Handlers = {
    "/grpc.health.v1.Health/Check": check,
    "/grpc.health.v1.Health/Watch": watch,
}
