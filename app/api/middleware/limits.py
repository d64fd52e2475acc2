"""Limits the length of each request body, and of all bodies in flight together."""

import asyncio
from collections.abc import Mapping

from starlette.types import Message, Receive, Scope

from app.api.service import Service
from app.errors import DeadlineExceeded, Overloaded, PayloadTooLarge

# If a body's content-length is above this, the body is read only if the queue has room. Otherwise
# it would be read and parsed in vain. A shorter body has usually arrived with the headers.
LONG_BYTES = 65_536


class Body:
    """The body of one request, received within limits. Call it as ASGI's ``receive``.

    ``release`` gives back the bytes that the body takes.

    Raises:
        PayloadTooLarge: the body is longer than allowed. No byte above the limit is returned.
        DeadlineExceeded: the rest of the body did not arrive before the request's deadline.
        Overloaded: the bodies of all requests together would take more bytes than allowed, or the
            body is long and the queue has no room for its texts.
    """

    def __init__(
        self, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive, service: Service
    ) -> None:
        self._receive = receive
        self._service = service
        self._deadline: float = scope["state"]["deadline"]
        self._announced = int(headers.get(b"content-length", 0))
        # Our server says if the whole body has arrived. Then no timer is needed, which would cost
        # as much as all the rest here.
        self._has_come: bool = scope["state"].get("complete", False)
        self._asked = False
        self._received = 0
        self._complete = False
        self._held = 0
        scope["state"]["body"] = self

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        if not self._asked:
            self._ask()
        message = await (self._receive() if self._has_come else self._receive_in_time())
        self._complete = not message.get("more_body", False)
        size = len(message.get("body", b""))
        self._received += size
        max_bytes = self._service.settings.max_body_bytes
        if self._received > max_bytes:
            raise PayloadTooLarge(
                f"the body has more than {max_bytes} bytes, the most that is accepted"
            )
        self.hold(size)
        return message

    async def _receive_in_time(self) -> Message:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        except TimeoutError:
            raise DeadlineExceeded("the body did not arrive within the time allowed") from None

    def hold(self, size: int) -> None:
        """Take ``size`` of the bytes that all requests together may hold.

        Raises:
            Overloaded: they hold too many already.
        """
        if not self._service.inflight.take(size):
            raise no_room(self._service)
        self._held += size

    def release(self) -> None:
        """Give back the bytes that this request holds."""
        self._service.inflight.give(self._held)
        self._held = 0

    def _ask(self) -> None:
        self._asked = True
        max_bytes = self._service.settings.max_body_bytes
        if self._announced > max_bytes:
            raise PayloadTooLarge(
                f"the body has {self._announced} bytes; at most {max_bytes} are accepted"
            )
        if self._announced > LONG_BYTES:
            if self._announced > self._service.inflight.left:
                raise no_room(self._service)
            left_s = self._deadline - asyncio.get_running_loop().time()
            self._service.models.check_admission(timeout_s=left_s)


def no_room(service: Service) -> Overloaded:
    """Count a request that was refused because bodies take too many bytes; its error."""
    inflight = service.inflight
    service.models.classifier(None).observer.rejection("inflight_bytes")
    return Overloaded(
        f"request bodies in flight take {inflight.taken} of the {inflight.limit} bytes allowed",
        reason="inflight_bytes",
    )
