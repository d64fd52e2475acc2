"""Dynamic micro-batching: many small requests in, few large batches through inference.

A request's items wait in one fair queue, from which runner threads pull. A batch is formed when
a runner is free, from what waits at that moment: no timer, so an idle service sleeps and a busy
one batches by itself. Admission is decided at once. What items are is not known here: an item
has a length, in tokens.

The queue and the measurements belong to the condition's lock, requests to the event loop.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from app.engine.batching.admission import RETRY_AFTER_S, Admission
from app.engine.batching.budget import TokenBudget
from app.engine.batching.fair_queue import Entry, FairQueue
from app.engine.batching.isolation import infer_each
from app.engine.batching.pending import Answer, Computing, PendingRequest
from app.engine.batching.report import BatchReport
from app.engine.batching.runners import Runner, Runners
from app.errors import DeadlineExceeded, InferenceFailed, NotReady, ServiceError, ShuttingDown

# Batches in a row without one answer before inference counts as failing: a bad text that comes
# alone is a batch of one, and should not take the service down.
FAILING_AFTER = 3

logger = logging.getLogger(__name__)

Item = TypeVar("Item", bound=Sized)
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _Text(Entry, Generic[Item, Result]):
    """One item in the queue, and the place of its result."""

    item: Item
    request: PendingRequest[Result]
    index: int


class MicroBatcher(Generic[Item, Result]):
    """Batches the items of concurrent requests for ``infer``, which runner threads call.

    ``infer`` gets at most ``budget`` padded tokens at a time (or one longer item) and gives a
    result an item, in order; a ``ServiceError`` among them fails its item. ``on_batch``
    is called on a runner's thread after each batch, before its results are delivered; ``on_lag``
    on the event loop, with the seconds for which the results waited for its turn; ``on_loss``
    there, too, whenever a runner's thread was lost and is to be replaced.

    Create it on the event loop that submits. The runners wait from then on, until ``drain``.
    """

    def __init__(
        self,
        infer: Callable[[Sequence[Item]], Sequence[Result | ServiceError]],
        *,
        runners: int,
        budget: TokenBudget,
        max_queue_tokens: int,
        on_batch: Callable[[BatchReport], None],
        on_lag: Callable[[float], None],
        on_loss: Callable[[], None],
    ) -> None:
        self._infer = partial(infer_each, infer)
        self._budget = budget
        self._on_batch = on_batch
        self._on_lag = on_lag

        self._loop = asyncio.get_running_loop()
        self._requests: set[PendingRequest[Result]] = set()

        self._condition = threading.Condition()
        self._queue: FairQueue[_Text[Item, Result]] = FairQueue()
        self._closed = False
        self._failed_in_a_row = 0
        self._admission = Admission(
            runners=lambda: self.runners.working, budget=budget, max_queue_tokens=max_queue_tokens
        )

        self.runners: Runners[_Text[Item, Result]] = Runners(
            runners,
            serve=self._serve,
            expected_s=lambda batch: self._admission.batch_seconds(_tokens(batch)),
            pending=lambda: bool(self._requests),
            on_failure=self._fail,
            on_loss=on_loss,
        )
        self.runners.start()

    @property
    def queued_texts(self) -> int:
        """Texts waiting; those in a running batch wait no more."""
        return len(self._queue)

    @property
    def queued_tokens(self) -> int:
        """Tokens waiting, without padding."""
        return self._queue.tokens

    @property
    def failing(self) -> bool:
        """Whether the latest batches, several in a row, gave not one answer, or did not end."""
        return self._failed_in_a_row >= FAILING_AFTER or self.runners.hopeless

    async def submit(
        self, items: Sequence[Item], *, timeout_s: float, tag: object = None
    ) -> Answer[Result]:
        """Have the items inferred, beside those of other requests.

        The reports of the batches that they are in have the ``tag``. Returns within ``timeout_s``
        seconds. Whatever befalls an item once admitted stands in its place in the answer:
        ``DeadlineExceeded`` where no result came in time, ``InferenceFailed``, ``ShuttingDown``,
        ``NotReady`` where no runner was left to compute it. Cancelled, it takes back the items
        that still wait.

        Raises ``Overloaded``, ``TooManyTexts`` (more tokens than one request may queue),
        ``NotReady`` (all runners hang) or ``ShuttingDown``, at once, when the request is not
        admitted.
        """
        if not items:
            return Answer([], 0.0, 0.0)
        now = time.monotonic()
        request: PendingRequest[Result] = PendingRequest(
            len(items), self._loop.create_future(), now, tag
        )
        texts = [
            _Text(len(item), now + timeout_s, item, request, index)
            for index, item in enumerate(items)
        ]
        tokens = _tokens(texts)
        with self._condition:
            self.check_admission(tokens, timeout_s=timeout_s)
            self._queue.add(texts)
            self._condition.notify(len(texts))
        self._requests.add(request)
        self.runners.watch()
        expiry = self._loop.call_later(timeout_s, self._expire, request, texts, timeout_s)
        try:
            await request.done
        except asyncio.CancelledError:
            self._take_back(texts)
            raise
        finally:
            expiry.cancel()
            self._requests.discard(request)
        return request.answer()

    def check_admission(self, tokens: int, *, timeout_s: float) -> None:
        """Raise what ``submit`` would, at this moment, for a request of that many tokens."""
        if self._closed:
            raise ShuttingDown()
        if self.runners.all_stuck:
            raise _not_ready()
        with self._condition:  # submit has entered it already: it may be entered twice
            self._admission.check(
                tokens,
                queued=self._queue.tokens,
                ahead=self._queue.tokens_before(tokens),
                timeout_s=timeout_s,
            )

    async def drain(self, timeout_s: float) -> bool:
        """Admit nothing more, finish what was admitted, end the runners.

        What is unfinished after ``timeout_s`` seconds fails with ``ShuttingDown``. A runner still
        inside ``infer`` is left to itself then. May be called again.

        Returns whether all runners have ended.
        """
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        ended = await self.runners.join(timeout_s)
        with self._condition:
            self._queue.clear()
        for request in self._requests:
            request.fail_rest(ShuttingDown(), time.monotonic())
        return ended

    def _expire(
        self, request: PendingRequest[Result], texts: list[_Text[Item, Result]], timeout_s: float
    ) -> None:
        self._take_back(texts)
        request.fail_rest(DeadlineExceeded(f"no result within {timeout_s:.3g} s"), time.monotonic())

    def _take_back(self, texts: list[_Text[Item, Result]]) -> None:
        """Have those that still wait never computed."""
        with self._condition:
            self._queue.remove(texts)

    def _serve(self, runner: Runner[_Text[Item, Result]]) -> None:
        """A runner's life: batch after batch."""
        while max_tokens := self._take_batch(runner):
            self._process(runner, max_tokens)

    def _take_batch(self, runner: Runner[_Text[Item, Result]]) -> int | None:
        """Have the runner wait for a batch; its budget, or None when there will be none."""
        with self._condition:
            while True:
                max_tokens = self._budget.next(self._queue.tokens)
                # Nothing may fail between queue and runner: one of them has each text.
                runner.batch = self._queue.take_batch(
                    max_tokens=max_tokens,
                    share=self._queue.tokens / self.runners.idle,
                    now=time.monotonic(),
                )
                if runner.batch:
                    runner.idle = False
                    return max_tokens
                if self._closed:
                    return None
                self._condition.wait()

    def _process(self, runner: Runner[_Text[Item, Result]], max_tokens: int) -> None:
        """Infer the runner's batch and deliver its results."""
        batch = runner.batch
        requests = {id(text.request): text.request for text in batch}.values()
        computing = Computing(time.monotonic())
        for request in requests:
            request.batches.append(computing)
        try:
            results = self._infer([text.item for text in batch])
        finally:
            computing.ended = time.monotonic()
        report = BatchReport(
            texts=len(batch),
            tokens=_tokens(batch),
            padded_tokens=len(batch) * max(text.tokens for text in batch),
            max_tokens=max_tokens,
            inference_seconds=computing.ended - computing.started,
            failed=sum(isinstance(result, ServiceError) for result in results),
            others_waited=len(self._queue) > 0,
            tags=tuple(request.tag for request in requests if request.tag is not None),
        )
        self._finish(runner, report)
        try:
            self._on_batch(report)
        except BaseException:  # even SystemExit: the runner has work to deliver, and more to do
            logger.exception("on_batch raised")
        self.runners.call_on_loop(self._deliver, batch, results, computing.ended)
        runner.batch = ()

    def _finish(self, runner: Runner[_Text[Item, Result]], report: BatchReport) -> None:
        """Learn from a finished batch; its runner is free."""
        with self._condition:
            self.runners.done(runner)
            if report.failed < report.texts:
                self._failed_in_a_row = 0
            else:
                self._failed_in_a_row += 1
            # Neither retries nor a runner that hung tell anything of the speed.
            if not (report.failed or runner.stuck):
                self._admission.learn(tokens=report.tokens, seconds=report.inference_seconds)

    def _deliver(
        self,
        batch: Sequence[_Text[Item, Result]],
        results: list[Result | ServiceError],
        done_at: float,
    ) -> None:
        """On the event loop: give each request its results."""
        self._on_lag(time.monotonic() - done_at)
        for text, result in zip(batch, results, strict=True):
            text.request.settle(text.index, result, done_at)

    def _fail(self, batch: Sequence[_Text[Item, Result]]) -> None:
        """On the event loop: a runner hangs with this batch, or was lost with it."""
        now = time.monotonic()
        for text in batch:
            error = InferenceFailed("inference did not end on this text, or on one beside it")
            text.request.settle(text.index, error, now)
        with self._condition:
            # Those who wait may have been woken by the runner that is lost.
            self._condition.notify()
            waiting = self._queue.clear() if self.runners.hopeless else ()
        for text in waiting:
            text.request.settle(text.index, _not_ready(), now)


def _tokens(texts: Sequence[Entry]) -> int:
    return sum(text.tokens for text in texts)


def _not_ready() -> NotReady:
    return NotReady("every runner hangs or has failed", retry_after_s=RETRY_AFTER_S)
