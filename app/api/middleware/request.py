"""Gives every request an id, checks access and limits, counts, logs, and handles errors."""

import asyncio
import logging
import random
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from opentelemetry.context import attach, detach
from opentelemetry.trace import set_span_in_context
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.middleware.access import Access, plain_address
from app.api.middleware.limits import Body
from app.api.problems import problem
from app.api.service import Service
from app.errors import (
    InferenceFailed,
    InvalidRequest,
    NotFound,
    ServiceError,
    ShuttingDown,
)
from app.observability.traces import trace_id
from app.settings import Settings

REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
TIMEOUT_MS = re.compile(rb"[1-9][0-9]*")
TIMEOUT_DIGITS = 18  # a longer number is above any deadline, and so are its first 18 digits
# A path that contains one of these, decoded, matches no route. Starlette would ignore a line feed
# at its end.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# A client may send any word as its method, and each word would become a series in the metrics.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD = "other"
UNMATCHED = "unmatched"  # requests that match no route

STAGE = re.compile(rb"(\w+);dur=([0-9.]+)")

logger = logging.getLogger(__name__)
access = logging.getLogger("access")


class DirectRoute(APIRoute):
    """A route whose endpoint takes only the request and returns the response.

    The middleware calls the endpoint itself. FastAPI would resolve dependencies first, which these
    routes do not have, and that costs a fifth of a request for one text. What the route declares
    is only for OpenAPI.
    """


class StreamRoute(DirectRoute):
    """A direct route that reads a body of any length, without a deadline."""


class RequestMiddleware:
    """Wraps all routes, so that every answer has a request id and is counted."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        service: Service,
        routes: Sequence[APIRoute],
    ) -> None:
        self._app = app
        self._service = service
        self._routes = routes
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
        headers = dict(scope["headers"])
        request_id = _request_id(headers)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        if scope["client"]:  # the address may come from a proxy's header
            host, port = scope["client"]
            scope["client"] = plain_address(host), port
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves out the answer's body
        status: int | None = None
        stages = b""
        body: Body | None = None

        async def send_and_note(message: Message) -> None:
            nonlocal status, stages
            if message["type"] == "http.response.start":
                if body is not None:
                    body.release()  # the client may read the answer slowly
                status = message["status"]
                if self._logs:
                    stages = dict(message["headers"]).get(b"server-timing", b"")
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
                if self._service.lifecycle.stopping:
                    # The client must not send its next request on this connection.
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        known_method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
        tracer = self._service.tracer
        span = tracer.request(scope, known_method) if tracer else None
        token = attach(set_span_in_context(span)) if span else None
        metrics = self._service.metrics
        metrics.requests_in_flight += 1
        started = time.perf_counter()
        try:
            direct = self._direct.get((scope["method"], scope["path"]))
            if direct is not None:
                scope["route"] = direct
            self._access.check(scope)
            if direct is None and CONTROL.search(scope["path"]):
                raise NotFound("nothing is here: the path has control characters")
            state["deadline"] = _deadline(scope, headers, self._service.settings)
            if not isinstance(direct, StreamRoute):
                receive = body = Body(scope, headers, receive, self._service)
            if direct is not None:
                await _call(direct, scope, receive, send_and_note)
            else:
                await self._app(scope, receive, send_and_note)
        except (Exception, asyncio.CancelledError) as error:
            if status is not None:
                if isinstance(error, asyncio.CancelledError) and self._service.lifecycle.stopping:
                    return  # the client did not read its answer before the server's time was over
                raise
            failure = error if isinstance(error, ServiceError) else _last_resort(error, request_id)
            answer = problem(failure, request_id)
            await answer(scope, receive, send_and_note)
        finally:
            seconds = time.perf_counter() - started
            metrics.requests_in_flight -= 1
            if body is not None:
                body.release()
            route = self._route(scope)
            trace = trace_id(span, headers)
            metrics.observe_request(route, known_method, status or 500, seconds, trace)
            if self._logs:
                _log(scope, trace, known_method, route, status or 500, seconds, stages)
            if tracer and span and token:
                detach(token)
                tracer.end_request(span, method=known_method, route=route, status=status or 500)

    def _route(self, scope: Scope) -> str:
        """The template of the route that answered. It is never a path that the client chose."""
        if "route" in scope:
            return str(scope["route"].path)
        if "endpoint" in scope:
            return "other"  # FastAPI's own pages
        if CONTROL.search(scope["path"]):
            return UNMATCHED
        # The request may have been refused before it was routed.
        asked = (route for route in self._routes if route.matches(scope)[0] is not Match.NONE)
        return next((route.path for route in asked), UNMATCHED)


def note_refusal(service: Service, error: ServiceError, request_id: str, client: str) -> None:
    """Count and log the answer to bytes that are not a valid request."""
    service.metrics.observe_request(UNMATCHED, OTHER_METHOD, error.status, 0.0, None)
    if service.settings.access_log == "on":
        fields: dict[str, Any] = {
            "request_id": request_id,
            "client": client,
            "method": OTHER_METHOD,
        }
        fields |= {"route": UNMATCHED, "status": error.status, "reason": error.detail}
        access.info("request", extra={"fields": fields})


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
    """Write the access line, without path and query: clients may have put a text there."""
    fields: dict[str, Any] = {"request_id": scope["state"]["request_id"]}
    if trace:
        fields["trace_id"] = trace
    fields["client"] = (scope["client"] or ("",))[0]
    fields |= {"method": method, "route": route, "status": status}
    fields["duration_ms"] = round(seconds * 1000, 2)
    for name, milliseconds in STAGE.findall(stages):
        fields[f"{name.decode()}_ms"] = float(milliseconds)
    access.info("request", extra={"fields": fields})


def new_request_id() -> str:
    """A random id, which need not be secret.

    The system's random bytes would cost a system call, for which Python gives up the GIL.
    """
    return f"{random.getrandbits(128):032x}"


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    """The client's own id if it is valid, otherwise a new one."""
    own = headers.get(b"x-request-id")
    return own.decode() if own and REQUEST_ID.fullmatch(own) else new_request_id()


def _deadline(scope: Scope, headers: Mapping[bytes, bytes], settings: Settings) -> float:
    """The time by which the request must be answered, on the event loop's clock."""
    asked = headers.get(b"x-request-timeout-ms", b"")
    if asked and not TIMEOUT_MS.fullmatch(asked):
        raise InvalidRequest(
            "x-request-timeout-ms must be a whole number of milliseconds, 1 or more"
        )
    timeout_ms = min(int(asked[:TIMEOUT_DIGITS] or settings.deadline_ms), settings.deadline_ms)
    # The time counts from the arrival of the headers, if the server knows it: under load they wait
    # a while before they are read.
    arrived: float = scope["state"].get("arrived") or asyncio.get_running_loop().time()
    return arrived + timeout_ms / 1000


def _last_resort(error: BaseException, request_id: str) -> ServiceError:
    """The error that a client sees for an exception that no handler knows."""
    if isinstance(error, asyncio.CancelledError):
        # The server cancels unfinished requests when its time to stop is over.
        return ShuttingDown("the service shut down before the answer", retry_after_s=1.0)
    logger.error("request %s failed", request_id, exc_info=error)
    return InferenceFailed("unexpected failure; the service's log has it under the request id")
