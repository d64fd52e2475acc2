"""What holds where runners hang or are lost, memory runs out, or the device is lost."""

import math

from sentiment_service.engine.batching.runners import HOPELESS_AFTER
from sentiment_service.errors import DeviceLost, InferenceFailed, NotReady, OutOfMemory

from tests.engine.batching.simulation.record import (
    HANGS_AFTER_S,
    KNOWN_AFTER_S,
    NEVER,
    Call,
    Done,
    Record,
)

# Where runners hang or are lost


def nobody_is_stranded(record: Record) -> None:
    """A client without a deadline is answered long before a hanging batch returns.

    It waits at most for all texts that are computed, for hanging batches until they are given up,
    and for the pause after each failure.
    """
    texts = [text for batch in record.batches for text in batch.texts]
    hanging = sum(text.fate == "hangs" for text in texts)
    computing_s = sum(
        record.scenario.batch_seconds + 2 * len(call.texts) * max(map(len, call.texts))
        for batch in record.batches
        for call in batch.calls
    )
    longest_s = computing_s + record.losses + (hanging + 1) * KNOWN_AFTER_S
    for visit in record.admitted:
        if visit.answer is not None:
            assert visit.left.time - visit.asked.time <= longest_s


def each_text_is_answered_or_told_why(record: Record) -> None:
    """A text has its result, unless its batch hung or was lost, or no runner was left."""
    for visit in record.admitted:
        if visit.answer is None:
            continue
        for text, result in zip(visit.ask.texts, visit.answer.results, strict=True):
            batch = record.batch_of.get(text)
            if isinstance(result, Done):
                assert result.text == text
                assert batch
                assert not batch.lost
            elif isinstance(result, InferenceFailed):
                assert batch
                took_s = batch.finished.time - batch.started.time
                assert batch.lost or batch.outcomes[text] is None or took_s > HANGS_AFTER_S
            elif isinstance(result, NotReady):
                hung = sum(b.finished.time - b.started.time > HANGS_AFTER_S for b in record.batches)
                runners = record.scenario.runners
                assert batch is None
                assert hung >= runners or record.losses >= HOPELESS_AFTER * runners


def the_failed_go_on(record: Record) -> None:
    """Each failure is reported once, and the number of threads stays the same."""
    assert record.reported == record.faults
    assert record.threads == record.scenario.runners


def the_stuck_are_known(record: Record) -> None:
    """A runner that hangs is reported as stuck; when it returns, it is not any more."""
    assert record.stuck == record.hanging
    assert record.complete == (record.hanging == 0)


# Where memory runs out


def only_what_is_too_long_fails(record: Record) -> None:
    """A text fails for want of memory only if it has more tokens than fit, and failed alone."""
    for batch in record.batches:
        for text, outcome in batch.outcomes.items():
            alone = Call((text,), None, OutOfMemory) in batch.calls
            assert alone == (text.tokens > record.scenario.memory)
            assert (outcome is None) == (alone or Call((text,), None) in batch.calls)
    for visit in record.admitted:
        if visit.answer is not None:
            for text, result in zip(visit.ask.texts, visit.answer.results, strict=True):
                assert text in record.batch_of or not isinstance(result, OutOfMemory)
                assert text.tokens > record.scenario.memory or not isinstance(result, OutOfMemory)


def the_budget_falls_for_good(record: Record) -> None:
    """After memory ran out, no batch is as large; the budget is not lower than that asks for."""
    smallest = math.inf
    for batch in record.batches:
        large = [
            call.padded_tokens
            for other in record.batches
            if other.finished < batch.started
            for call in other.calls
            if call.raised is OutOfMemory and len(call.texts) > 1
        ]
        padded_tokens = len(batch.texts) * max(map(len, batch.texts))
        assert len(batch.texts) == 1 or padded_tokens < min(large, default=math.inf)
        smallest = min([smallest, *large])
        assert batch.report
        ran_out = [call for call in batch.calls if call.raised is OutOfMemory]
        assert batch.report.out_of_memory == bool(ran_out)
    tokens = record.budget.tokens
    assert tokens == record.scenario.max_batch_tokens or 2 * tokens + 1 >= record.scenario.memory


# Where the device is lost


def no_call_follows_a_lost_device(record: Record) -> None:
    """A batch ends with its first call on a lost device; no request is admitted after that."""
    known = min(
        (batch.finished for batch in record.batches if batch.calls[-1].raised is DeviceLost),
        default=NEVER,
    )
    for batch in record.batches:
        assert all(call.raised is not DeviceLost for call in batch.calls[:-1])
    for visit in record.visits:
        if visit.ask.texts and known < visit.asked < record.closed:
            assert isinstance(visit.refusal, NotReady)


def what_the_device_computed_is_kept(record: Record) -> None:
    """A text has its result if it was computed before the loss, otherwise the error says why."""
    for visit in record.admitted:
        assert visit.answer is not None
        for text, result in zip(visit.ask.texts, visit.answer.results, strict=True):
            calls = [call for call in record.batch_of[text].calls if text in call.texts]
            computed = calls[-1].results is not None
            failed_alone = len(calls[-1].texts) == 1 and calls[-1].raised is not DeviceLost
            assert isinstance(result, NotReady) == (not computed and not failed_alone)
