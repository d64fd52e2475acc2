"""Gives every request an id, checks access and limits, counts, logs, and handles errors."""

import asyncio
import logging
import time
from collections.abc import Sequence

from fastapi.routing import APIRoute
from opentelemetry.context import attach, detach
from opentelemetry.trace import set_span_in_context
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.middleware import identity
from app.limits.access import plain_address
from app.api.middleware.limits import Body
from app.observability.access_log import is_logged, log_request, method_label
from app.api.problems import problem
from app.api.routing import CONTROL, DirectRoutes, StreamRoute, call_directly, template
from app.service import Service
from app.errors import InferenceFailed, NotFound, ServiceError, ShuttingDown
from app.observability.traces import trace_id

logger = logging.getLogger(__name__)


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
        self._logs = is_logged(service)
        self._direct = DirectRoutes(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = identity.request_id(headers)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["logged"] = self._logs
        if scope["client"]:  # the address may come from a proxy's header
            host, port = scope["client"]
            scope["client"] = plain_address(host), port
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves out the answer's body
        status: int | None = None
        body: Body | None = None

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                if body is not None:
                    body.release()  # the client may read the answer slowly
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
                if self._service.lifecycle.stopping:
                    # The client must not send its next request on this connection.
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        method = method_label(scope["method"])
        tracer = self._service.tracer
        span = tracer.request(scope, method) if tracer else None
        token = attach(set_span_in_context(span)) if span else None
        metrics = self._service.metrics
        metrics.requests_in_flight += 1
        started = time.perf_counter()
        try:
            direct = self._direct.find(scope)
            self._service.access.check(scope)
            if direct is None and CONTROL.search(scope["path"]):
                raise NotFound("no route has this path: it contains control characters")
            state["deadline"] = identity.deadline(
                scope, headers, longest_ms=self._service.settings.deadline_ms
            )
            if not isinstance(direct, StreamRoute):
                receive = body = Body(scope, headers, receive, self._service)
            if direct is not None:
                await call_directly(direct, scope, receive, send_and_note)
            else:
                await self._app(scope, receive, send_and_note)
        except (Exception, asyncio.CancelledError) as error:
            if status is not None:
                if isinstance(error, asyncio.CancelledError) and self._service.lifecycle.stopping:
                    return  # the client did not read its answer before the server's time was over
                raise
            failure = error if isinstance(error, ServiceError) else last_resort(error, request_id)
            answer = problem(failure, request_id)
            await answer(scope, receive, send_and_note)
        finally:
            seconds = time.perf_counter() - started
            metrics.requests_in_flight -= 1
            if body is not None:
                body.release()
            route = template(scope, self._routes)
            trace = trace_id(span, headers)
            metrics.observe_request(route, method, status or 500, seconds, trace)
            if self._logs:
                log_request(self._service, scope, trace, method, route, status or 500, seconds)
            if tracer and span and token:
                detach(token)
                tracer.end_request(span, method=method, route=route, status=status or 500)


def last_resort(error: BaseException, request_id: str) -> ServiceError:
    """The error that a client sees for an exception that no handler knows. It is logged."""
    if isinstance(error, asyncio.CancelledError):
        # The server cancels unfinished requests when its time to stop is over.
        return ShuttingDown("the service shut down before the answer")
    logger.error("request %s failed", request_id, exc_info=error)
    return InferenceFailed("unexpected error; search the service's log for the request_id")
