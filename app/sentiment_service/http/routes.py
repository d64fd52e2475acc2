"""The way of a request over HTTP: which route answers it, how its body is read, how the answer is
sent; and POST /classify.

FastAPI finds the routes and documents them. To let it read bodies and validate answers, too, would
take 29 % of the event loop's time for a request of one text (``benchmarks/cpu_time/``).
"""

import asyncio
import gzip
import re
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any, ClassVar

import msgspec
from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette_compress import CompressMiddleware, add_compress_type
from starlette_compress._utils import parse_accept_encoding
from typing_extensions import TypedDict

from sentiment_service import errors
from sentiment_service.engine.model.model import ModelVersion
from sentiment_service.engine.step_thread import Steps
from sentiment_service.http.decoding import decompressed
from sentiment_service.http.openapi import CLASSIFIED, documented, documented_body, example
from sentiment_service.requests.exchange import OTHER_METHOD, UNMATCHED, Arrival, Exchange
from sentiment_service.requests.service import Service
from sentiment_service.requests.validation import (
    EMPTY_BODY,
    INLINE_BYTES,
    MOST_SIGNS,
    SIGNS_PER_TEXT,
    Body,
    ClassifyRequest,
    Schema,
    as_list,
    checked,
    is_own_form,
    parse,
    text_body,
)
from sentiment_service.results import FailedItem, Prediction

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# A path that contains one of these, decoded, matches no route.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
COMPRESS_BYTES = 8_192  # shorter responses are not compressed
# A longer body is read only if the queue has room; a shorter one has mostly arrived with its head.
# A longer answer is compressed on a thread, so that others are answered meanwhile.
LONG_BYTES = 65_536
# The fields of our own forms whose values are no strings, which all values of a query are.
NO_STRINGS = frozenset({"threshold", "add_special_tokens"})
add_compress_type(errors.PROBLEM)
add_compress_type("application/x-ndjson", streaming=True)


class HttpExchange(Exchange):
    """A request of HTTP, answered by the route that its path names."""

    def __init__(
        self, service: Service, router: APIRouter, scope: Scope, receive: Receive, send: Send
    ) -> None:
        super().__init__(
            service,
            verb=scope["method"] if scope["method"] in METHODS else OTHER_METHOD,
            path=scope["path"],
            query=scope["query_string"],
            headers=scope["headers"],
            client=scope["client"][0] if scope["client"] else "",
            arrival=scope.get("arrival") or Arrival(),
        )
        # The server leaves out the body of an answer to HEAD.
        self._scope = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        self._router = router
        self._receive = receive
        self._send = send
        self._begun = False  # whether the answer has begun
        self.id_header = b""  # the route's

    def _answer(self) -> Awaitable[None]:
        if CONTROL.search(self.path):
            raise errors.NotFound("no route has this path: it contains control characters")
        self._scope["exchange"] = self
        return self._router(self._scope, self._receive, self.send)

    async def _fail(self, error: errors.ServiceError, cause: BaseException) -> None:
        self._scope.pop("exchange", None)  # it was not routed
        if self._begun:  # it is too late to send an error
            if isinstance(cause, asyncio.CancelledError) and self.service.lifecycle.stopping:
                return  # the client did not read its answer before the server's time was over
            raise cause
        route = self._scope.get("route")
        if self.route == UNMATCHED and not CONTROL.search(self.path):  # it was not routed
            route = next(iter(self.matching()), None)
            self.route = route.path if route else UNMATCHED
        members: Mapping[str, Any] = {}
        media_type = errors.PROBLEM
        if route and not isinstance(error, errors.MethodNotAllowed):
            members = route.error_members(type(error), error.detail)
            media_type = route.error_media_type
            self.id_header = route.id_header
        headers, body = error.answer(self.request_id, media_type, **members)
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    @property
    def routes(self) -> list["Route"]:
        return [route for route in self._router.routes if isinstance(route, Route)]

    def matching(self) -> list["Route"]:
        return [one for one in self.routes if one.matches(self._scope)[0] is not Match.NONE]

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.release()  # the client may read the answer slowly
            self._begun = True
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self.request_id.encode())]
            if self.id_header:
                message["headers"].append((self.id_header, self.request_id.encode()))
            self.arrival.refused = refused = self.status >= errors.BadRequest.status
            moves = self.service.surplus > 0 and not self.arrival.followed
            self.service.surplus -= moves
            if moves or self.service.lifecycle.stopping or (refused and self.arrival.endless):
                # The client must not send its next request on this connection.
                message["headers"].append((b"connection", b"close"))
        await self._send(message)


