"""A request over HTTP, the route that answers it, and how the answer is sent."""

import asyncio
import gzip
import re
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any, ClassVar

import msgspec
from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette_compress import CompressMiddleware, add_compress_type

from sentiment_service.errors import PROBLEM, BadRequest, MethodNotAllowed, NotFound, ServiceError
from sentiment_service.http.nearest import nearest
from sentiment_service.requests.exchange import OTHER_METHOD, UNMATCHED, Arrival, Exchange
from sentiment_service.requests.service import Service

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# A path that contains one of these, decoded, matches no route. Starlette would ignore a line feed
# at its end.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Shorter responses are not compressed, because compression takes time on the event loop.
COMPRESS_BYTES = 8_192
add_compress_type(PROBLEM)
add_compress_type("application/x-ndjson", streaming=True)


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
        if b"x-forwarded-for" in headers:
            lines = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
            client = service.proxies.client(client, lines)
        super().__init__(
            service,
            verb=scope["method"] if scope["method"] in METHODS else OTHER_METHOD,
            path=scope["path"],
            headers=headers,
            client=client,
            arrival=scope.get("arrival") or Arrival(asyncio.get_running_loop().time()),
        )
        # The server leaves out the body of an answer to HEAD.
        self._scope = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        self._router = router
        self._receive = receive
        self._send = send
        self._begun = False  # whether the answer has begun

    def _answer(self) -> Awaitable[None]:
        if CONTROL.search(self.path):
            raise NotFound("no route has this path: it contains control characters")
        self._scope["exchange"] = self
        return self._router(self._scope, self._receive, self.send)

    async def _fail(self, error: ServiceError, cause: BaseException) -> None:
        self._scope.pop("exchange", None)  # it was not routed
        if self._begun:  # it is too late to send an error
            if isinstance(cause, asyncio.CancelledError) and self.service.lifecycle.stopping:
                return  # the client did not read its answer before the server's time was over
            raise cause
        if self.route == UNMATCHED:  # it was refused before it was routed
            self.route = self._route()
        members: Mapping[str, Any] = {}
        if "route" in self._scope and not isinstance(error, MethodNotAllowed):
            members = self._scope["route"].error_members(type(error), error.detail)
        headers, body = error.answer(self.request_id, **members)
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    def _route(self) -> str:
        if CONTROL.search(self.path):
            return UNMATCHED
        return next((route.path for route in self._matching()), UNMATCHED)

    def _matching(self) -> Iterator["Route"]:
        for route in self._router.routes:
            if isinstance(route, Route) and route.matches(self._scope)[0] is not Match.NONE:
                yield route

    def methods(self) -> list[str]:
        """The methods of all routes that have its path; Starlette names only those of the first."""
        methods = {method for route in self._matching() for method in route.methods or ()}
        return sorted(methods | ({"HEAD"} if "GET" in methods else set()))

    def _error(self, cause: BaseException) -> ServiceError:
        if isinstance(cause, HTTPException) and cause.status_code == NotFound.status:
            cause = self._no_route()
        return super()._error(cause)

    def _no_route(self) -> NotFound:
        if self.path == "/metrics":
            port = self.service.settings.metrics_port
            return NotFound(f"the metrics are on port {port} (--metrics-port)")
        routes = [route for route in self._router.routes if isinstance(route, Route)]
        paths = {route.path for route in routes}
        known = [(route.path, *sorted(route.methods or ())) for route in routes]
        near = nearest(known, self.verb, self.path)
        if near or "/classify" in paths:
            near = f"; the nearest is {near}" if near else "; POST /classify classifies texts"
        docs = "; /docs lists the routes" if "/docs" in paths else ""
        return NotFound(f"no route has this path{near}{docs}")

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.release()  # the client may read the answer slowly
            self._begun = True
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self.request_id.encode())]
            self.arrival.refused = refused = self.status >= BadRequest.status
            if self.service.lifecycle.stopping or (refused and self.arrival.endless):
                # The client must not send its next request on this connection.
                message["headers"].append((b"connection", b"close"))
        await self._send(message)


class HttpRequest(Request):
    """FastAPI's request, with the exchange that it belongs to."""

    exchange: HttpExchange
    content = b""  # its body, decompressed, once the first route has read it: see OtherForm


