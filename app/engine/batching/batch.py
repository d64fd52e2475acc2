"""A batch: the rows that a runner computes, and the texts that wait for them."""

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeVar

from app.engine.batching.fair_queue import Entry
from app.engine.batching.inference import BatchReport, Computed
from app.engine.batching.pending import Computing, PendingRequest
from app.errors import OutOfMemory, ServiceError

Item = TypeVar("Item", bound=Sized)
Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Text(Entry, Generic[Item, Result]):
    """One item in the queue. ``index`` is the place of its result in the request."""

    item: Item
    request: PendingRequest[Result]
    index: int


# Equal texts. The first is computed for all of them.
Row = list[Text[Item, Result]]
Rows = Sequence[Row[Item, Result]]


def begin(rows: Rows[Item, Result], computing: Computing) -> list[Item]:
    """Tell the requests that a batch of these rows is computed; returns the items to compute."""
    for request in _requests(rows):
        request.batches.append(computing)
    return [row[0].item for row in rows]


def report_of(
    rows: Rows[Item, Result],
    computed: Computed[Result],
    computing: Computing,
    *,
    max_tokens: int,
    others_waited: bool,
) -> BatchReport:
    """The report of the batch, whose budget was ``max_tokens``."""
    lengths = [row[0].tokens for row in rows]
    return BatchReport(
        texts=len(rows),
        tokens=sum(lengths),
        padded_tokens=len(rows) * max(lengths),
        max_tokens=max_tokens,
        inference_seconds=computing.ended - computing.started,
        failed=sum(isinstance(result, ServiceError) for result in computed.results),
        others_waited=others_waited,
        tags=tuple(request.tag for request in _requests(rows) if request.tag is not None),
        shared=sum(map(len, rows)) - len(rows),
        retried=bool(computed.raised),
        out_of_memory=OutOfMemory in computed.raised,
    )


def settle(
    rows: Rows[Item, Result], results: Iterable[Result | ServiceError], done_at: float
) -> None:
    """On the event loop: give each request its results, one for each row."""
    for row, result in zip(rows, results, strict=True):
        for text in row:
            text.request.settle(text.index, result, done_at)


def tokens_of(rows: Rows[Item, Result]) -> int:
    """The number of tokens that are computed, without padding."""
    return sum(row[0].tokens for row in rows)


def _requests(rows: Rows[Item, Result]) -> Iterable[PendingRequest[Result]]:
    """The requests that have texts in these rows, each once."""
    return {id(text.request): text.request for text in chain.from_iterable(rows)}.values()