class HttpRequest(Request):
    """FastAPI's request, with the exchange that it belongs to."""

    exchange: HttpExchange
    parsed: Mapping[str, Any] | None = None  # its body, if that is of another server's form


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
    """Answer with the content of a gzip file, unpacked for clients that do not accept gzip."""
    headers = {**headers, "vary": "Accept-Encoding"}  # so a Route does not compress it again
    if "gzip" in parse_accept_encoding(request.headers.get("accept-encoding", "")):
        return Response(packed, headers={**headers, "content-encoding": "gzip"})
    return Response(gzip.decompress(packed), headers=headers)


class Route(APIRoute):
    """A route whose endpoint takes only the request and returns the response."""

    error_media_type: ClassVar[str] = errors.PROBLEM
    id_header: ClassVar[bytes] = b""  # where clients read the request's id, beside x-request-id
    encodings: ClassVar[Mapping[str, bool]] = {}  # those that the answer must not have, with False
    forms: Mapping[str, "Route"] = {}  # by their fields: what answers bodies of other servers' form

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The exchange holds the scope: a cycle, which only the garbage collector would free.
        exchange: HttpExchange = scope.pop("exchange")
        exchange.route, exchange.id_header = self.path, self.id_header
        exchange.model_of_path = scope["path_params"].get("name")
        if scope["method"] not in (self.methods or ()):
            known = {method for route in exchange.matching() for method in route.methods or ()}
            allowed = sorted(known | ({"HEAD"} if "GET" in known else set()))
            detail = f"allowed here: {', '.join(allowed)}{self._example(exchange)}"
            raise errors.MethodNotAllowed(detail, allowed=allowed)
        request = HttpRequest(scope, receive, send)
        request.exchange = exchange
        form: Route | None = None
        try:
            answer = await self.endpoint(request)
        except errors.UnknownField as error:
            form = next((self.forms[field] for field in self.forms if field in error.body), None)
            if form is None:
                raise
            request.parsed = error.body
        if form is not None:
            scope["route"] = form  # errors have its members
            answer = await form.endpoint(request)
        response = answer if isinstance(answer, Response) else JsonAnswer(answer)
        body = getattr(response, "body", None)  # a file and a stream have none
        # The endpoint has chosen the encoding of an answer with Vary.
        short = body is not None and (len(body) < COMPRESS_BYTES or "vary" in response.headers)
        sent: ASGIApp = response
        if not short:
            sent = CompressMiddleware(response, minimum_size=COMPRESS_BYTES, **self.encodings)
            if body is not None and len(body) > LONG_BYTES and "accept-encoding" in request.headers:
                for message in await asyncio.to_thread(_messages, sent, scope, receive):
                    await send(message)
                return
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
    def error_members(kind: type[errors.ServiceError], detail: str) -> Mapping[str, Any]:
        """The fields that the route's protocol adds to an error."""
        return {}


def _messages(app: ASGIApp, scope: Scope, receive: Receive) -> list[Message]:
    """What an application sends that waits for nothing. It needs no event loop."""
    messages: list[Message] = []

    async def keep(message: Message) -> None:
        messages.append(message)

    with suppress(StopIteration):
        app(scope, receive, keep).__await__().send(None)
        raise RuntimeError("the application waits for something")
    return messages


class TextRoute(Route):
    """A route that takes texts. It is matched first, and its metric series exist from the start."""

    operation: ClassVar[str] = "classify"  # a label of these series


async def read_body(request: HttpRequest, schema: Schema[Body]) -> Body:
    """The body, decompressed and validated as ``schema``."""
    if request.parsed is not None:
        return checked(request.parsed, schema)
    body = await read_bytes(request)
    query = _own_fields_of_query(request, schema)
    main, _, sub = media_type(request).partition("/")
    if main != "application" or not (sub == "json" or sub.endswith("+json")):
        text = text_body(_header(request, b"content-type"), body, schema)
        _belong_in_body(query.keys() & text.keys())
        return checked(query | text, schema)
    _belong_in_body(query)
    return await validated(request, body, schema)


def _own_fields_of_query(request: HttpRequest, schema: Schema[Any]) -> dict[str, Any]:
    """The fields of one of our own forms that the query has; proxies may add others."""
    if not request.scope["query_string"]:
        return {}
    known = schema.model_fields if is_own_form(schema) else {}
    fields = {name: value for name, value in request.query_params.items() if name in known}
    for name in fields.keys() & NO_STRINGS:
        with suppress(msgspec.DecodeError, RecursionError):  # then it is refused as a string
            fields[name] = msgspec.json.decode(fields[name])
    return fields


def _belong_in_body(names: Iterable[str]) -> None:
    for name in names:
        raise errors.InvalidRequest(f"put {name} in the body, not in the query")


