"""POST /classify/stream: any number of texts in one request, at constant memory.

Lines come in and answers go out at the same time, in the same order. A few groups of lines are in
work at once. While the newest waits for its turn among those of other streams, or the client does
not read its answers, nothing more is read.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, ClassVar, get_args

from fastapi import APIRouter, Response
from pydantic import Field
from starlette.types import Message, Receive, Scope, Send

from sentiment_service import errors
from sentiment_service.adapters import ndjson
from sentiment_service.adapters.forms import TextParameters
from sentiment_service.engine.classifier import STAGES, Classification, Classifier
from sentiment_service.engine.options import LANGUAGE_TAG, Overflow, TextOptions
from sentiment_service.engine.text.text_tokenizer import Text
from sentiment_service.http.decoding import Decoder, decoder
from sentiment_service.http.openapi import documented, text_example
from sentiment_service.http.routes import HttpExchange, HttpRequest, TextRoute, media_type
from sentiment_service.requests.service import Adapter
from sentiment_service.requests.validation import LanguageTag, checked

MEDIA_TYPE = "application/x-ndjson"
ACCEPTED = (
    MEDIA_TYPE,
    "application/ndjson",
    "application/jsonl",
    "application/jsonlines",
    "application/octet-stream",
)
# Groups of lines whose answers wait to be sent: few, because each has its own turn in the queue.
WAITING_GROUPS = 2
IDLE_S = 300.0  # the longest silence of a client that has not ended its body
LAST_LINE_S = 0.1  # to send the last line to a client that may not read
SEND_AGAIN = "the service is shutting down; send the rest again"
REPLACED = "another model has taken the place of this stream's; send the rest again"


class StreamRoute(TextRoute):
    operation = "stream"
    # These would keep megabytes as long as the stream lasts.
    encodings: ClassVar = {"brotli": False, "zstd": False}


router = APIRouter(tags=["classification"], route_class=StreamRoute)


class StreamParameters(TextParameters):
    """Those of a query, where a number is a string."""

    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    language: LanguageTag | None = None

    @property
    def options(self) -> TextOptions:
        return replace(super().options, language=self.language)


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
            (
                "language",
                "as in POST /classify",
                {"type": "string", "pattern": f"^{LANGUAGE_TAG.pattern}$"},
            ),
            ("threshold", "as in POST /classify", {"type": "number", "minimum": 0, "maximum": 1}),
        )
    ],
}


@router.post(
    "/classify/stream",
    operation_id="classifyStream",
    responses={**text_example(ANSWERED_LINES, MEDIA_TYPE), **documented(*errors.CLASSIFY_ERRORS)},
    response_class=Response,
    openapi_extra=_DOCUMENTED,
)
async def classify_stream(request: HttpRequest) -> Response:
    """Classify any number of texts. They are answered while you send them, at constant memory.

    For each line `{"id": ..., "text": ...}` you get a line with the same id and the result, or an
    `error`, in the same order. The client must read while it sends, as curl does. A stream waits
    where other requests would be refused, and its lines have no deadline. All lines are answered by
    the model that the header `x-model-digest` names. When the service shuts down, or some time
    after another model has taken its place, the last line is an error `shutting_down` with the id
    null.
    """
    exchange = request.exchange
    if media_type(request) not in ACCEPTED:
        raise errors.UnsupportedMediaType(f"send lines of JSON, with content-type: {MEDIA_TYPE}")
    for field in ndjson.NOT_TAKEN.keys() & request.query_params.keys():
        raise errors.InvalidRequest(ndjson.NOT_TAKEN[field])
    options = checked(dict(request.query_params), StreamParameters).options
    name = request.query_params.get("model")
    body = decoder(request.headers.get("content-encoding", ""))
    classifier = exchange.service.models.classifiers.of(name, options.language)
    classifier.model.check(options)
    exchange.asks(classifier.model.name, 0)
    return StreamedAnswers(exchange, classifier, options, body)


class StreamedAnswers(Response):
    """Reads the request and sends the answers at the same time, all of one model."""

    def __init__(
        self, exchange: HttpExchange, classifier: Classifier, options: TextOptions, body: Decoder
    ) -> None:
        super().__init__(
            media_type=MEDIA_TYPE,
            headers={"x-accel-buffering": "no"},  # so that a proxy passes on each line at once
        )
        del self.headers["content-length"], self.body
        self.headers["x-model-digest"] = classifier.model.digest
        self._exchange = exchange
        self._service = service = exchange.service
        self._classifier = classifier
        self._options = options
        self._decoder = body
        self._lines = ndjson.LineReader(service.settings.max_body_bytes, service.stream_inflight)
        # In the order of their lines; None marks the end.
        self._groups: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(WAITING_GROUPS)
        self._failure: errors.ServiceError | None = None  # why not everything was answered
        self._ended = False
        self._patience = asyncio.timeout(None)  # of the reader, with a silent client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with self._classifier.in_use():
                await self._exchange.while_connected(self._respond(receive, send))
        except errors.ClientDisconnected as error:  # all work is cancelled
            if self._exchange.status != self.status_code:  # the answer has not begun
                raise
            if not self._ended:  # behind the last line, the server itself may close the connection
                self._failure = error.again()
        except asyncio.CancelledError:
            if not self._service.lifecycle.stopping:
                raise
            # Some answers are missing, but a client that reads still gets the last line.
            if not self._ended:
                self._failure = errors.ShuttingDown(SEND_AGAIN)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_LINE_S):
                        await self._send_last(send)
        finally:
            self._lines.close()
            del self._decoder  # the frames of a cancelled task stay for the collector
            self._exchange.stages.clear()  # those of groups overlap
            if failure := self._failure:  # the status was sent before, so it cannot say it
                self._exchange.code, self._exchange.outcome = failure.code, failure.outcome

    async def _respond(self, receive: Receive, send: Send) -> None:
        async with asyncio.TaskGroup() as tasks:
            ends = (self._service.lifecycle.closing, self._classifier.ended)
            watching = [tasks.create_task(self._end_at(end)) for end in ends]
            tasks.create_task(self._read(receive, tasks))
            # The reader asks for the body first, so that a client that waits gets "100 Continue".
            await asyncio.sleep(0)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while (group := await self._groups.get()) is not None:
                body = await group
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await self._send_last(send)
            self._ended = True
            for watch in watching:
                watch.cancel()

    async def _send_last(self, send: Send) -> None:
        line = ndjson.answer_line(ndjson.NO_ID, self._failure) if self._failure else b""
        await send({"type": "http.response.body", "body": line})

    async def _end_at(self, end: asyncio.Event) -> None:
        """Then stop reading, and let no group wait for its turn any longer."""
        await end.wait()
        self._classifier.stream_gate.close()
        with suppress(RuntimeError):  # the reader waits for no message
            self._patience.reschedule(0)

    async def _read(self, receive: Receive, tasks: asyncio.TaskGroup) -> None:
        try:
            async for lines in self._arriving(receive):
                if lines:
                    admitted = asyncio.Event()
                    await self._groups.put(tasks.create_task(self._answer(lines, admitted)))
                    # Cut the next group when its turn is near: its size depends on how many wait.
                    await admitted.wait()
                else:
                    # A few bytes may expand to many pieces without a line: let other tasks run.
                    await asyncio.sleep(0)
        except errors.ServiceError as error:  # nothing more can be read
            self._failure = error.again()
        await self._groups.put(None)

    async def _answer(self, lines: list[ndjson.Line], admitted: asyncio.Event) -> bytes:
        """The answers to a group. ``admitted`` is set when it is past the gate, or cannot be."""
        texts = [line.text for line in lines]
        try:
            work = self._classified(texts, admitted)
            outcomes = (await self._exchange.counted(self._classifier, texts, work)).outcomes
        except errors.ServiceError as error:
            outcomes = [text if isinstance(text, errors.ServiceError) else error for text in texts]
        finally:
            admitted.set()
            self._lines.answered(lines)
        if self._replaced:
            left = errors.ShuttingDown(REPLACED)
            outcomes = [left if isinstance(one, errors.ShuttingDown) else one for one in outcomes]
        return b"".join(
            ndjson.answer_line(line.id, one) for line, one in zip(lines, outcomes, strict=True)
        )

    async def _classified(
        self, texts: Sequence[Text | errors.ServiceError], admitted: asyncio.Event
    ) -> Classification:
        classifier = self._classifier
        try:
            return await classifier.classify(
                texts, self._options, deadline=math.inf, admitted=admitted
            )
        except errors.TooManyTexts as error:
            # More tokens than one request may queue: halve the group.
            if len(texts) == 1:
                return Classification(classifier.model, [error], dict.fromkeys(STAGES, 0.0), [0])
            middle = len(texts) // 2
            first = await self._classified(texts[:middle], admitted)
            second = await self._classified(texts[middle:], admitted)
            stages = {stage: first.stages[stage] + second.stages[stage] for stage in STAGES}
            outcomes, unknown = first.outcomes + second.outcomes, first.unknown + second.unknown
            return Classification(classifier.model, outcomes, stages, unknown)

    async def _arriving(self, receive: Receive) -> AsyncIterator[list[ndjson.Line]]:
        gate, reserved, more = self._classifier.stream_gate, 0, True
        while more:
            message = await self._message(receive)
            body = message.get("body", b"")
            if body and not reserved:
                self._lines.reserve(reserved := self._decoder.window(body[0]))
            for piece in self._decoder.decode(body):
                self._check_end()
                for lines in self._lines.feed(piece, lambda: gate.group_bytes):
                    yield lines
                yield []
            more = message.get("more_body", False)
        self._decoder.end()
        yield self._lines.end()

    async def _message(self, receive: Receive) -> Message:
        self._check_end()
        self._patience = asyncio.timeout(IDLE_S)
        try:
            async with self._patience:
                message = await receive()
        except TimeoutError:
            self._check_end()
            silent = f"nothing arrived for {IDLE_S:g} s"
            raise errors.DeadlineExceeded(silent, of_client=True) from None
        if message["type"] == "http.disconnect":
            raise errors.ClientDisconnected("before its answers")
        return message

    def _check_end(self) -> None:
        if self._service.lifecycle.stopping:
            raise errors.ShuttingDown(SEND_AGAIN)
        if self._replaced:
            raise errors.ShuttingDown(REPLACED)

    @property
    def _replaced(self) -> bool:
        return self._classifier.ended.is_set() and not self._service.lifecycle.stopping


ADAPTER = Adapter(router.routes)
