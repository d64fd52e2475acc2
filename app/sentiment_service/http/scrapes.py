"""GET /metrics, which Prometheus asks again and again."""

import asyncio
import gzip
import time
from collections.abc import Callable

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, exposition
from prometheus_client.openmetrics import exposition as openmetrics

from sentiment_service.http.openapi import MODEL, text_example
from sentiment_service.http.routes import HttpRequest, Route, packed_answer
from sentiment_service.observability.metrics import Metrics

EXAMPLE = (
    "# HELP sentiment_model_ready 1 while the model answers.\n"
    "# TYPE sentiment_model_ready gauge\n"
    f'sentiment_model_ready{{model="{MODEL}"}} 1.0\n'
)

router = APIRouter(tags=["operations"], route_class=Route)  # it may have a port of its own

# After the metrics were rendered, they are not rendered again for this many times as long, and for
# no longer than the seconds: a scrape that waits should not look like a service that hangs.
REST, MAX_REST_S = 10, 0.05
LEVEL = 4  # higher ones of gzip take longer and save little
TEXT = "text/plain"
# What a client may choose. Each further form, such as a version that it names, would be rendered
# and kept apart.
FORMS: dict[str, tuple[Callable[[CollectorRegistry], bytes], str]] = {
    TEXT: (exposition.generate_latest, exposition.CONTENT_TYPE_PLAIN_0_0_4),
    "application/openmetrics-text": (openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST),
}


class Scrapes:
    """Renders and compresses the metrics, which takes milliseconds.

    A scrape gets the metrics as they are after it arrived. If scrapes come too often for that, they
    wait, and all that wait share one rendering: so scrapes take a small part of a CPU's time.
    """

    def __init__(self, metrics: Metrics, cpu_time: Callable[[], float] = time.thread_time) -> None:
        self._metrics = metrics
        self._cpu_time = cpu_time
        self._next: dict[str, asyncio.Task[bytes]] = {}  # the latest renderings, by their forms
        self._rests_until = 0.0  # on the event loop's clock

    async def answer(self, request: HttpRequest) -> Response:
        """The metrics in the first of FORMS that the request accepts, or as text."""
        accepted = request.headers.get("accept", "").lower().split(",")
        kinds = (kind.partition(";")[0].strip() for kind in accepted)
        form = next((kind for kind in kinds if kind in FORMS), TEXT)
        rendering = self._next.get(form)
        if rendering is None or rendering.done():
            rendering = self._next[form] = asyncio.create_task(self._rendered(form))
        packed = await asyncio.shield(rendering)  # others wait for it, too
        return packed_answer(request, packed, {"content-type": FORMS[form][1]})

    async def _rendered(self, form: str) -> bytes:
        now = asyncio.get_running_loop().time
        await asyncio.sleep(self._rests_until - now())
        await self._metrics.gpus.refresh()
        started = self._cpu_time()  # on a busy machine, the time that others take would count
        encode, _ = FORMS[form]
        # With the time, gzip would fail on a clock beyond 2106.
        packed = gzip.compress(encode(self._metrics.registry), LEVEL, mtime=0)
        rest_s = min(REST * (self._cpu_time() - started), MAX_REST_S)
        self._rests_until = max(now(), self._rests_until) + rest_s
        return packed


@router.get(
    "/metrics",
    operation_id="getMetrics",
    response_class=PlainTextResponse,
    responses=text_example(EXAMPLE, "text/plain"),
)
async def metrics(request: HttpRequest) -> Response:
    """Metrics as Prometheus text, or as OpenMetrics if the request asks for it."""
    scrapes: Scrapes = request.app.state.scrapes
    return await scrapes.answer(request)
