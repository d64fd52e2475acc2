"""Dynamic micro-batching: combine many small requests into few large batches for inference.

The items of all requests wait in one fair queue. When a runner thread is free, it forms a batch
from the items that wait at that moment. No timer delays a batch: under load, batches fill up by
themselves. Admission is decided at once. If a batch fails, it is computed again in parts, so that
only bad items fail. The batcher knows only one thing about an item: its length in tokens.

The condition's lock protects the queue and the measurements. Requests belong to the event loop.
"""

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Generic

from sentiment_service.engine.batching.fair_queue import (
    Admission,
    Answer,
    Batch,
    BatchReport,
    FairQueue,
    Item,
    PendingRequest,
    QueuedItem,
    Result,
    TokenBudget,
)
from sentiment_service.engine.batching.runners import BatchObserver, Runner, Runners, Watch
from sentiment_service.errors import (
    DeadlineExceeded,
    DeviceLost,
    InferenceFailed,
    NotReady,
    OutOfMemory,
    Overloaded,
    ServiceError,
    ShuttingDown,
)

# May raise any error. One that it returns in the place of a result fails only that item.
Infer = Callable[[Sequence[Item]], Sequence[Result | ServiceError]]

# After this many batches in a row without a single answer, inference counts as failing. One batch
# is not enough: a bad text that comes alone is a batch of one, and must not take the service down.
FAILING_AFTER = 3

NO_RUNNER = "every runner hangs or has failed"

logger = logging.getLogger(__name__)

_tokens = attrgetter("tokens")


