"""The classifier, called directly: what a request gets, where it is tokenised, when it ends."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sentiment_service.engine.classifier import INLINE_CHARS, Classification, Classifier
from sentiment_service.engine.options import TextOptions
from sentiment_service.engine.text.input_tokenizer import InputTokenizer
from sentiment_service.engine.text.steps import STEP_CHARS
from sentiment_service.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    Overloaded,
    ServiceError,
    ShuttingDown,
    TooManyTexts,
)

from tests.support.batching import until
from tests.support.engine import classifying, label_or_code, soon
from tests.support.serving import Gate

LONG = "love " * (INLINE_CHARS // 5 + 1)


@pytest.fixture
def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The thread and the number of texts of each call of the tokenizer."""
    calls: list[tuple[str, int]] = []
    encode_texts = InputTokenizer.encode_texts

    def noted(self: InputTokenizer, texts: Sequence[Any], *options: Any, **others: Any) -> Any:
        calls.append((threading.current_thread().name, len(texts)))
        return encode_texts(self, texts, *options, **others)

    monkeypatch.setattr(InputTokenizer, "encode_texts", noted)
    return calls


async def _ask(
    classifier: Classifier, *texts: str | ServiceError, **options: Any
) -> Classification:
    return await classifier.classify(texts, TextOptions(**options), deadline=soon())


async def test_a_bad_text_fails_alone_and_in_its_place(bundle: Path) -> None:
    """Outcomes come in the order of the texts, with the time of the three stages."""
    async with classifying(bundle) as (classifier, _):
        done = await _ask(classifier, "love", "", "worst nan", "worst")
        found = [label_or_code(outcome) for outcome in done.outcomes]
        assert found == ["positive", "empty_text", "inference_failed", "negative"]
        assert done.model is classifier.model
        assert list(done.stages) == ["tokenize", "queue", "inference"]


async def test_a_text_that_could_not_be_read_keeps_its_error(bundle: Path) -> None:
    """It stays in its place among the texts, short or long, and whatever the options are."""
    unread = InvalidRequest("line 2 is not UTF-8")
    for options in ({}, {"split": "sentences"}, {"overflow": "window"}):
        for text in ("love", LONG):
            async with classifying(bundle, cache_mb=1) as (classifier, _):
                texts: list[str | ServiceError] = [unread, text, unread, "worst", unread]
                done = await _ask(classifier, *texts, **options)
                found = [label_or_code(outcome) for outcome in done.outcomes]
                assert [done.outcomes[n] for n in (0, 2, 4)] == [unread] * 3
                assert [found[n] for n in (1, 3)] == ["positive", "negative"]
                assert (await _ask(classifier, unread)).outcomes == [unread]


async def test_windows_and_sentences_are_texts_of_the_request(bundle: Path) -> None:
    """A long text in windows has one prediction; each sentence of a text has one of its own."""
    async with classifying(bundle) as (classifier, _):
        done = await _ask(classifier, "love " * 40, overflow="window")
        assert [outcome["windows"] for outcome in done.outcomes] == [4]  # type: ignore[index]
        done = await _ask(classifier, "I love it. The worst day.", split="sentences")
        (outcome,) = done.outcomes
        assert not isinstance(outcome, ServiceError)
        labels = [sentence.get("label") for sentence in outcome["sentences"]]
        assert labels == ["positive", "negative"]


async def test_only_short_requests_are_tokenised_on_the_event_loop(
    bundle: Path, tokenised: list[tuple[str, int]]
) -> None:
    """A long text, many texts and any text for sentences go to the step thread."""
    async with classifying(bundle) as (classifier, _):
        loop = threading.current_thread().name
        for texts, options, thread in (
            (["love"], {}, loop),
            ([LONG], {}, "tokenizer"),
            (["love"] * 100, {}, "tokenizer"),
            (["love"], {"split": "sentences"}, "tokenizer"),
        ):
            tokenised.clear()
            await _ask(classifier, *texts, **options)
            assert {name for name, _ in tokenised} == {thread}, options


