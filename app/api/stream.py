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
# Lines classified together, and how many such groups wait for their turn to be sent: enough for
# the batcher to choose from, and few turns in a queue that gives each group its own.
GROUP_LINES = 128
WAITING_GROUPS = 2
SHUTDOWN: Message = {"type": "shutdown"}
MAX_WAIT_S = 1.0  # before a stream asks again whether the queue takes more

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
    return StreamedAnswers(
        service,
        service.classifier(request.query_params.get("model")),
        Options(overflow=overflow),
        decoder(request.headers.get("content-encoding", "")),
    )


class StreamedAnswers(Response):
    """Reads the request while it answers it."""

    def __init__(
        self, service: Service, classifier: Classifier, options: Options, body: Decoder
    ) -> None:
        super().__init__(
            media_type=MEDIA_TYPE,
            headers={"x-accel-buffering": "no"},  # a proxy should pass on each line
        )
        del self.headers["content-length"]
        self._service = service
        self._classifier = classifier
        self._options = options
        self._decoder = body
        self._lines = LineReader(service.settings.max_body_bytes)
        self._messages: asyncio.Queue[Message] = asyncio.Queue(1)
        # In the order of their lines; None is the end.
        self._groups: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(WAITING_GROUPS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = [
                    tasks.create_task(self._receive(receive)),
                    tasks.create_task(self._watch_shutdown()),
                ]
                tasks.create_task(self._read(tasks))
                while (group := await self._groups.get()) is not None:
                    body = await group
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
                for task in watching:
                    task.cancel()
        except* ClientDisconnected:
            pass  # what was in work is cancelled, and nobody waits for the end

    async def _receive(self, receive: Receive) -> None:
        """Read one message ahead, and end everything when the client leaves."""
        while (message := await receive())["type"] != "http.disconnect":
            await self._messages.put(message)
        raise ClientDisconnected("before its answers")

    async def _watch_shutdown(self) -> None:
        await self._service.closing.wait()
        await self._messages.put(SHUTDOWN)

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        try:
            async for lines in self._arriving():
                for first in range(0, len(lines), GROUP_LINES):
                    group = self._answer(lines[first : first + GROUP_LINES])
                    await self._groups.put(tasks.create_task(group))
        except (InvalidRequest, ShuttingDown) as error:  # nothing can be read any more
            await self._groups.put(tasks.create_task(self._answer([Line(None, error)])))
        await self._groups.put(None)

    async def _arriving(self) -> AsyncIterator[list[Line]]:
        more = True
        while more:
            message = await self._messages.get()
            if message is SHUTDOWN:
                raise ShuttingDown("the service is shutting down; send the rest again")
            for piece in self._decoder.decode(message.get("body", b"")):
                yield self._lines.feed(piece)
            more = message.get("more_body", False)
        self._decoder.end()
        yield self._lines.end()

    async def _answer(self, lines: Sequence[Line]) -> bytes:
        texts = [line.text for line in lines if isinstance(line.text, str)]
        outcomes = iter(await self._outcomes(texts))
        return b"".join(
            answer_line(line, next(outcomes) if isinstance(line.text, str) else line.text)
            for line in lines
        )

    async def _outcomes(self, texts: Sequence[str]) -> Sequence[Prediction | ServiceError]:
        """What became of each text: where others would be turned away, a stream waits."""
        deadline_s = self._service.settings.deadline_ms / 1000
        while texts:
            deadline = asyncio.get_running_loop().time() + deadline_s
            try:
                done = await self._classifier.classify(texts, self._options, deadline=deadline)
                return done.outcomes
            except Overloaded as error:
                await asyncio.sleep(min(error.retry_after_s or MAX_WAIT_S, MAX_WAIT_S))
            except TooManyTexts as error:  # for the queue
                if len(texts) == 1:
                    return [error]
                middle = len(texts) // 2
                first = await self._outcomes(texts[:middle])
                return [*first, *await self._outcomes(texts[middle:])]
            except ServiceError as error:
                return [error] * len(texts)
        return []
