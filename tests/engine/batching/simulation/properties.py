"""What holds in every run. Each check reads a record and states one property."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from sentiment_service.engine.batching.batcher import FAILING_AFTER
from sentiment_service.engine.batching.fair_queue import (
    CAUTION,
    LOOK_AHEAD,
    REQUEST_SHARE,
    SPEED_DECAY,
    Answer,
    BatchReport,
)
from sentiment_service.errors import (
    RETRY_AFTER_S,
    DeadlineExceeded,
    InferenceFailed,
    Overloaded,
    ShuttingDown,
    TooManyTexts,
)

from tests.engine.batching.simulation.record import Batch, Call, Done, Moment, Record

# In seconds that were computed here in another way than there.
ROUNDING_S = 1e-6


def every_item_gets_its_own_answer(record: Record) -> None:
    """An admitted request whose client stays gets one result or error per item, in order."""
    for visit in record.admitted:
        if visit.answer is None:
            assert visit.left.time == visit.ask.at + visit.ask.goes_after_s
            continue
        assert len(visit.answer.results) == len(visit.ask.texts)
        for text, result in zip(visit.ask.texts, visit.answer.results, strict=True):
            if isinstance(result, Done):
                assert text.fate != "culprit"
                assert result.text == text


def submit_returns_the_moment_it_can(record: Record) -> None:
    """Submit returns exactly at the first of: last result, deadline, or the end of drain."""
    for visit in record.admitted:
        finished = max(
            record.batch_of[text].finished.time if text in record.batch_of else math.inf
            for text in visit.ask.texts
        )
        returns = min(finished, visit.deadline, record.gave_up.time)
        if visit.answer is None:
            assert visit.left.time <= returns
        else:
            assert visit.left.time == returns


def what_came_in_time_is_kept(record: Record) -> None:
    """A result in time is in the answer; other items get the error that says why they ended."""
    for visit in record.admitted:
        if visit.answer is None:
            continue
        ends = {DeadlineExceeded: visit.deadline, ShuttingDown: record.gave_up.time}
        errors = tuple(error for error, time in ends.items() if time == visit.left.time)
        for text, result in zip(visit.ask.texts, visit.answer.results, strict=True):
            batch = record.batch_of.get(text)
            came_at = batch.finished.time if batch else math.inf
            if batch and came_at <= visit.left.time:
                outcome = batch.outcomes[text]
                kept = result is outcome or (
                    outcome is None and isinstance(result, InferenceFailed)
                )
                assert kept or (came_at == visit.left.time and isinstance(result, errors))
            else:
                assert isinstance(result, errors)


def the_seconds_add_up(record: Record) -> None:
    """Inference time is that of the batches that gave results in time; the rest is queue."""
    for visit in record.admitted:
        if visit.answer is None:
            continue
        left = visit.left.time
        came = [
            record.batch_of[text]
            for text, result in zip(visit.ask.texts, visit.answer.results, strict=True)
            if text in record.batch_of and not isinstance(result, DeadlineExceeded | ShuttingDown)
        ]
        spans = [
            (batch.started.time, batch.finished.time)
            for batch in came
            if batch.finished.time <= left and not batch.lost
        ]
        moments = sorted({moment for span in spans for moment in span})
        computed = sum(
            until - since
            for since, until in pairwise(moments)
            if any(started <= since and until <= ended for started, ended in spans)
        )
        assert visit.answer.inference_seconds == pytest.approx(computed)
        waited = left - visit.asked.time - computed
        assert visit.answer.queue_seconds == pytest.approx(waited)


def each_text_is_computed_once(record: Record) -> None:
    """No text is in two batches; only the retries of a failed batch compute it again."""
    computed = [text for batch in record.batches for text in batch.texts]
    assert len(computed) == len(set(computed))
    for batch in record.batches:
        given = [text for call in batch.calls for text in call.texts]
        kept = [text for call in batch.calls if call.results for text in call.texts]
        assert set(given) == set(batch.texts)
        assert len(kept) == len(set(kept))


def texts_of_one_length_start_in_turn(record: Record) -> None:
    """Texts of equal length start in order: within a request, and first texts across requests."""
    started = {text: place for place, text in enumerate(record.batch_of)}
    for visit in record.admitted:
        for tokens in range(1, 61):
            starts = [
                started[text]
                for text in visit.ask.texts
                if text.tokens == tokens and text in started
            ]
            assert starts == sorted(starts)
    firsts = [visit.ask.turns[0] for visit in record.admitted]
    for tokens in range(1, 61):
        starts = [started[text] for text in firsts if text.tokens == tokens and text in started]
        assert starts == sorted(starts)


def the_budget_is_kept(record: Record) -> None:
    """No call of infer exceeds the budget of padded tokens, except for a single long text."""
    for batch in record.batches:
        for call in batch.calls:
            padded_tokens = len(call.texts) * max(map(len, call.texts))
            assert len(call.texts) == 1 or padded_tokens <= record.scenario.max_batch_tokens


def the_queue_is_bounded(record: Record) -> None:
    """No request is admitted beyond the queue's limit, or beyond its own share of the queue."""
    limit = record.scenario.max_queue_tokens
    for visit in record.admitted:
        least, _ = record.waiting_tokens(visit.asked)
        assert least + visit.ask.tokens <= limit
        assert visit.ask.tokens <= limit * REQUEST_SHARE
    for pause in record.pauses:
        assert pause.queued_tokens <= limit