async def test_a_request_beyond_its_share_is_refused_while_it_is_tokenised(
    bundle: Path, tokenised: list[tuple[str, int]]
) -> None:
    """The texts after the one that is too much are not tokenised."""
    texts = ["love " * (STEP_CHARS // 10)] * 40  # 16 tokens each
    async with classifying(bundle, max_queue_tokens=200) as (classifier, observer):
        assert classifier.request_tokens == 100
        with pytest.raises(TooManyTexts, match="100 tokens"):
            await _ask(classifier, *texts)
        assert sum(count for _, count in tokenised) < len(texts) / 2
        assert observer.batches == []


async def test_what_waits_at_the_stream_gate_is_not_refused(bundle: Path, gate: Gate) -> None:
    """With ``admitted``, texts wait where others are refused; then they are admitted."""
    async with classifying(bundle, max_queue_tokens=200) as (classifier, _):
        gate.close()
        texts = ["love it"] * 24
        others = [asyncio.create_task(_ask(classifier, *texts))]
        await until(gate.reached.is_set)
        others += [asyncio.create_task(_ask(classifier, *texts)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await _ask(classifier, *texts)
        admitted = asyncio.Event()
        waiting = asyncio.create_task(
            classifier.classify(texts, deadline=soon(), admitted=admitted)
        )
        await asyncio.sleep(0.05)
        assert not admitted.is_set()
        gate.open.set()
        done = await waiting
        assert admitted.is_set()
        assert [label_or_code(outcome) for outcome in done.outcomes] == ["positive"] * 24
        answers = await asyncio.gather(*others)
        assert [len(answer.outcomes) for answer in answers] == [24] * 3


async def test_a_deadline_that_has_passed_costs_no_work(
    bundle: Path, tokenised: list[tuple[str, int]]
) -> None:
    """Nothing is tokenised or computed."""
    async with classifying(bundle) as (classifier, observer):
        with pytest.raises(DeadlineExceeded):
            await classifier.classify(["love", "worst"], deadline=soon(-1))
        assert (tokenised, observer.batches) == ([], [])


async def test_repeated_texts_come_from_the_cache(bundle: Path) -> None:
    """They are the same to the last bit, take no time in queue or batch, and are not computed."""
    async with classifying(bundle, cache_mb=1) as (classifier, observer):
        first = await _ask(classifier, "love", "worst")
        again = await _ask(classifier, "worst", "love")
        both = await _ask(classifier, "love", "love worst")
        assert again.outcomes == first.outcomes[::-1]
        assert both.outcomes[0] == first.outcomes[0]
        assert observer.lookups == [(0, 2), (2, 0), (1, 1)]
        assert sum(observer.batches) == 3
        assert (again.stages["queue"], again.stages["inference"]) == (0.0, 0.0)
        assert classifier._cache is not None
        assert observer.gauges.cache_bytes() == classifier._cache.size > 0


async def test_only_a_service_that_is_ready_admits(bundle: Path) -> None:
    """Before the start and after the stop of the service, the error says which."""
    async with classifying(bundle) as (classifier, observer):
        lifecycle = classifier._lifecycle
        lifecycle.stop()
        with pytest.raises(ShuttingDown):
            await _ask(classifier, "love")
        assert observer.gauges.model_ready() == 0
        lifecycle.stopped()
        lifecycle.restart()
        with pytest.raises(NotReady):
            await _ask(classifier, "love")
        lifecycle.started()
        assert observer.gauges.model_ready() == 1
        await _ask(classifier, "love")


async def test_retiring_waits_for_the_requests_in_progress(bundle: Path, gate: Gate) -> None:
    """They are answered, later ones are refused, and no thread of a runner is left."""
    async with classifying(bundle) as (classifier, _):
        gate.close()
        asked = asyncio.create_task(_ask(classifier, "love"))
        await until(gate.reached.is_set)
        retiring = asyncio.create_task(classifier.retire(30))
        await asyncio.sleep(0)
        assert not retiring.done()
        gate.open.set()
        assert [label_or_code(outcome) for outcome in (await asked).outcomes] == ["positive"]
        assert await retiring
        assert not classifier.computing
        with pytest.raises(ShuttingDown):
            classifier.check_admission(timeout_s=1)
        with pytest.raises(ShuttingDown):
            await _ask(classifier, "love")


async def test_retiring_ends_with_its_time(bundle: Path, gate: Gate) -> None:
    """A request that is still computed then gets an error, and the caller learns of it."""
    async with classifying(bundle) as (classifier, _):
        gate.close()
        asked = asyncio.create_task(_ask(classifier, "love"))
        await until(gate.reached.is_set)
        assert not await classifier.retire(0)
        assert classifier.computing
        (outcome,) = (await asked).outcomes
        assert label_or_code(outcome) == "shutting_down"
        gate.open.set()
        await until(lambda: not classifier.computing)