class MicroBatcher(Generic[Item, Result]):
    """Combines the items of concurrent requests into batches and calls ``infer`` on each batch.

    Runner threads call ``infer``, with at most ``budget`` tokens at a time, or with one longer
    item. It returns one result per item, in order. If it raises ``OutOfMemory``, the budget is
    lowered. After ``DeviceLost``, no request is admitted any more.

    Create it on the event loop that submits.
    """

    def __init__(
        self,
        infer: Infer[Item, Result],
        observer: BatchObserver,
        *,
        runners: int,
        budget: TokenBudget,
        max_queue_tokens: int,
        watch: Watch | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.device_lost: str | None = None
        self._infer = infer
        self._observer = observer
        self._budget = budget
        self._now = clock or time.monotonic

        self._loop = asyncio.get_running_loop()
        self._requests: set[PendingRequest] = set()

        self._condition = threading.Condition()
        self.queue = FairQueue()  # anyone may read its counts
        self._closed = False
        self._failed_in_a_row = 0
        self._admission = Admission(self.queue, budget=budget, max_queue_tokens=max_queue_tokens)

        self.runners = Runners(
            runners, serve=self._serve, on_failure=self._fail, observer=observer, watch=watch
        )
        self.runners.start()

    @property
    def queue_wait_s(self) -> float:
        """Seconds that the waiting items take at the measured speed; 0 before the first batch."""
        per_token = self._admission.seconds_per_token
        return self.queue.tokens * per_token / self.runners.working

    @property
    def failing(self) -> bool:
        """Whether the latest ``FAILING_AFTER`` batches had no answer, or none can be answered."""
        if self.device_lost is not None or self.runners.hopeless:
            return True
        return self._failed_in_a_row >= FAILING_AFTER

    async def submit(
        self, items: Sequence[Item], *, timeout_s: float, tag: object = None
    ) -> Answer[Result]:
        """Infer the items within ``timeout_s`` seconds, in batches with the items of other
        requests.

        The reports of the batches that contain these items carry the ``tag``. If an admitted item
        fails, its error stands in its place in the answer. If the caller is cancelled, the items
        that still wait are removed from the queue. A request that is not admitted is refused at
        once, with the error of ``check_admission``.
        """
        if not items:
            return Answer([], 0.0, 0.0)
        now = self._now()
        request = PendingRequest(len(items), self._loop.create_future(), now, tag)
        queued = [
            QueuedItem(len(item), now + timeout_s, item, request, index)
            for index, item in enumerate(items)
        ]
        # Its answer waits for all of them. So they are queued in the order of the best batches.
        queued.sort(key=_tokens, reverse=True)
        with self._condition:
            self.check_admission(sum([one.tokens for one in queued]), timeout_s=timeout_s)
            self.queue.add(queued)
            self._condition.notify(len(queued))
        self._requests.add(request)
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
            raise NotReady(NO_RUNNER)
        with self._condition:  # reentrant: submit already holds it
            self._admission.check(tokens, runners=self.runners.working, timeout_s=timeout_s)

    async def drain(self, timeout_s: float) -> bool:
        """Admit no more requests, finish the admitted ones, and end the runners.

        Items without a result after ``timeout_s`` seconds fail with ``ShuttingDown``; a runner that
        is still inside ``infer`` is not waited for. May be called again. Returns whether every
        request had its results by then.
        """
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        await self.runners.join(timeout_s)
        with self._condition:
            self.queue.clear()
        unfinished = [request for request in self._requests if not request.done.done()]
        for request in unfinished:
            request.fail_rest(ShuttingDown(), self._now())
        return not unfinished

    def _expire(self, request: PendingRequest, queued: Batch, timeout_s: float) -> None:
        self._take_back(queued)
        request.fail_rest(DeadlineExceeded(f"no result within {timeout_s:.3g} s"), self._now())

    def _take_back(self, queued: Batch) -> None:
        with self._condition:
            self.queue.remove(queued)

    def _serve(self, runner: Runner) -> None:
        """Compute batch after batch on a runner's thread, until no more batches will come."""
        while self._take_batch(runner):
            self._compute(runner)

    def _take_batch(self, runner: Runner) -> bool:
        """Wait until the runner has a batch. Returns False when no more batches will come."""
        with self._condition:
            while True:
                # Nothing may fail between the queue and the runner: each item must always be in
                # one of the two.
                idle = sum(other.idle for other in self.runners.all)  # this one included
                runner.batch = self.queue.take_batch(
                    max_tokens=self._budget.tokens,
                    max_padding=self._budget.max_padding,
                    share=self.queue.tokens / idle,
                    now=self._now(),
                )
                if runner.batch:
                    runner.idle = False
                    return True
                if self._closed:
                    return False
                self._condition.wait()

    def _compute(self, runner: Runner) -> None:
        batch = runner.batch
        tokens = sum(queued.tokens for queued in batch)
        watch = self.runners.watch
        runner.expected_s = tokens * self._admission.seconds_per_token
        runner.limit_s = max(watch.stuck_s, watch.stuck_factor * runner.expected_s)
        results, report = compute(self._infer, batch, self._budget, self._now)
        self._finish(runner, report)
        try:
            self._observer.batch(report)
        except BaseException:  # even SystemExit: the runner must deliver results and go on
            logger.exception("the report of a batch raised")
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._deliver, batch, results, report)
        runner.batch = ()

    def _finish(self, runner: Runner, report: BatchReport) -> None:
        """Mark the runner as free, and note how its batch went."""
        for error in report.raised:
            if isinstance(error, DeviceLost):
                self._lose_device(error)
        with self._condition:
            runner.idle, self.runners.failures = True, 0
            some_answered = report.failed < report.items
            self._failed_in_a_row = 0 if some_answered else self._failed_in_a_row + 1
            # A batch with retries, or of a runner that hung, tells nothing of the normal speed, nor
            # does one that would have hung, had the process not stood still.
            stood_still = runner.expected_s > 0 and report.seconds > runner.limit_s
            if not (report.failed or report.raised or runner.stuck or stood_still):
                self._admission.learn(tokens=report.tokens, seconds=report.seconds)

    def _lose_device(self, error: DeviceLost) -> None:
        with self._condition:
            known, self.device_lost = self.device_lost, str(error)
        if known is None:  # only one runner logs it
            logger.critical("%s; liveness and readiness fail until then", error, exc_info=error)

    def _deliver(self, batch: Batch, results: Sequence[Any], report: BatchReport) -> None:
        """On the event loop: give each request its results."""
        self._observer.lag(self._now() - report.ended)
        for queued, result in zip(batch, results, strict=True):
            queued.request.settle(queued.index, result, report.ended, report.started)

    def _fail(self, batch: Batch) -> None:
        """On the event loop: fail the items of a batch whose runner hangs or was lost."""
        now = self._now()
        for queued in batch:
            error = InferenceFailed(
                "inference did not end for this text, or for another text in its batch"
            )
            queued.request.settle(queued.index, error, now)
        with self._condition:
            # Wake another runner: the lost one may have received the wake-up for waiting items.
            self._condition.notify()
            waiting = self.queue.clear() if self.runners.hopeless else ()
        for queued in waiting:
            queued.request.settle(queued.index, NotReady(NO_RUNNER), now)


def compute(
    infer: Infer[Any, Any], batch: Batch, budget: TokenBudget, now: Callable[[], float]
) -> tuple[list[Any], BatchReport]:
    """A result or an error for each item of the batch, and the report of it."""

    def log(error: BaseException) -> None:
        # One line with a traceback is enough for a batch and its parts.
        if not isinstance(error, DeviceLost | OutOfMemory):
            logger.error("inference raised on a batch of %d", len(batch), exc_info=error)

    started = now()
    results, raised = infer_each(infer, [queued.item for queued in batch], budget, log)
    ended = now()
    lengths = [queued.tokens for queued in batch]
    requests = {id(queued.request): queued.request for queued in batch}.values()
    return results, BatchReport(
        items=len(batch),
        tokens=sum(lengths),
        padded_tokens=budget.taken_by(lengths),
        started=started,
        ended=ended,
        failed=sum(isinstance(result, ServiceError) for result in results),
        out_of_memory=any(isinstance(error, OutOfMemory) for error in raised),
        tags=tuple(request.tag for request in requests if request.tag is not None),
        raised=raised,
    )


