"""Dynamic micro-batching: combine many small requests into few large batches for inference.

The items of all requests wait in one fair queue. When a runner thread is free, it forms a batch
from the items that wait at that moment. There is no timer: an idle service sleeps, and under load
batches fill up by themselves. Admission is decided at once. The batcher knows only one thing about
an item: its length in tokens.

The condition's lock protects the queue and the measurements. Requests belong to the event loop.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Generic

from app.engine.batching.batches import (
    Answer,
    Batch,
    BatchObserver,
    BatchReport,
    ComputeTime,
    Item,
    PendingRequest,
    QueuedItem,
    Result,
    infer_each,
    out_of_memory,
    tokens_taken,
)
from app.engine.batching.budget import TokenBudget
from app.engine.batching.fair_queue import Admission, FairQueue
from app.engine.batching.runners import Runner, Runners
from app.errors import (
    DeadlineExceeded,
    DeviceLost,
    InferenceFailed,
    NotReady,
    OutOfMemory,
    ServiceError,
    ShuttingDown,
)

# After this many batches in a row without a single answer, inference counts as failing. One batch
# is not enough: a bad text that comes alone is a batch of one, and must not take the service down.
FAILING_AFTER = 3

# Seconds between two looks at the runners, while requests wait.
WATCH_S = 0.5

logger = logging.getLogger(__name__)


class MicroBatcher(Generic[Item, Result]):
    """Combines the items of concurrent requests into batches and calls ``infer`` on each batch.

    Runner threads call ``infer``, with at most ``budget`` tokens at a time, or with one longer
    item. It returns one result per item, in order. A result that is a ``ServiceError``
    fails only its own item. It may raise any error. ``OutOfMemory`` also lowers the budget, and
    after ``DeviceLost`` no request is admitted any more; ``device_lost`` then says why.

    Create it on the event loop that submits. The runners then wait for batches until ``drain``.
    """

    def __init__(
        self,
        infer: Callable[[Sequence[Item]], Sequence[Result | ServiceError]],
        observer: BatchObserver,
        *,
        runners: int,
        budget: TokenBudget,
        max_queue_tokens: int,
    ) -> None:
        self.device_lost: str | None = None
        self._infer = infer
        self._observer = observer
        self._budget = budget

        self._loop = asyncio.get_running_loop()
        self._requests: set[PendingRequest[Result]] = set()

        self._condition = threading.Condition()
        self._queue: FairQueue[QueuedItem[Item, Result]] = FairQueue()
        self._closed = False
        self._failed_in_a_row = 0
        self._admission = Admission(self._queue, budget=budget, max_queue_tokens=max_queue_tokens)

        self.runners: Runners[Item, Result] = Runners(
            runners,
            serve=self._serve,
            on_failure=self._fail,
            observer=observer,
        )
        self.runners.start()
        self._watching: asyncio.TimerHandle | None = None
        self._watch()

    @property
    def queued_texts(self) -> int:
        """The number of waiting texts. Texts in a running batch do not count."""
        return len(self._queue)

    @property
    def queued_tokens(self) -> int:
        """The number of tokens of the waiting texts, without padding."""
        return self._queue.tokens

    @property
    def queue_wait_s(self) -> float:
        """Seconds that the waiting texts take at the measured speed; 0 before the first batch."""
        per_token = self._admission.seconds_per_token
        return self._queue.tokens * per_token / self.runners.working

    @property
    def failing(self) -> bool:
        """Whether the latest ``FAILING_AFTER`` batches had no answer, or none can be answered."""
        if self.device_lost is not None or self.runners.hopeless:
            return True
        return self._failed_in_a_row >= FAILING_AFTER

    async def submit(
        self, items: Sequence[Item], *, timeout_s: float, tag: object = None
    ) -> Answer[Result]:
        """Infer the items, in batches with the items of other requests.

        Returns within ``timeout_s`` seconds. The reports of the batches that contain these items
        carry the ``tag``. If an admitted item fails, its error stands in its place in the answer:
        ``DeadlineExceeded`` (no result in time), ``InferenceFailed``, ``OutOfMemory``,
        ``ShuttingDown`` or ``NotReady`` (no runner or device was left to compute it). If the caller
        is cancelled, the items that still wait are removed from the queue.

        Raises at once, when the request is not admitted: ``Overloaded``, ``TooManyTexts`` (more
        tokens than one request may queue), ``NotReady`` (all runners hang, or the device is lost)
        or ``ShuttingDown``.
        """
        if not items:
            return Answer([], 0.0, 0.0)
        now = time.monotonic()
        request: PendingRequest[Result] = PendingRequest(
            len(items), self._loop.create_future(), now, tag
        )
        lengths = [*map(len, items)]
        queued = [
            QueuedItem(tokens, now + timeout_s, item, request, index)
            for index, (item, tokens) in enumerate(zip(items, lengths, strict=True))
        ]
        with self._condition:
            self.check_admission(sum(lengths), timeout_s=timeout_s)
            self._queue.add(queued)
            self._condition.notify(len(queued))
        self._requests.add(request)
        self._watch()
        expiry = self._loop.call_later(timeout_s, self._expire, request, queued, timeout_s)
        try:
            await request.done
        except asyncio.CancelledError:
            self._take_back(queued)
            raise
        finally:
            expiry.cancel()
            self._requests.discard(request)
        return request.answer()

    def check_admission(self, tokens: int, *, timeout_s: float) -> None:
        """Raise the error that ``submit`` would raise now for a request of ``tokens`` tokens."""
        if self._closed:
            raise ShuttingDown()
        if self.device_lost is not None:
            raise NotReady(self.device_lost)
        if self.runners.all_stuck:
            raise _not_ready()
        with self._condition:  # reentrant: submit already holds it
            self._admission.check(tokens, runners=self.runners.working, timeout_s=timeout_s)

    async def drain(self, timeout_s: float) -> bool:
        """Admit no more requests, finish the admitted ones, and end the runners.

        Items without a result after ``timeout_s`` seconds fail with ``ShuttingDown``. A runner that
        is still inside ``infer`` then is no longer waited for. May be called again.

        Returns whether every request had its results by then. An idle thread may end later, on a
        machine that has no time for it.
        """
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        await self.runners.join(timeout_s)
        if self._watching is not None:
            self._watching.cancel()
        with self._condition:
            self._queue.clear()
        unfinished = [request for request in self._requests if not request.done.done()]
        for request in unfinished:
            request.fail_rest(ShuttingDown(), time.monotonic())
        return not unfinished

    def _watch(self) -> None:
        if self._watching is None:
            self._watching = self._loop.call_later(WATCH_S, self._look)

    def _look(self) -> None:
        """Look at the runners, until no request waits and no batch is computed."""
        self._watching = None
        if self.runners.look(WATCH_S) or self._requests:
            self._watch()

    def _expire(
        self,
        request: PendingRequest[Result],
        queued: Batch[Item, Result],
        timeout_s: float,
    ) -> None:
        self._take_back(queued)
        request.fail_rest(DeadlineExceeded(f"no result within {timeout_s:.3g} s"), time.monotonic())

    def _take_back(self, queued: Batch[Item, Result]) -> None:
        """Remove the items that still wait from the queue, so that they are never computed."""
        with self._condition:
            self._queue.remove(queued)

    def _serve(self, runner: Runner[Item, Result]) -> None:
        """Compute batch after batch on a runner's thread, until no more batches will come."""
        while self._take_batch(runner):
            self._compute(runner)

    def _take_batch(self, runner: Runner[Item, Result]) -> bool:
        """Wait until the runner has a batch. Returns False when no more batches will come."""
        with self._condition:
            while True:
                # Nothing may fail between the queue and the runner: each item must always be in
                # one of the two.
                idle = sum(other.idle for other in self.runners.all)  # this one included
                runner.batch = self._queue.take_batch(
                    max_tokens=self._budget.tokens,
                    max_padding=self._budget.max_padding,
                    share=self._queue.tokens / idle,
                    now=time.monotonic(),
                )
                if runner.batch:
                    runner.idle = False
                    return True
                if self._closed:
                    return False
                self._condition.wait()

    def _compute(self, runner: Runner[Item, Result]) -> None:
        """Infer the runner's batch and deliver its results."""
        batch = runner.batch
        lengths = [queued.tokens for queued in batch]
        runner.expected_s = sum(lengths) * self._admission.seconds_per_token
        requests = {id(queued.request): queued.request for queued in batch}.values()
        took = ComputeTime(time.monotonic())
        for request in requests:
            request.batches.append(took)
        raised: list[type[BaseException]] = []  # by the whole batch first, then by its parts
        try:
            results = infer_each(
                self._infer,
                [queued.item for queued in batch],
                on_failure=partial(self._on_failure, raised),
            )
        finally:
            took.ended = time.monotonic()
        report = BatchReport(
            texts=len(batch),
            tokens=sum(lengths),
            padded_tokens=tokens_taken(self._budget, lengths),
            inference_seconds=took.ended - took.started,
            failed=sum(isinstance(result, ServiceError) for result in results),
            tags=tuple(request.tag for request in requests if request.tag is not None),
            retried=bool(raised),
            out_of_memory=OutOfMemory in raised,
        )
        self._finish(runner, report)
        try:
            self._observer.batch(report)
        except BaseException:  # even SystemExit: the runner must deliver results and go on
            logger.exception("the report of a batch raised")
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._deliver, batch, results, took.ended)
        runner.batch = ()

    def _on_failure(
        self, raised: list[type[BaseException]], items: Sequence[Item], error: BaseException
    ) -> None:
        """On a runner's thread: ``infer`` raised on a batch or on a part of it."""
        if isinstance(error, DeviceLost):
            with self._condition:
                known, self.device_lost = self.device_lost, str(error)
            if known is None:  # only one runner logs it
                logger.critical("%s; liveness and readiness fail until then", error, exc_info=error)
        elif isinstance(error, OutOfMemory):
            out_of_memory(items, self._budget, error)
        elif not raised:  # one line with a traceback is enough for a batch and its parts
            logger.error("inference raised on a batch of %d", len(items), exc_info=error)
        raised.append(type(error))

    def _finish(self, runner: Runner[Item, Result], report: BatchReport) -> None:
        """Mark the runner as free, and update the measurements with its finished batch."""
        with self._condition:
            runner.idle, self.runners.failures = True, 0
            if report.failed < report.texts:
                self._failed_in_a_row = 0
            else:
                self._failed_in_a_row += 1
            # A batch with retries, or of a runner that hung, says nothing about the normal speed.
            if not (report.failed or report.retried or runner.stuck):
                self._admission.learn(tokens=report.tokens, seconds=report.inference_seconds)

    def _deliver(
        self,
        batch: Batch[Item, Result],
        results: list[Result | ServiceError],
        done_at: float,
    ) -> None:
        """On the event loop: give each request its results."""
        self._observer.lag(time.monotonic() - done_at)
        for queued, result in zip(batch, results, strict=True):
            queued.request.settle(queued.index, result, done_at)

    def _fail(self, batch: Batch[Item, Result]) -> None:
        """On the event loop: fail the items of a batch whose runner hangs or was lost."""
        now = time.monotonic()
        for queued in batch:
            error = InferenceFailed(
                "inference did not end for this text, or for another text in its batch"
            )
            queued.request.settle(queued.index, error, now)
        with self._condition:
            # Wake another runner: the lost one may have received the wake-up for waiting items.
            self._condition.notify()
            waiting = self._queue.clear() if self.runners.hopeless else ()
        for queued in waiting:
            queued.request.settle(queued.index, _not_ready(), now)


def _not_ready() -> NotReady:
    return NotReady("every runner hangs or has failed")
