"""``grpc.health.v1.Health``: the state of the service, as load balancers and Kubernetes ask it.

grpcio-health-checking does not limit the calls of Watch, and lets one that is not read hold up all
others.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from app.adapters.grpc.call import Answers, Call
from app.adapters.grpc.messages import SERVICES, Message
from app.errors import NotFound, NotReady, ShuttingDown
from app.service import Service

LOOK_S = 1.0  # between two looks at the state while calls watch it
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


def answers(service: Service) -> Answers:
    """The methods. One look at the state serves all calls that watch it."""
    return {
        "/grpc.health.v1.Health/Check": check,
        "/grpc.health.v1.Health/Watch": _Watched(service).watch,
    }


async def check(call: Call, request: Message) -> Message:
    """Whether the service answers: all services of this server have the same state.

    Raises:
        NotFound: the server has no service of that name.
    """
    if not _known(request.service):
        raise NotFound(f"no service has that name; the services are: {', '.join(SERVICES)}")
    return call.method.response(status=await _status(call.service))


class _Watched:
    """The state, while calls watch it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._watching = 0
        self._ended = False  # the service stops
        self._looking: asyncio.Task[None] | None = None
        self._status: int | None = None  # None before the first look
        self._changed = asyncio.Event()  # set when the state changes; then a new event is used

    async def watch(self, call: Call) -> AsyncGenerator[Message, None]:
        """The state now, and again whenever it changes, until the service stops.

        Raises:
            Overloaded: too many calls watch already.
        """
        known = _known((await call.read()).service)
        call.limits.check_watching(self._watching)
        self._watching += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        told = None
        try:
            while told != NOT_SERVING or not self._ended:
                changed = self._changed
                if (status := self._status if known else SERVICE_UNKNOWN) not in (None, told):
                    told = status
                    yield call.method.response(status=status)
                elif self._ended:
                    return
                else:
                    await changed.wait()
        finally:
            self._watching -= 1
            if not self._watching:
                self._looking.cancel()
                self._looking = self._status = None

    async def _look(self) -> None:
        closing = self._service.lifecycle.closing
        while not closing.is_set():
            self._tell(await _status(self._service))
            with suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), LOOK_S)
        self._ended = True
        self._tell(NOT_SERVING)

    def _tell(self, status: int) -> None:
        if self._ended or status != self._status:
            self._status = status
            self._changed.set()
            self._changed = asyncio.Event()


def _known(name: str) -> bool:
    return name in ("", *SERVICES)


async def _status(service: Service) -> int:
    return SERVING if await is_ready(service) else NOT_SERVING


async def is_ready(service: Service) -> bool:
    """Whether all models answer, and shutdown has not begun."""
    try:
        await service.check_ready()
    except (NotReady, ShuttingDown):
        return False
    return True
