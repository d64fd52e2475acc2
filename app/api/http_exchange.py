"""A request over HTTP: its body within limits, and its answer."""

import asyncio
import re
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar, cast

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.arrival import METHODS, OTHER_METHOD, Arrival
from app.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
    ServiceError,
)
from app.exchange import UNMATCHED, Exchange
from app.limits import IPV4_MAPPED, plain_address
from app.problems import problem
from app.service import Service

# If a body's content-length is above this, the body is read only if the queue has room. Otherwise
# it would be read and parsed in vain. A shorter body has usually arrived with the headers.
LONG_BYTES = 65_536
# A path that contains one of these, decoded, matches no route. Starlette would ignore a line feed
# at its end.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

T = TypeVar("T")


class HttpExchange(Exchange):
    """A request of HTTP, answered by the route that its path names.

    ``router`` finds the route and calls it. ``receive`` and ``send`` are those of ASGI.
    """

    def __init__(
        self,
        service: Service,
        router: APIRouter,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        headers = dict(scope["headers"])  # of several with one name, the last ...
        if b"authorization" in headers:  # ... but the first key, as proxies in front of us check it
            headers[b"authorization"] = Headers(scope=scope)["authorization"].encode("latin-1")
        client = scope["client"][0] if scope["client"] else ""
        if client.startswith(IPV4_MAPPED):  # from a proxy's header
            client = plain_address(client)
        self._arrival = scope.get("arrival") or Arrival(asyncio.get_running_loop().time())
        super().__init__(
            service,
            verb=scope["method"] if scope["method"] in METHODS else OTHER_METHOD,
            path=scope["path"],
            headers=headers,
            client=client,
            arrived=self._arrival.at,
        )
        # The server leaves out the body of an answer to HEAD.
        self._scope = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        self._router = router
        self._receive = receive
        self._send = send
        self._begun = False  # whether the answer has begun
        self._received = 0  # bytes of the body
        self._received_all = False

    async def _answer(self) -> None:
        if CONTROL.search(self.path):
            raise NotFound("no route has this path: it contains control characters")
        self._scope["exchange"] = self
        try:
            await self._router(self._scope, self.receive, self.send)
        finally:
            # Each holds the other, so only the garbage collector would free them.
            del self._scope["exchange"]

    async def _fail(self, error: ServiceError, cause: BaseException) -> None:
        if self._begun:  # it is too late to send an error
            if isinstance(cause, asyncio.CancelledError) and self.service.lifecycle.stopping:
                return  # the client did not read its answer before the server's time was over
            raise cause
        if self.route == UNMATCHED:  # it was refused before it was routed
            self.route = self._route()
        members: Mapping[str, Any] = {}
        if "route" in self._scope and not isinstance(error, MethodNotAllowed):
            members = self._scope["route"].error_members(type(error), error.detail)
        await problem(error, self.request_id, **members)(self._scope, self._receive, self.send)

    def _route(self) -> str:
        if CONTROL.search(self.path):
            return UNMATCHED
        for route in self._router.routes:
            if isinstance(route, APIRoute) and route.matches(self._scope)[0] is not Match.NONE:
                return route.path
        return UNMATCHED

    def _error(self, cause: BaseException) -> ServiceError:
        if isinstance(cause, HTTPException) and cause.status_code == NotFound.status:
            cause = self.no_route()
        return super()._error(cause)

    def no_route(self) -> NotFound:
        """The error of a path that is not served."""
        settings = self.service.settings
        if self.path == "/metrics" and settings.metrics_port:
            return NotFound(f"the metrics are on port {settings.metrics_port} (--metrics-port)")
        docs = "; /docs lists the routes" if settings.docs == "on" else ""
        return NotFound(f"no route has this path{docs}")

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.release()  # the client may read the answer slowly
            self._begun = True
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self.request_id.encode())]
            if self.service.lifecycle.stopping:
                # The client must not send its next request on this connection.
                message["headers"].append((b"connection", b"close"))
        await self._send(message)

    async def receive(self) -> Message:
        """The next part of the body, within limits.

        Raises:
            PayloadTooLarge: the body is longer than allowed. No byte above the limit is returned.
            DeadlineExceeded: the rest of the body did not arrive before the request's deadline.
            Overloaded: the bodies of all requests together would take more bytes than allowed, or
                the body is long and the queue has no room for its texts.
        """
        if self._received_all:
            return await self._receive()
        if not self._received:
            self._check_announced()
        # If the whole body has come, no timer is needed. It costs as much as all the rest here.
        message = await (self._receive() if self._arrival.complete else self._receive_in_time())
        self._received_all = not message.get("more_body", False)
        size = len(message.get("body", b""))
        self._received += size
        max_bytes = self.service.settings.max_body_bytes
        if self._received > max_bytes:
            raise PayloadTooLarge(
                f"the body has more than {max_bytes} bytes, the most that is accepted"
            )
        self.hold(size)
        return message

    async def receive_anything(self) -> Message:
        """The next part of a body of any length, which has no deadline."""
        return await self._receive()

    async def _receive_in_time(self) -> Message:
        try:
            async with asyncio.timeout_at(self.deadline):
                return await self._receive()
        except TimeoutError:
            raise DeadlineExceeded("the body did not arrive within the time allowed") from None

    def _check_announced(self) -> None:
        announced = int(self.headers.get(b"content-length", 0))
        max_bytes = self.service.settings.max_body_bytes
        if announced > max_bytes:
            raise PayloadTooLarge(
                f"the body has {announced} bytes; at most {max_bytes} are accepted"
            )
        if announced > LONG_BYTES:
            if announced > self.service.inflight.left:
                raise self.no_room()
            left_s = max(0.0, self.deadline - asyncio.get_running_loop().time())
            self.service.models.check_admission(timeout_s=left_s)

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        # ASGI does not cancel a request when its client disconnects, and to wait for its message
        # takes a task. So our server says it.
        working = cast(asyncio.Task[Any], asyncio.current_task())
        if self._arrival.left:
            work.close()
            raise ClientDisconnected("the client closed the connection after its request")
        self._arrival.on_leaving = working.cancel
        try:
            return await work
        except asyncio.CancelledError:
            if self._arrival.left and not working.uncancel():  # 0: the server has not cancelled
                raise ClientDisconnected(
                    "the client closed the connection before its answer"
                ) from None
            raise
        finally:
            self._arrival.on_leaving = None


class HttpRequest(Request):
    """FastAPI's request, with the exchange that it belongs to."""

    exchange: HttpExchange


def application(service: Service, router: APIRouter) -> ASGIApp:
    """The router as an application of ASGI, with each request of HTTP as an exchange."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await HttpExchange(service, router, scope, receive, send).run()
        else:
            await router(scope, receive, send)

    return answer