def nothing_is_computed_in_vain(record: Record) -> None:
    """No batch starts with a text that has expired or was given up by its client or by drain."""
    for batch in record.batches:
        assert batch.started.order < record.gave_up.order
        for text in batch.texts:
            visit = record.visit_of[text]
            assert batch.started.time < visit.deadline
            assert batch.started.order < visit.left.order
            assert batch.started.time <= visit.ask.at + visit.ask.goes_after_s


def the_wait_is_bounded(record: Record) -> None:
    """While a text waits, the leaders of other requests have a bounded number of tokens.

    Virtual time V is the end of some past leader. That leader had the earliest start of all waiting
    texts, so no waiting text starts before V - (longest leader so far). If ``ahead`` tokens of its
    own list come before a text, it starts at V + ahead. Until its batch, only earlier turns lead.

    The texts of one request follow each other in virtual time. Texts of an earlier request start
    between these two points, and the last may end later, by at most its length. Texts of a later
    request start at V or after, and strictly before V + ahead. A leader moves virtual time to its
    end, so every later text starts after it. However many requests come one after the other, their
    leaders except the last fit into ``ahead``. So a list is not starved, and no later request leads
    before a request's first text.
    """
    for visit in record.admitted:
        lag = max((b.leader.tokens for b in record.batches if b.started < visit.asked), default=0)
        ahead = 0
        for text in visit.ask.turns:
            start, end = record.waits[text]
            earlier: dict[int, int] = {}
            later: list[tuple[Batch, int]] = []  # with the virtual time it moved on at the least
            for batch in record.batches:
                if not start < batch.started.order < end or batch.started.time >= visit.deadline:
                    continue
                other = record.visit_of[batch.leader]
                if other.asked <= visit.asked:
                    tokens = earlier.get(other.asked.order, 0) + batch.leader.tokens
                    earlier[other.asked.order] = tokens
                    longest = max(map(len, other.ask.texts))
                    assert tokens <= (ahead if other is visit else lag + ahead + longest)
                else:
                    moved = max(
                        (
                            moved + past.leader.tokens
                            for past, moved in later
                            if past.started < other.asked or past.leader in other.ask.texts
                        ),
                        default=0,
                    )
                    assert moved < ahead
                    later.append((batch, moved))
            ahead += text.tokens


def runners_share_what_waits(record: Record) -> None:
    """A batch takes its runner's share of the queue, or all that fits, and no more.

    Texts as long as the batch's longest add no padding. Only the budget or the share excludes them,
    as long as the batcher looks at all waiting texts.
    """
    for batch in record.batches:
        busy = sum(other.started < batch.started < other.finished for other in record.batches)
        idle = record.scenario.runners - busy
        least, most = record.waiting_tokens(batch.started)
        tokens = [text.tokens for text in batch.texts]
        assert len(tokens) == 1 or sum(tokens[:-1]) < (most + sum(tokens)) / idle
        full = (len(tokens) + 1) * max(tokens) > record.scenario.max_batch_tokens
        seen = most + sum(tokens) <= LOOK_AHEAD * record.scenario.max_batch_tokens
        if seen and not full and sum(tokens) < (least + sum(tokens)) / idle:
            left = [
                text
                for text in record.waiting(batch.started)
                if record.visit_of[text].deadline > batch.started.time
            ]
            assert max(tokens) not in map(len, left)


def no_runner_idles_while_a_text_waits(record: Record) -> None:
    """Whenever time passes while texts are in the queue, every runner is at work."""
    for pause in record.pauses:
        assert not (pause.resting_runners and pause.queued_items)


def the_queue_holds_what_waits(record: Record) -> None:
    """Whenever time passes, the queue counts exactly the texts with a client but no batch."""
    for pause in record.pauses:
        waiting = record.waiting(pause.at)
        assert (pause.queued_items, pause.queued_tokens) == (len(waiting), sum(map(len, waiting)))


