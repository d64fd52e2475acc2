"""The metrics of Prometheus. They are open, so a flood of scrapes must take little time."""

import asyncio
import gzip
import time
from collections.abc import Callable

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from sentiment_service.api.http_exchange import HttpRequest, Route, packed_answer
from sentiment_service.api.openapi import examples
from sentiment_service.api.openapi.document import text_example
from sentiment_service.observability.metrics import Metrics

router = APIRouter(tags=["operations"], route_class=Route)  # it may have a port of its own

# After the metrics were rendered, they are not rendered again for this many times as long, and for
# no longer than the seconds: a scrape that waits should not look like a service that hangs.
REST, MAX_REST_S = 10, 0.05
LEVEL = 4  # higher ones of gzip take longer and save little


class Scrapes:
    """Renders and compresses the metrics, which takes milliseconds.

    A scrape gets the metrics as they are after it arrived. If scrapes come too often for that, they
    wait, and all that wait share one rendering: so scrapes take a small part of a CPU's time.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._next: dict[str, asyncio.Task[bytes]] = {}  # the renderings, by their content types
        self._rests_until = 0.0  # on the event loop's clock

    async def answer(self, request: HttpRequest) -> Response:
        """The metrics as Prometheus text, or as OpenMetrics if the request asks for it."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        rendering = self._next.get(content_type)
        if rendering is None or rendering.done():
            rendering = asyncio.create_task(self._rendered(encode))
            self._next[content_type] = rendering
        packed = await asyncio.shield(rendering)  # others wait for it, too
        return packed_answer(request, packed, {"content-type": content_type})

    async def _rendered(self, encode: Callable[[CollectorRegistry], bytes]) -> bytes:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(self._rests_until - now())
        await self._metrics.gpus.refresh()
        started = time.thread_time()  # on a busy machine, the time that others take would count
        packed = gzip.compress(encode(self._metrics.registry), LEVEL)
        rest_s = min(REST * (time.thread_time() - started), MAX_REST_S)
        self._rests_until = max(now(), self._rests_until) + rest_s
        return packed


@router.get(
    "/metrics",
    operation_id="getMetrics",
    response_class=PlainTextResponse,
    responses=text_example(examples.METRICS, "text/plain"),
)
async def metrics(request: HttpRequest) -> Response:
    """Metrics as Prometheus text, or as OpenMetrics if the request asks for it."""
    scrapes: Scrapes = request.app.state.scrapes
    return await scrapes.answer(request)
