"""POST /classify/stream: any number of texts in one request, at constant memory.

Lines come in, answers go out at the same time and in the same order. A few groups of lines are in
work at once; while the client does not read, nor the queue take more, nothing is read from it.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import get_args

from fastapi import APIRouter, Request, Response
from starlette.types import Message, Receive, Scope, Send

from app.api.classifier import Classifier
from app.api.decoding import Decoder, decoder
from app.api.middleware import StreamRoute
from app.api.ndjson import Line, LineReader, answer_line
from app.api.openapi import ERRORS, documented
from app.api.predictions import Options
from app.api.schemas import Overflow, Prediction
from app.api.service import Service
from app.errors import (
    ClientDisconnected,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    ServiceError,
    ShuttingDown,
    TooManyTexts,
    UnsupportedMediaType,
)

MEDIA_TYPE = "application/x-ndjson"
ACCEPTED = (
    MEDIA_TYPE,
    "application/ndjson",
    "application/jsonl",
    "application/jsonlines",
    "application/octet-stream",
)
# Groups of lines that wait for their turn to be sent: enough for the batcher to choose from, and
# few turns in a queue that gives each group its own.
WAITING_GROUPS = 2
MAX_WAIT_S = 1.0  # before a stream asks again whether the queue takes more
MAX_TRIES = 5  # of texts that were admitted, but not reached in time
IDLE_S = 300.0  # without anything from a client that has not ended its body

router = APIRouter(tags=["classification"], route_class=StreamRoute)


EXAMPLE = '{"id": 1, "text": "I love this!"}'
_DOCUMENTED = {
    "requestBody": {
        "required": True,
        "content": {
            MEDIA_TYPE: {"schema": {"type": "string", "description": f"lines such as {EXAMPLE}"}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    },
    "parameters": [
        {"name": "model", "in": "query", "schema": {"type": "string"}},
        {
            "name": "overflow",
            "in": "query",
            "schema": {"type": "string", "enum": get_args(Overflow), "default": "truncate"},
        },
    ],
}


@router.post(
    "/classify/stream",
    responses={
        200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}},
        **documented(*ERRORS),
    },
    response_class=Response,
    openapi_extra=_DOCUMENTED,
)
async def classify_stream(request: Request) -> Response:
    """Any number of texts, answered while they are sent, at constant memory.

    Each line `{"id": ..., "text": ...}` is answered by a line with the same id and the result, or
    an `error`, in the same order; a bad line is answered in its place. The client must read while
    it sends, as curl does. Where other requests would be turned away, a stream waits. When the
    service shuts down, the last line is an error `shutting_down` with the id null.
    """
    service = Service.of(request)
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in ACCEPTED:
        raise UnsupportedMediaType(f"send lines of JSON, with content-type: {MEDIA_TYPE}")
    asked = request.query_params.get("overflow", "truncate")
    overflow = next((known for known in get_args(Overflow) if known == asked), None)
    if overflow is None:
        raise InvalidRequest(f"overflow must be one of: {', '.join(get_args(Overflow))}")
    model = request.query_params.get("model")
    service.classifier(model)  # or an error, while it can be one
    return StreamedAnswers(
        service,
        model,
        Options(overflow=overflow),
        decoder(request.headers.get("content-encoding", "")),
    )


class StreamedAnswers(Response):
    """Reads the request while it answers it."""

    def __init__(
        self, service: Service, model: str | None, options: Options, body: Decoder
    ) -> None:
        super().__init__(
            media_type=MEDIA_TYPE,
            headers={"x-accel-buffering": "no"},  # a proxy should pass on each line
        )
        del self.headers["content-length"]
        self._service = service
        self._model = model
        self._options = options
        self._decoder = body
        self._lines = LineReader(service.settings.max_body_bytes)
        self._messages: asyncio.Queue[Message] = asyncio.Queue(1)
        # In the order of their lines; None is the end.
        self._groups: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(WAITING_GROUPS)
        self._last_words = b""  # why not everything was read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = [
                    tasks.create_task(self._receive(receive)),
                    tasks.create_task(self._watch_shutdown()),
                ]
                tasks.create_task(self._read(tasks))
                # Asked for a body, the server tells clients that wait with theirs to go on. Once
                # the answer has begun it would not.
                await asyncio.sleep(0)
                await send(
                    {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                )
                while (group := await self._groups.get()) is not None:
                    body = await group
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                await send({"type": "http.response.body", "body": self._last_words})
                for task in watching:
                    task.cancel()
        except* ClientDisconnected:
            pass  # what was in work is cancelled, and nobody waits for the end

    @property
    def _classifier(self) -> Classifier:
        """Not kept: the model may be loaded again meanwhile."""
        return self._service.classifier(self._model)

    async def _receive(self, receive: Receive) -> None:
        """Read one message ahead, and end everything when the client leaves."""
        more = True
        while True:
            try:
                async with asyncio.timeout(IDLE_S if more else None):
                    message = await receive()
            except TimeoutError:
                message = _end(DeadlineExceeded(f"nothing arrived for {IDLE_S:g} s"))
            if message["type"] == "http.disconnect":
                raise ClientDisconnected("before its answers")
            more = message.get("more_body", False)
            await self._messages.put(message)

    async def _watch_shutdown(self) -> None:
        await self._service.closing.wait()
        error = ShuttingDown("the service is shutting down; send the rest again")
        await self._messages.put(_end(error))

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        try:
            async for lines in self._arriving():
                if lines:
                    await self._groups.put(tasks.create_task(self._answer(lines)))
                else:
                    await asyncio.sleep(0)  # a piece may hold no line, and a few bytes many pieces
        except ServiceError as error:  # nothing can be read any more
            self._last_words = answer_line(Line(None, error), error)
        await self._groups.put(None)

    async def _arriving(self) -> AsyncIterator[list[Line]]:
        more = True
        while more:
            message = await self._messages.get()
            if "error" in message:
                raise message["error"]
            for piece in self._decoder.decode(message.get("body", b"")):
                for lines in self._lines.feed(piece):
                    yield lines
                yield []
            more = message.get("more_body", False)
        self._decoder.end()
        yield self._lines.end()

    async def _answer(self, lines: Sequence[Line]) -> bytes:
        texts = [line.text for line in lines if isinstance(line.text, str)]
        outcomes = iter(await self._outcomes(texts))
        self._classifier.count(line.text for line in lines if isinstance(line.text, ServiceError))
        return b"".join(
            answer_line(line, next(outcomes) if isinstance(line.text, str) else line.text)
            for line in lines
        )

    async def _outcomes(self, texts: Sequence[str]) -> Sequence[Prediction | ServiceError]:
        try:
            with self._classifier.counting_failures(len(texts)):
                outcomes = await self._insist(texts, tries=MAX_TRIES)
        except ServiceError as error:
            return [error] * len(texts)
        self._classifier.count(outcomes)
        return outcomes

    async def _insist(
        self, texts: Sequence[str], *, tries: int
    ) -> Sequence[Prediction | ServiceError]:
        """What became of each text: where others would be turned away, a stream waits.

        Those that were not reached within the deadline are tried again.
        """
        outcomes = await self._admitted(texts)
        late = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, DeadlineExceeded)]
        if not late or tries == 1:
            return outcomes
        again = await self._insist([texts[n] for n in late], tries=tries - 1)
        by_number = dict(zip(late, again, strict=True))
        return [by_number.get(n, outcome) for n, outcome in enumerate(outcomes)]

    async def _admitted(self, texts: Sequence[str]) -> Sequence[Prediction | ServiceError]:
        deadline_s = self._service.settings.deadline_ms / 1000
        while texts:
            deadline = asyncio.get_running_loop().time() + deadline_s
            try:
                attempt = self._classifier.attempt(texts, self._options, deadline=deadline)
                return (await attempt).outcomes
            except Overloaded as error:
                await asyncio.sleep(min(error.retry_after_s or MAX_WAIT_S, MAX_WAIT_S))
            except DeadlineExceeded as error:
                return [error] * len(texts)
            except TooManyTexts as error:  # for the queue
                if len(texts) == 1:
                    return [error]
                middle = len(texts) // 2
                first = await self._admitted(texts[:middle])
                return [*first, *await self._admitted(texts[middle:])]
        return []


def _end(error: ServiceError) -> Message:
    return {"type": "end", "error": error}