def infer_each(
    infer: Infer[Item, Result],
    items: Sequence[Item],
    budget: TokenBudget,
    on_first_error: Callable[[BaseException], None] = lambda error: None,
) -> tuple[list[Result | ServiceError], list[BaseException]]:
    """A result or an error for each item, even if ``infer`` raises; and all that it raised.

    If ``infer`` raises on a batch, each half is computed separately, and so on, so that only the
    items that cause the failure fail. After ``OutOfMemory``, the budget is lowered. After
    ``DeviceLost``, no call can succeed. ``on_first_error`` gets the first error while it has its
    traceback.
    """
    results: list[Result | ServiceError] = []
    raised: list[BaseException] = []
    parts = [items]  # the last one is computed next
    while parts:
        part = parts.pop()
        try:
            computed = list(infer(part))
            if len(computed) != len(part):
                raise RuntimeError(f"infer gave {len(computed)} results for {len(part)} items")
            results += computed
        except BaseException as error:
            # SystemExit and MemoryError too: they fail items, not the runner.
            if not raised:
                on_first_error(error)
            raised.append(error)
            if isinstance(error, DeviceLost):
                # One error each: they are raised in different requests.
                results += [NotReady(str(error)) for _ in items[len(results) :]]
                break
            if isinstance(error, OutOfMemory):
                budget.lower([*map(len, part)], error)
            if len(part) > 1:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
            elif isinstance(error, OutOfMemory):
                # Without the traceback, which keeps the batch in memory.
                results.append(OutOfMemory(error.detail))
            else:
                results.append(InferenceFailed("inference failed on this text"))
            # Tracebacks keep what the attempt has allocated, which the next one may need.
            error.__traceback__ = error.__cause__ = error.__context__ = None
    return results, raised


# The shortest and longest wait before a full queue is asked again whether it has room.
MIN_WAIT_S = 0.01
MAX_WAIT_S = 1.0
# Bytes per token of a line, its JSON included. Tweets in English have about four. With longer texts
# or other scripts, groups become a little larger or smaller than they should be.
BYTES_PER_TOKEN = 4

# So many groups fit at the same time, even if all come from one stream: while one group arrives or
# leaves, the others are computed.
LEAST_GROUPS = 4


class StreamGate(Generic[Item, Result]):
    """Groups of lines wait here for room in the batcher's queue, first come, first served.

    ``max_tokens()`` is the number of tokens that all streams together may have in the queue and in
    batches. A group has no deadline: it is admitted when its turn has come, and then computed.
    """

    def __init__(self, batcher: MicroBatcher[Item, Result], max_tokens: Callable[[], int]) -> None:
        self._batcher = batcher
        self._max_tokens = max_tokens
        self._tokens = 0  # of admitted groups
        self._waiting = 0  # number of groups
        self._turn = asyncio.Lock()  # held by the group that came first
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def group_bytes(self) -> int:
        """The size in bytes of the next group, so that all waiting groups and some more fit."""
        return self._max_tokens() * BYTES_PER_TOKEN // (self._waiting + LEAST_GROUPS)

    async def submit(
        self, items: Sequence[Item], *, tag: object = None, admitted: asyncio.Event
    ) -> Answer[Result]:
        """Wait for the items' turn, then submit them. ``admitted`` is set in between."""
        tokens = sum(map(len, items))
        self._waiting += 1
        try:
            async with self._turn:
                while wait_s := self._wait_s(tokens):
                    self._changed.clear()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait_s):
                            await self._changed.wait()
        finally:
            self._waiting -= 1
        # There is still room: no other task has run since the check.
        self._tokens += tokens
        admitted.set()
        try:
            return await self._batcher.submit(items, timeout_s=math.inf, tag=tag)
        finally:
            self._tokens -= tokens
            self._changed.set()

    def close(self) -> None:
        """Admit no more groups. Waiting groups fail with ``ShuttingDown`` at once."""
        self._closed = True
        self._changed.set()

    def _wait_s(self, tokens: int) -> float:
        if self._closed:
            raise ShuttingDown()
        if self._tokens and self._tokens + tokens > self._max_tokens():
            return MAX_WAIT_S
        try:
            self._batcher.check_admission(tokens, timeout_s=math.inf)
        except Overloaded as error:
            return min(max(error.retry_after_s or MAX_WAIT_S, MIN_WAIT_S), MAX_WAIT_S)
        return 0.0
