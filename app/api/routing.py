"""How requests find their endpoints."""

import re
from collections.abc import Sequence

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette_compress import CompressMiddleware, add_compress_type

from app.api.problems import problem
from app.errors import ServiceError

# A path that contains one of these, decoded, matches no route. Starlette would ignore a line feed
# at its end.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
UNMATCHED = "unmatched"  # requests that match no route
# Shorter responses are not compressed, because compression takes time on the event loop.
COMPRESS_BYTES = 8_192
add_compress_type("application/problem+json")
add_compress_type("application/x-ndjson", streaming=True)


class DirectRoute(APIRoute):
    """A route whose endpoint takes only the request and returns the response.

    The middleware calls the endpoint itself. FastAPI would route the request again and resolve
    dependencies, which these routes do not have. At commit 153d05d, that would have taken 29 % of
    the event loop's CPU time for a request of one text (quartiles 23 and 32 %; measured with
    ``python -m benchmarks.event_loop``). What the route declares is only for OpenAPI.
    """


class StreamRoute(DirectRoute):
    """A direct route that reads a body of any length, without a deadline."""


class DirectRoutes:
    """Finds the direct route of a request, by its path or, with parameters in it, by pattern."""

    def __init__(self, routes: Sequence[APIRoute]) -> None:
        direct = [route for route in routes if isinstance(route, DirectRoute)]
        self._by_pattern = [route for route in direct if "{" in route.path]
        self._by_path = {
            (method, route.path): route
            for route in direct
            if route not in self._by_pattern  # a client may send its template as a path
            for method in route.methods or ()
        }

    def find(self, scope: Scope) -> DirectRoute | None:
        """The route, which the scope then has, with the values of its path's parameters."""
        found = self._by_path.get((scope["method"], scope["path"]))
        if found is None and not CONTROL.search(scope["path"]):
            for route in self._by_pattern:
                match, matched = route.matches(scope)
                if match is Match.FULL:
                    scope.update(matched)
                    found = route
                    break
        if found is not None:
            scope["route"] = found
        return found


async def call_directly(route: DirectRoute, scope: Scope, receive: Receive, send: Send) -> None:
    """Have the route's endpoint answer."""
    request = Request(scope, receive, send)
    try:
        response = await route.endpoint(request)
    except ServiceError as error:
        response = problem(error, request.state.request_id)
    answer: ASGIApp = response
    if isinstance(route, StreamRoute) or len(response.body) >= COMPRESS_BYTES:
        answer = CompressMiddleware(response, minimum_size=COMPRESS_BYTES)
    await answer(scope, receive, send)


def template(scope: Scope, routes: Sequence[APIRoute]) -> str:
    """The template of the route that answered. It is never a path that the client chose."""
    if "route" in scope:
        return str(scope["route"].path)
    if "endpoint" in scope:
        return "other"  # FastAPI's own pages
    if CONTROL.search(scope["path"]):
        return UNMATCHED
    # The request may have been refused before it was routed.
    asked = (route for route in routes if route.matches(scope)[0] is not Match.NONE)
    return next((route.path for route in asked), UNMATCHED)