async def validated(request: HttpRequest, body: bytes, schema: Schema[Body]) -> Body:
    """A decompressed body, parsed as JSON and validated as ``schema``."""
    if len(body) <= INLINE_BYTES:
        return checked(parse(body, "the body"), schema)
    most = max(MOST_SIGNS, SIGNS_PER_TEXT * request.exchange.service.settings.max_texts)
    return await request.exchange.in_steps(_validating(body, schema, most), len(body))


def _validating(body: bytes, schema: Schema[Body], most_signs: int) -> Steps[Body]:
    yield
    return checked(parse(body, "the body", most_signs), schema)


async def read_bytes(request: HttpRequest, *, empty: str = EMPTY_BODY) -> bytes:
    """The body, decompressed. ``empty`` is the error of an empty body."""
    exchange = request.exchange
    max_bytes = exchange.service.settings.max_body_bytes
    _check_announced(exchange, max_bytes)
    # One block: the pieces of many long bodies would leave gaps in the heap, which keeps them.
    received = bytearray()
    more = True
    while more:
        # If the whole body has come, no timer is needed, which costs as much as all the rest here.
        arrived = exchange.arrival.complete
        message = await (request.receive() if arrived else _receive_in_time(request))
        if message["type"] == "http.disconnect":
            raise errors.ClientDisconnected("while sending the body")
        piece = message.get("body", b"")
        if len(received) + len(piece) > max_bytes:
            raise errors.PayloadTooLarge(
                f"the body has more than {max_bytes} bytes, the most that is accepted"
            )
        exchange.hold(len(piece))
        received += piece
        more = message.get("more_body", False)
    body = bytes(received)
    if encoding := _header(request, b"content-encoding"):
        body = await decompressed(exchange, body, encoding)
    if not body:
        raise errors.InvalidRequest(empty)
    return body


def _check_announced(exchange: HttpExchange, max_bytes: int) -> None:
    """Refuse a body by its content-length, before it is read."""
    announced = int(exchange.headers.get(b"content-length", 0))
    if announced > max_bytes:
        raise errors.PayloadTooLarge(
            f"the body has {announced} bytes; at most {max_bytes} are accepted"
        )
    if announced > LONG_BYTES:
        if announced > exchange.service.inflight.remaining:
            raise exchange.refuse_body()
        exchange.check_admission()


async def _receive_in_time(request: HttpRequest) -> Message:
    try:
        async with asyncio.timeout_at(request.exchange.deadline):
            return await request.receive()
    except TimeoutError:
        late = "the body did not arrive within the time allowed"
        raise errors.DeadlineExceeded(late, of_client=True) from None


def media_type(request: HttpRequest) -> str:
    """The body's media type without its parameters; empty if no header says it."""
    return _header(request, b"content-type").partition(";")[0].strip().lower()


def _header(request: HttpRequest, name: bytes) -> str:
    """The value of the first header with this name, or "". Faster than ``request.headers``."""
    for known, value in request.scope["headers"]:
        if known == name:
            return bytes(value).decode("latin-1")
    return ""


router = APIRouter(tags=["classification"], route_class=TextRoute)

Answered = Annotated[ModelVersion, Field(description="the model that answered")]


class ClassifyResponse(TypedDict):
    """The results of the texts, and the model that they are from."""

    model: Answered
    labels: Annotated[
        list[str], Field(description="the model's labels, in the order of its logits")
    ]
    results: Annotated[
        list[Prediction | FailedItem],
        Field(description="one item for each text, in the order of the texts"),
    ]


@router.post(
    "/classify",
    operation_id="classify",
    response_model=ClassifyResponse,
    responses={**example(CLASSIFIED), **documented(*errors.CLASSIFY_ERRORS)},
    openapi_extra=documented_body(ClassifyRequest),
)
async def classify(request: HttpRequest) -> Response:
    """Classify one text or several: label, scores and logits.

    `results` is always a list, in the order of the texts. If one text of a list is bad, its place
    in `results` has its error, and the other texts are still classified. If you send a single
    text and it is bad, the request fails with its error.
    """
    return await answer(request, await read_body(request, ClassifyRequest))


async def answer(request: HttpRequest, body: ClassifyRequest) -> Response:
    texts = as_list(body.inputs)
    done = await request.exchange.classify(texts, model=body.model, options=body.options)
    response: ClassifyResponse = {
        "model": done.model.version,
        "labels": done.model.labels,
        "results": done.items(single=texts is not body.inputs),
    }
    return JsonAnswer(response, done.server_timing)


def application(service: Service, router: APIRouter) -> ASGIApp:
    """The router as an application of ASGI, with each request of HTTP as an exchange."""

    def run(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            return HttpExchange(service, router, scope, receive, send).run()
        return router(scope, receive, send)

    return run
