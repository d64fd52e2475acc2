"""What every request goes through: an id, a size limit, the count, and the last resort."""

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from fastapi import Request
from fastapi.routing import APIRoute
from opentelemetry.context import attach, detach
from opentelemetry.trace import set_span_in_context
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.access import Access
from app.api.problems import problem
from app.api.service import Service
from app.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InvalidRequest,
    PayloadTooLarge,
    ServiceError,
    ShuttingDown,
)
from app.settings import Settings
from app.traces import Tracer, trace_id

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
TIMEOUT_MS = re.compile(rb"[1-9][0-9]{0,8}")
# A client may send any word as its method; each would be a series.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

STAGE = re.compile(rb"(\w+);dur=([0-9.]+)")

logger = logging.getLogger(__name__)
access = logging.getLogger("access")


class DirectRoute(APIRoute):
    """A route whose endpoint takes the request and gives the response, and no more.

    The middleware calls it: FastAPI's way there costs a fifth of a request for one text, to solve
    dependencies that it has not got. What it declares is for OpenAPI.
    """


class StreamRoute(DirectRoute):
    """A direct route that reads a body of any length, for as long as it takes."""


class RequestMiddleware:
    """Around all routes, so that no answer of theirs leaves without an id or goes uncounted."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        service: Service,
        routes: Sequence[APIRoute],
        tracer: Tracer | None,
    ) -> None:
        self._app = app
        self._service = service
        self._routes = routes
        self._tracer = tracer
        self._access = Access(service.settings)
        self._logs = service.settings.access_log == "on" and access.isEnabledFor(logging.INFO)
        self._direct = {
            (method, route.path): route
            for route in routes
            if isinstance(route, DirectRoute)
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves out the body
        status: int | None = None
        stages = b""

        async def send_and_note(message: Message) -> None:
            nonlocal status, stages
            if message["type"] == "http.response.start":
                status = message["status"]
                stages = next((v for k, v in message["headers"] if k == b"server-timing"), b"")
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
                if self._service.stopping:
                    # The client must not send its next request on this connection.
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        known_method = scope["method"] if scope["method"] in METHODS else "other"
        span = self._tracer.request(scope, known_method) if self._tracer else None
        token = attach(set_span_in_context(span)) if span else None
        metrics = self._service.metrics
        metrics.requests_in_flight.inc()
        started = time.perf_counter()
        try:
            direct = self._direct.get((scope["method"], scope["path"]))
            if direct is not None:
                scope["route"] = direct
            await self._access.check(scope)
            state["deadline"] = _deadline(scope, self._service.settings)
            if not isinstance(direct, StreamRoute):
                receive = _limit_body(scope, receive, self._service.settings)
            if direct is not None:
                await _call(direct, scope, receive, send_and_note)
            else:
                await self._app(scope, receive, send_and_note)
        except (Exception, asyncio.CancelledError) as error:
            if status is not None:
                raise
            failure = error if isinstance(error, ServiceError) else _last_resort(error, request_id)
            answer = problem(failure, request_id)
            await answer(scope, receive, send_and_note)
        finally:
            seconds = time.perf_counter() - started
            route = self._route(scope)
            metrics.requests_in_flight.dec()
            trace = trace_id(scope)
            metrics.observe_request(route, known_method, status or 500, seconds, trace)
            if self._logs:
                _log(scope, trace, known_method, route, status or 500, seconds, stages)
            if self._tracer and span and token:
                detach(token)
                self._tracer.end_request(
                    span, method=known_method, route=route, status=status or 500
                )

    def _route(self, scope: Scope) -> str:
        """The template of the route that answered, never a path that the client made up."""
        if "route" in scope:
            return str(scope["route"].path)
        if "endpoint" in scope:
            return "other"  # FastAPI's own pages
        # Refused before it was routed, perhaps.
        asked = (route for route in self._routes if route.matches(scope)[0] is not Match.NONE)
        return next((route.path for route in asked), "unmatched")


async def _call(route: DirectRoute, scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive, send)
    try:
        response = await route.endpoint(request)
    except ServiceError as error:
        response = problem(error, request.state.request_id)
    await response(scope, receive, send)


def _log(
    scope: Scope,
    trace: str | None,
    method: str,
    route: str,
    status: int,
    seconds: float,
    stages: bytes,
) -> None:
    """The access line. Neither path nor query: clients may have put a text there."""
    fields: dict[str, Any] = {"request_id": scope["state"]["request_id"]}
    if trace:
        fields["trace_id"] = trace
    fields["client"] = (scope["client"] or ("",))[0]
    fields |= {"method": method, "route": route, "status": status}
    fields["duration_ms"] = round(seconds * 1000, 2)
    for name, milliseconds in STAGE.findall(stages):
        fields[f"{name.decode()}_ms"] = float(milliseconds)
    access.info("request", extra={"fields": fields})


def _request_id(scope: Scope) -> str:
    """The client's own id where it is sane, otherwise a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return bytes(value).decode()
    return uuid4().hex


def _deadline(scope: Scope, settings: Settings) -> float:
    """When the request must be answered, by the event loop's clock."""
    asked = next(
        (value for name, value in scope["headers"] if name == b"x-request-timeout-ms"), b""
    )
    if asked and not TIMEOUT_MS.fullmatch(asked):
        raise InvalidRequest(
            "x-request-timeout-ms must be a whole number of milliseconds, 1 or more"
        )
    timeout_ms = min(int(asked or settings.deadline_ms), settings.deadline_ms)
    return asyncio.get_running_loop().time() + timeout_ms / 1000


def _limit_body(scope: Scope, receive: Receive, settings: Settings) -> Receive:
    """``receive`` that raises ``PayloadTooLarge`` before it hands out too large a body.

    A body that takes longer than the request may raises ``DeadlineExceeded``.
    """
    max_bytes = settings.max_body_bytes
    deadline = scope["state"]["deadline"]
    complete = False
    announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    received = 0

    async def limited() -> Message:
        nonlocal received, complete
        if complete:
            return await receive()
        if int(announced) > max_bytes:
            raise PayloadTooLarge(f"the body has {int(announced)} bytes, of {max_bytes} accepted")
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise DeadlineExceeded("the body did not arrive within the time allowed") from None
        complete = not message.get("more_body", False)
        received += len(message.get("body", b""))
        if received > max_bytes:
            raise PayloadTooLarge(f"the body has more than the {max_bytes} bytes accepted")
        return message

    return limited


def _last_resort(error: BaseException, request_id: str) -> ServiceError:
    """The error that a client sees when no handler knew what was raised."""
    if isinstance(error, asyncio.CancelledError):
        # The server cancels what is unfinished when its grace ends.
        return ShuttingDown("the service shut down before the answer", retry_after_s=1.0)
    logger.error("request %s failed", request_id, exc_info=error)
    return InferenceFailed("unexpected failure; the service's log has it under the request id")