class JsonAnswer(Response):
    """An answer as JSON. The content is not validated: FastAPI would copy what was just built."""

    def __init__(self, content: Any, timing: str = "") -> None:
        """``timing`` is the header server-timing: where the time went, in milliseconds."""
        # Response's own constructor is for every case, which takes several times as long.
        self.status_code = 200
        self.background = None
        self.body = msgspec.json.encode(content, enc_hook=BaseModel.model_dump)
        self.raw_headers = [
            (b"content-length", b"%d" % len(self.body)),
            (b"content-type", b"application/json"),
        ]
        if timing:
            self.raw_headers.append((b"server-timing", timing.encode()))


def packed_answer(request: HttpRequest, packed: bytes, headers: Mapping[str, str]) -> Response:
    """Answer with the content of a gzip file, unpacked for clients that do not accept gzip.

    What floods may ask for is compressed beforehand.
    """
    headers = {**headers, "vary": "Accept-Encoding"}  # so a Route does not compress it again
    if "gzip" in request.headers.get("accept-encoding", "").lower():
        return Response(packed, headers={**headers, "content-encoding": "gzip"})
    return Response(gzip.decompress(packed), headers=headers)


class Route(APIRoute):
    """A route whose endpoint takes only the request and returns the response.

    FastAPI finds it and documents it. It would also resolve dependencies and validate the answer,
    which these endpoints do themselves. At commit 153d05d, FastAPI's own way would have taken 29 %
    of the event loop's CPU time for a request of one text (``benchmarks/cpu_time/``).
    """

    encodings: ClassVar[Mapping[str, bool]] = {}  # those that the answer must not have, with False
    forms: Mapping[str, "Route"] = {}  # by their fields: what answers bodies of other servers' form

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The exchange holds the scope: a cycle, which only the garbage collector would free.
        exchange: HttpExchange = scope.pop("exchange")
        exchange.route = self.path
        if scope["method"] not in (self.methods or ()):
            allowed = exchange.methods()
            detail = f"allowed here: {', '.join(allowed)}{self._example(exchange)}"
            raise MethodNotAllowed(detail, allowed=allowed)
        request = HttpRequest(scope, receive, send)
        request.exchange = exchange
        try:
            answer = await self.endpoint(request)
        except OtherForm as other:
            scope["route"] = other.route  # errors have its members
            request.content = other.body
            answer = await other.route.endpoint(request)
        response = answer if isinstance(answer, Response) else JsonAnswer(answer)
        body = getattr(response, "body", None)  # a file and a stream have none
        # The endpoint has chosen the encoding of an answer with Vary.
        short = body is not None and (len(body) < COMPRESS_BYTES or "vary" in response.headers)
        sent: ASGIApp = response
        if not short:
            sent = CompressMiddleware(response, minimum_size=COMPRESS_BYTES, **self.encodings)
        await sent(scope, receive, send)

    def _example(self, exchange: HttpExchange) -> str:
        """How to call one of our own routes for texts, for who opens its URL in a browser."""
        content = (self.openapi_extra or {}).get("requestBody", {}).get("content", {})
        if "example" not in content.get("application/json", {}):
            return ""
        host = exchange.headers.get(b"host", b"HOST").decode("latin-1")
        path = f"{exchange.service.settings.root_path}{self.path}"
        return (
            f"; for example: curl http://{host}{path} -H 'content-type: application/json' "
            """-d '{"inputs": "I love this!"}'"""
        )

    @staticmethod
    def error_members(kind: type[ServiceError], detail: str) -> Mapping[str, Any]:
        """The fields that the route's protocol adds to an error."""
        return {}


class OtherForm(Exception):
    """The body is of another server's form, which ``route`` reads."""

    def __init__(self, route: Route, body: bytes) -> None:
        self.route = route
        self.body = body


class TextRoute(Route):
    """A route that takes texts. It is matched first, and its metric series exist from the start.

    ``operation`` is a label of these series. ``classify`` answers as soon as the texts of one
    request are classified; alerts on the time of an answer read only this one.
    """

    operation: ClassVar[str] = "classify"


def application(service: Service, router: APIRouter) -> ASGIApp:
    """The router as an application of ASGI, with each request of HTTP as an exchange."""

    def answer(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            return HttpExchange(service, router, scope, receive, send).run()
        return router(scope, receive, send)

    return answer
