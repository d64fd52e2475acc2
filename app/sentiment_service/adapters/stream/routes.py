"""POST /classify/stream: any number of texts in one request, at constant memory.

Lines come in and answers go out at the same time, in the same order. A few groups of lines are in
work at once. The newest group waits for its turn among the groups of other streams. While it
waits, or while the client does not read its answers, nothing more is read from the client.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Response
from pydantic import Field
from starlette.types import Message, Receive, Scope, Send

from sentiment_service.adapter import Adapter
from sentiment_service.adapters.forms import TextParameters
from sentiment_service.adapters.stream.group import StreamGroup
from sentiment_service.adapters.stream.ndjson import Line, LineReader, answer_line
from sentiment_service.api.body import media_type
from sentiment_service.api.decoding import Decoder, decoder
from sentiment_service.api.http_exchange import HttpExchange, HttpRequest, TextRoute
from sentiment_service.api.openapi import ERRORS, documented, text_example
from sentiment_service.engine.batching.stream_gate import StreamGate
from sentiment_service.engine.text.options import Overflow, TextOptions
from sentiment_service.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    ServiceError,
    ShuttingDown,
    UnsupportedMediaType,
)
from sentiment_service.validation import checked

MEDIA_TYPE = "application/x-ndjson"
ACCEPTED = (
    MEDIA_TYPE,
    "application/ndjson",
    "application/jsonl",
    "application/jsonlines",
    "application/octet-stream",
)
# Groups of lines whose answers wait to be sent. They are enough for the batcher to choose from, and
# few enough that one stream has few turns in the queue, where each group has its own turn.
WAITING_GROUPS = 2
IDLE_S = 300.0  # the longest silence of a client that has not ended its body
LAST_LINE_S = 0.1  # to send the last line to a client that may not read
SEND_AGAIN = "the service is shutting down; send the rest again"


class StreamRoute(TextRoute):
    operation = "stream"


router = APIRouter(tags=["classification"], route_class=StreamRoute)


class StreamParameters(TextParameters):
    """Those of a query, where a number is a string."""

    threshold: Annotated[float, Field(ge=0, le=1)] | None = None


LINES = '{"id": 1, "text": "I love this!"}\n{"id": 2, "text": ""}\n'
ANSWERED_LINES = (
    '{"id":1,"label":"positive","score":0.899,'
    '"scores":{"negative":0.061,"neutral":0.04,"positive":0.899},'
    '"logits":{"negative":-0.946,"neutral":-1.47,"positive":2.464},'
    '"tokens":6,"truncated":false,"polarity":0.838}\n'
    '{"id":2,"error":{"code":"empty_text",'
    '"message":"the text is empty or blank; send at least one visible character"}}\n'
)

_DOCUMENTED = {
    "requestBody": {
        "required": True,
        "content": {
            MEDIA_TYPE: {"schema": {"type": "string"}, "example": LINES},
            "application/octet-stream": {
                "schema": {"type": "string", "format": "binary"},
                "example": LINES,
            },
        },
    },
    "parameters": [
        {"name": name, "in": "query", "description": description, "schema": schema}
        for name, description, schema in (
            ("model", "name of a served model", {"type": "string"}),
            (
                "overflow",
                "as in POST /classify",
                {"type": "string", "enum": get_args(Overflow), "default": "truncate"},
            ),
            ("threshold", "as in POST /classify", {"type": "number", "minimum": 0, "maximum": 1}),
        )
    ],
}


@router.post(
    "/classify/stream",
    operation_id="classifyStream",
    responses={**text_example(ANSWERED_LINES, MEDIA_TYPE), **documented(*ERRORS)},
    response_class=Response,
    openapi_extra=_DOCUMENTED,
)
async def classify_stream(request: HttpRequest) -> Response:
    """Classify any number of texts. They are answered while you send them, at constant memory.

    For each line `{"id": ..., "text": ...}` you get a line with the same id and the result, or an
    `error`, in the same order. The client must read while it sends, as curl does. A stream waits
    where other requests would be refused, and its lines have no deadline. When the service shuts
    down, the last line is an error `shutting_down` with the id null.
    """
    exchange = request.exchange
    if media_type(request, b"content-type") not in ACCEPTED:
        raise UnsupportedMediaType(f"send lines of JSON, with content-type: {MEDIA_TYPE}")
    options = checked(dict(request.query_params), StreamParameters).options
    name = request.query_params.get("model")
    body = decoder(request.headers.get("content-encoding", ""))
    model = exchange.service.models.classifier(name).model
    model.check(options)
    exchange.asks(model.name, 0)
    answers = StreamedAnswers(exchange, name, options, body)
    answers.headers["x-model-digest"] = model.digest  # of its first lines: a reload may follow
    return answers


class StreamedAnswers(Response):
    """Reads the request and sends the answers at the same time."""

    def __init__(
        self, exchange: HttpExchange, model: str | None, options: TextOptions, body: Decoder
    ) -> None:
        super().__init__(
            media_type=MEDIA_TYPE,
            headers={"x-accel-buffering": "no"},  # so that a proxy passes on each line at once
        )
        del self.headers["content-length"], self.body
        self._exchange = exchange
        self._service = service = exchange.service
        self._model = model
        self._options = options
        self._decoder = body
        self._lines = LineReader(service.settings.max_body_bytes, service.stream_inflight)
        # In the order of their lines; None marks the end.
        self._groups: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(WAITING_GROUPS)
        self._failure: ServiceError | None = None  # why not everything was answered
        self._ended = False
        self._patience = asyncio.timeout(None)  # of the reader, with a silent client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._exchange.while_connected(self._respond(receive, send))
        except ClientDisconnected as error:  # all work is cancelled
            self._failure = error
        except asyncio.CancelledError:
            if not self._service.lifecycle.stopping:
                raise
            # The time for accepted work is over. Some answers are missing, but a client that reads
            # still gets the last line.
            if not self._ended:
                self._failure = ShuttingDown(SEND_AGAIN)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_LINE_S):
                        await self._send_last(send)
        finally:
            self._lines.close()
            if self._failure is not None:  # the status was sent before, so only the log can say it
                self._exchange.code = self._failure.code

    async def _respond(self, receive: Receive, send: Send) -> None:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(self._watch_shutdown())
            tasks.create_task(self._read(receive, tasks))
            # Let the reader ask for the body first: the server then sends "100 Continue" to a
            # client that waits for it. Once the answer has begun, it would not.
            await asyncio.sleep(0)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while (group := await self._groups.get()) is not None:
                body = await group
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await self._send_last(send)
            self._ended = True
            watching.cancel()

    async def _send_last(self, send: Send) -> None:
        line = answer_line(Line(None, self._failure), self._failure) if self._failure else b""
        await send({"type": "http.response.body", "body": line})

    async def _watch_shutdown(self) -> None:
        """When streams must end, stop reading, and let no group wait for its turn any longer."""
        await self._service.lifecycle.closing.wait()
        self._gate().close()
        with suppress(RuntimeError):  # the reader waits for no message
            self._patience.reschedule(0)

    async def _read(self, receive: Receive, tasks: asyncio.TaskGroup) -> None:
        try:
            async for lines in self._arriving(receive):
                if lines:
                    group = StreamGroup(lines, self._exchange, self._model, self._options)
                    await self._groups.put(tasks.create_task(self._answer(group)))
                    # Cut the next group when its turn is near: its size depends on how many wait.
                    await group.admitted.wait()
                else:
                    # A few bytes may expand to many pieces without a line: let other tasks run.
                    await asyncio.sleep(0)
        except ServiceError as error:  # nothing more can be read
            self._failure = error
        await self._groups.put(None)

    async def _answer(self, group: StreamGroup) -> bytes:
        try:
            return await group.answer()
        finally:
            self._lines.answered(group.lines)

    async def _arriving(self, receive: Receive) -> AsyncIterator[list[Line]]:
        more = True
        while more:
            message = await self._message(receive)
            for piece in self._decoder.decode(message.get("body", b"")):
                self._check_shutdown()
                for lines in self._lines.feed(piece, lambda: self._gate().group_bytes):
                    yield lines
                yield []
            more = message.get("more_body", False)
        self._decoder.end()
        yield self._lines.end()

    async def _message(self, receive: Receive) -> Message:
        """The next part of the body."""
        self._check_shutdown()
        self._patience = asyncio.timeout(IDLE_S)
        try:
            async with self._patience:
                message = await receive()
        except TimeoutError:
            self._check_shutdown()
            raise DeadlineExceeded(f"nothing arrived for {IDLE_S:g} s") from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnected("before its answers")
        return message

    def _gate(self) -> StreamGate[Any, Any]:
        """That of the model as it is now: a reload replaces it."""
        return self._service.models.classifier(self._model).stream_gate

    def _check_shutdown(self) -> None:
        if self._service.lifecycle.stopping:
            raise ShuttingDown(SEND_AGAIN)


ADAPTER = Adapter(router.routes)