def only_culprits_fail(record: Record) -> None:
    """A text fails only if it failed alone; it spoils no other text of its batch."""
    for batch in record.batches:
        assert len(batch.calls) <= 2 * len(batch.texts) - 1
        for text, outcome in batch.outcomes.items():
            if outcome is None:
                assert Call((text,), None) in batch.calls
                assert text.fate == "culprit" or record.scenario.outage != (0.0, 0.0)
            else:
                assert text.fate != "culprit"


def refusals(record: Record) -> None:
    """A request that is not admitted is refused at once, and the stated reason is true."""
    scenario = record.scenario
    most = int(scenario.max_queue_tokens * REQUEST_SHARE)
    for visit in record.visits:
        if not visit.ask.texts:
            assert visit.answer == Answer([], 0.0, 0.0)
            assert visit.left.time == visit.asked.time
            continue
        refusal, tokens = visit.refusal, visit.ask.tokens
        assert isinstance(refusal, ShuttingDown) == (visit.asked > record.closed)
        if isinstance(refusal, ShuttingDown):
            assert refusal.retry_after_s == RETRY_AFTER_S
        else:
            assert isinstance(refusal, TooManyTexts) == (tokens > most)
        if refusal is not None:
            assert visit.left.time == visit.asked.time
        if not isinstance(refusal, Overloaded):
            continue
        least, queued = record.waiting_tokens(visit.asked)
        pace = measured_pace(record, visit.asked) / scenario.runners
        assert refusal.retry_after_s is not None
        assert refusal.retry_after_s > 0
        if refusal.rejection == "queue_full":
            excess = queued + tokens - scenario.max_queue_tokens
            assert excess > 0
            if pace:
                assert refusal.retry_after_s <= excess * pace + ROUNDING_S
            else:
                assert refusal.retry_after_s == RETRY_AFTER_S
        else:
            most_s = (2 * queued + tokens) * pace + longest_batch_s(record, visit.asked)
            most_s *= CAUTION
            assert refusal.retry_after_s <= most_s - visit.ask.timeout_s + ROUNDING_S
            assert least + tokens <= scenario.max_queue_tokens


def longest_batch_s(record: Record, at: Moment) -> float:
    """The seconds of the longest batch until then."""
    ended = [batch for batch in record.batches if batch.finished < at]
    return max((b.finished.time - b.started.time for b in ended), default=0.0)


def measured_pace(record: Record, at: Moment) -> float:
    """Seconds per token of one runner, from the batches without a failure until then."""
    tokens = seconds = 0.0
    for batch in sorted(record.batches, key=lambda batch: batch.finished):
        failed = len(batch.calls) > 1 or any(
            not isinstance(r, Done) for r in batch.outcomes.values()
        )
        if batch.finished < at and not failed:
            tokens = SPEED_DECAY * tokens + sum(map(len, batch.texts))
            seconds = SPEED_DECAY * seconds + batch.finished.time - batch.started.time
    return seconds / tokens if tokens else 0.0


def drain(record: Record) -> None:
    """Drain returns the moment the last runner has ended, or when its time is over.

    It is incomplete only if a request was still waiting then.
    """
    busy_until = max((batch.finished.time for batch in record.batches), default=0.0)
    for drain in record.drains:
        idle_at = max(drain.began.time, record.closed.time, busy_until)
        assert drain.ended.time == min(idle_at, drain.began.time + drain.timeout_s)
        waiting = [visit for visit in record.admitted if visit.asked < drain.ended < visit.left]
        assert drain.complete or waiting
        assert drain.complete or drain.ended.time == drain.began.time + drain.timeout_s
    assert record.drains[-1].complete


def the_reports(record: Record) -> None:
    """Each batch is reported once, correctly; three in a row without an answer mean failing."""
    fruitless = 0
    for batch in sorted(record.batches, key=lambda batch: batch.finished):
        outcomes = batch.outcomes.values()
        failed = sum(not isinstance(outcome, Done) for outcome in outcomes)
        assert batch.report is not None
        assert replace(batch.report, raised=[], out_of_memory=False) == BatchReport(
            items=len(batch.texts),
            tokens=sum(map(len, batch.texts)),
            padded_tokens=len(batch.texts) * max(map(len, batch.texts)),
            started=batch.started.time,
            ended=batch.finished.time,
            failed=failed,
        )
        assert bool(batch.report.raised) == any(call.results is None for call in batch.calls)
        fruitless = fruitless + 1 if failed == len(batch.texts) else 0
        assert batch.failing == (fruitless >= FAILING_AFTER)


def nothing_is_raised_where_nobody_looks(record: Record) -> None:
    """No runner ends with an error, and no callback of the event loop raises."""
    assert record.simulation.errors == []
