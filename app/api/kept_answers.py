"""The OpenAPI document and the metrics: made once for many clients, in each encoding."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence

from fastapi import Response
from prometheus_client.exposition import choose_encoder
from starlette.types import ASGIApp, Message
from starlette_compress import CompressMiddleware

from app.api.http_exchange import HttpRequest
from app.api.routing import COMPRESS_BYTES
from app.observability.metrics import Metrics

ENCODINGS = ("zstd", "br", "gzip")  # as CompressMiddleware prefers them
ACCEPTED = re.compile(r"([^\s,;]+)\s*(?:;\s*q\s*=\s*([\d.]+))?")
# After the metrics were rendered, they are not rendered again for this many times as long, and for
# no longer than the seconds: a scrape that waits should not look like a service that hangs.
REST, MAX_REST_S = 10, 0.05


def accepted_encoding(request: HttpRequest, offered: Sequence[str] = ENCODINGS) -> str:
    """The first of the ``offered`` encodings that the client accepts, or ""."""
    header = ",".join(request.headers.getlist("accept-encoding")).lower()
    accepts = {name: not q or q.strip("0.") != "" for name, q in ACCEPTED.findall(header)}
    return next((name for name in offered if accepts.get(name, accepts.get("*"))), "")


class KeptAnswers:
    """Keeps answers that do not change. Their names must be few: none is ever forgotten."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Message] = {}  # by name and encoding

    async def answer(
        self, request: HttpRequest, name: str, make: Callable[[], Awaitable[Response]]
    ) -> Response:
        """The answer with this name, in an encoding that the client accepts; made if it is new."""
        encoding = accepted_encoding(request)
        kept = self._kept.get((name, encoding))
        if kept is None:
            kept = await _whole(request, await make(), encoding)
            self._kept[name, encoding] = kept
        response = Response(kept["body"], kept["status"])
        response.raw_headers = [*kept["headers"]]
        return response


async def _whole(request: HttpRequest, response: Response, encoding: str) -> Message:
    """What the response sends in this encoding, as one message."""
    whole: Message = {"body": b""}

    async def send(message: Message) -> None:
        body = message.get("body", b"")
        whole.update(message, body=whole["body"] + body)

    headers = [(b"accept-encoding", encoding.encode())]
    app: ASGIApp = response
    if encoding:
        app = CompressMiddleware(response, minimum_size=COMPRESS_BYTES)
    await app({**request.scope, "headers": headers}, request.receive, send)
    others = [header for header in whole["headers"] if header[0] != b"content-length"]
    if len(others) == len(whole["headers"]):  # it was sent in pieces
        whole["headers"] = [*others, (b"content-length", b"%d" % len(whole["body"]))]
    return whole


class Scrapes:
    """Answers scrapes of the metrics, which take milliseconds to render and to compress.

    A scrape gets the metrics as they are after it arrived. If scrapes come too often for that, they
    wait, and all that wait share one rendering: so scrapes take a small part of a CPU's time.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._next: asyncio.Task[KeptAnswers] | None = None
        self._rests_until = 0.0  # on the event loop's clock

    async def answer(self, request: HttpRequest) -> Response:
        """The metrics as Prometheus text, or as OpenMetrics if the request asks for it."""
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._begun())
        kept = await asyncio.shield(self._next)  # others wait for it, too
        encode, content_type = choose_encoder(request.headers.get("accept", ""))

        async def render() -> Response:
            return Response(encode(self._metrics.registry), headers={"content-type": content_type})

        # CPU time: on a busy machine, the time that others take would count as well.
        started = time.thread_time()
        response = await kept.answer(request, content_type, render)
        rest_s = min(REST * (time.thread_time() - started), MAX_REST_S)
        now = asyncio.get_running_loop().time()
        self._rests_until = max(self._rests_until, now + rest_s)
        return response

    async def _begun(self) -> KeptAnswers:
        await asyncio.sleep(self._rests_until - asyncio.get_running_loop().time())
        await self._metrics.gpus.refresh()
        return KeptAnswers()
