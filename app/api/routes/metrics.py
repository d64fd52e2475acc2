"""The metrics of Prometheus. They are open, so a flood of scrapes must take little time."""

import asyncio
import gzip
import time

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import choose_encoder

from app.api.http_exchange import HttpRequest, Route, packed_answer
from app.api.openapi import examples
from app.api.openapi.document import text_example
from app.observability.metrics import Metrics

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
        self._next: asyncio.Task[dict[str, bytes]] | None = None
        self._rests_until = 0.0  # on the event loop's clock

    async def answer(self, request: HttpRequest) -> Response:
        """The metrics as Prometheus text, or as OpenMetrics if the request asks for it."""
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._begun())
        rendered = await asyncio.shield(self._next)  # others wait for it, too
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        if content_type not in rendered:
            # CPU time: on a busy machine, the time that others take would count as well.
            started = time.thread_time()
            rendered[content_type] = gzip.compress(encode(self._metrics.registry), LEVEL)
            rest_s = min(REST * (time.thread_time() - started), MAX_REST_S)
            self._rests_until = asyncio.get_running_loop().time() + rest_s
        return packed_answer(request, rendered[content_type], {"content-type": content_type})

    async def _begun(self) -> dict[str, bytes]:
        """A rendering for each content type, of which there are none yet."""
        await asyncio.sleep(self._rests_until - asyncio.get_running_loop().time())
        await self._metrics.gpus.refresh()
        return {}


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
