"""The routes: how an endpoint is called, and how its answer is sent."""

from collections.abc import Mapping
from typing import Any

from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette_compress import CompressMiddleware, add_compress_type

from app.api.answers import JsonAnswer
from app.api.http_exchange import HttpExchange, HttpRequest
from app.errors import MethodNotAllowed, ServiceError

# Shorter responses are not compressed, because compression takes time on the event loop.
COMPRESS_BYTES = 8_192
add_compress_type("application/problem+json")
add_compress_type("application/x-ndjson", streaming=True)


class Route(APIRoute):
    """A route whose endpoint takes only the request and returns the response.

    FastAPI finds it and documents it. It would also resolve dependencies and validate the answer,
    which these endpoints do themselves. At commit 153d05d, FastAPI's own way would have taken 29 %
    of the event loop's CPU time for a request of one text (``benchmarks/cpu_time/``).
    """

    streams = False  # whether the body may have any length, without a deadline

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the endpoint answer.

        Raises:
            MethodNotAllowed: the path has other methods.
            ServiceError: the endpoint's error.
        """
        exchange: HttpExchange = scope["exchange"]
        exchange.route = self.path
        if scope["method"] not in (self.methods or ()):
            allowed = methods_of(scope)
            raise MethodNotAllowed(f"allowed here: {', '.join(allowed)}", allowed=allowed)
        if self.streams:
            receive = exchange.receive_anything  # for the endpoint and for its answer
        request = HttpRequest(scope, receive, send)
        request.exchange = exchange
        answer = await self.endpoint(request)
        response = answer if isinstance(answer, Response) else JsonAnswer(answer)
        body = getattr(response, "body", None)  # a file has none
        # The endpoint has chosen the encoding of an answer with Vary.
        short = body is not None and (len(body) < COMPRESS_BYTES or "vary" in response.headers)
        sent: ASGIApp = response
        if self.streams or not short:
            sent = CompressMiddleware(response, minimum_size=COMPRESS_BYTES)
        await sent(scope, receive, send)

    @staticmethod
    def error_members(kind: type[ServiceError], detail: str) -> Mapping[str, Any]:
        """The fields that the route's protocol adds to an error."""
        return {}


class TextRoute(Route):
    """A route that takes texts. It is found first, and its metric series exist from the start."""


class StreamRoute(TextRoute):
    """A route that reads a body of any length, without a deadline."""

    streams = True


def methods_of(scope: Scope) -> list[str]:
    """The methods of all routes that have this path; Starlette names only those of the first."""
    routes = [route for route in scope["router"].routes if isinstance(route, Route)]
    methods = {
        method
        for route in routes
        if route.matches(scope)[0] is not Match.NONE
        for method in route.methods or ()
    }
    return sorted(methods | ({"HEAD"} if "GET" in methods else set()))


async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
    """What answers a path that no route has.

    Raises:
        NotFound: always.
    """
    raise scope["exchange"].no_route()
