"""Classifiers and their registry, called directly: what no test of a server can see."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sentiment_service.engine import model_registry
from sentiment_service.engine.classifier import (
    INLINE_CHARS,
    Classification,
    Classifier,
    Gauge,
)
from sentiment_service.engine.health import Lifecycle
from sentiment_service.engine.host import NICE
from sentiment_service.engine.loading import load_again, load_all
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.model_registry import ModelRegistry
from sentiment_service.engine.options import TextOptions
from sentiment_service.engine.shadow import ShadowObserver
from sentiment_service.engine.step_thread import StepThread
from sentiment_service.engine.text.input_tokenizer import InputTokenizer
from sentiment_service.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ServiceError,
    ShuttingDown,
)
from sentiment_service.settings.settings import Settings

from tests.conftest import SET_BY_HAND
from tests.support.batching import PATIENCE_S, Hooks
from tests.support.reloads import release
from tests.support.tiny_bundle import make_bundle

LONG = "love " * (INLINE_CHARS // 5 + 1)


class Nobody(Hooks):
    """An ``Observer`` that keeps nothing."""

    def watch(self, gauges: Mapping[str, Gauge]) -> None: ...

    def tag(self) -> object: ...

    def answered(self, done: object, texts: object) -> None: ...

    def failure(self, error: BaseException, texts: int) -> None: ...

    def cache_lookup(self, hits: int, misses: int) -> None: ...


@asynccontextmanager
async def _registry(*bundles: Path, **changes: Any) -> AsyncIterator[ModelRegistry]:
    """A registry of these bundles' models, which answer. It ends with the test.

    ``changes`` are settings.
    """
    config = Settings(**{"model": bundles, **SET_BY_HAND, **changes}).engine_config()
    lifecycle, thread = Lifecycle(drain_s=30.0), StepThread("tokenizer")

    def classifier_of(model: Model, plan: Any) -> Classifier:
        return Classifier(model, plan, config, Nobody(), step_thread=thread, lifecycle=lifecycle)

    def no_candidate(model: Model, digest: str) -> ShadowObserver:
        pytest.fail(f"a candidate is tried beside {model.name}")

    models = ModelRegistry(config, lifecycle, 2, classifier_of, no_candidate)
    models.start(load_all(bundles, config, 2))
    lifecycle.started()
    try:
        yield models
    finally:
        await models.end()
        thread.close()


async def _ask(
    models: ModelRegistry, *texts: str | ServiceError, seconds: Any = PATIENCE_S, **options: Any
) -> Classification:
    deadline = asyncio.get_running_loop().time() + seconds
    classifier = models.classifiers.of(None)
    return await classifier.classify(texts, TextOptions(**options), deadline=deadline)


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has no priority of its own")
async def test_a_reload_leaves_the_cpu_to_requests(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its model is loaded on a thread that is nicer than the event loop."""
    nices: list[int] = []

    def noted(*arguments: Any) -> Any:
        loaded = yield from load_again(*arguments)
        nices.append(os.getpriority(os.PRIO_PROCESS, 0))
        return loaded

    monkeypatch.setattr(model_registry, "load_again", noted)
    async with _registry(bundle) as models:
        await models.reload("tiny")
    assert nices == [min(os.getpriority(os.PRIO_PROCESS, 0) + NICE, 19)]


@pytest.fixture
def tokenised_on(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The thread of each call of the tokenizer."""
    threads: list[str] = []
    encode_texts = InputTokenizer.encode_texts

    def noted(self: InputTokenizer, texts: Sequence[Any], *options: Any, **others: Any) -> Any:
        threads.append(threading.current_thread().name)
        return encode_texts(self, texts, *options, **others)

    monkeypatch.setattr(InputTokenizer, "encode_texts", noted)
    return threads


async def test_a_text_that_could_not_be_read_keeps_its_error(bundle: Path) -> None:
    """It stays in its place among the texts, short or long, and whatever the options are."""
    unread = InvalidRequest("line 2 is not UTF-8")
    async with _registry(bundle, cache_mb=1) as models:
        for options in ({}, {"split": "sentences"}, {"overflow": "window"}):
            for text in ("love", LONG):
                texts: list[str | ServiceError] = [unread, text, unread, "worst", unread]
                found = (await _ask(models, *texts, **options)).outcomes
                assert [found[n] for n in (0, 2, 4)] == [unread] * 3
                assert [found[n]["label"] for n in (1, 3)] == ["positive", "negative"]  # type: ignore[index]
                assert (await _ask(models, unread)).outcomes == [unread]


async def test_only_short_requests_are_tokenised_on_the_event_loop(
    bundle: Path, tokenised_on: list[str]
) -> None:
    """A long text, many texts and any text for sentences go to the step thread."""
    async with _registry(bundle) as models:
        loop = threading.current_thread().name
        for texts, options, thread in (
            (["love"], {}, loop),
            ([LONG], {}, "tokenizer"),
            (["love"] * 100, {}, "tokenizer"),
            (["love"], {"split": "sentences"}, "tokenizer"),
        ):
            tokenised_on.clear()
            await _ask(models, *texts, **options)
            assert {*tokenised_on} == {thread}, options


async def test_a_deadline_that_has_passed_costs_no_work(
    bundle: Path, tokenised_on: list[str]
) -> None:
    """Nothing is tokenised, and so nothing computed."""
    async with _registry(bundle) as models:
        tokenised_on.clear()
        with pytest.raises(DeadlineExceeded):
            await _ask(models, "love", "worst", seconds=-1)
        assert tokenised_on == []


async def test_a_dropped_model_never_answers_and_lets_the_next_reload_begin(tmp_path: Path) -> None:
    """A reload waits for the one before it, so that at most two versions are in memory."""
    bundle = make_bundle(tmp_path / "tiny")
    async with _registry(bundle) as models:
        release(bundle, "fedcba9")
        async with models.replacement("tiny"):
            waiting = asyncio.create_task(models.reload("tiny"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            assert not models.loading
        assert (await _ask(models, "love")).model.revision == "0123abc"
        await waiting
        assert (await _ask(models, "love")).model.revision == "fedcba9"


async def test_no_model_is_loaded_for_a_service_that_stops(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reload that is asked for then is refused, and the models drain."""
    loads: list[object] = []
    monkeypatch.setattr(model_registry, "load_again", lambda *_: loads.append(_))
    async with _registry(bundle) as models:
        models._lifecycle.stop()
        with pytest.raises(ShuttingDown):
            await models.reload("tiny")
        assert not loads
        assert await models.drain(models._lifecycle.stop_by)


@pytest.mark.parametrize("admits", ["tiny", "other"])
async def test_work_is_admitted_while_any_model_has_room(
    bundle: Path, tmp_path: Path, admits: str
) -> None:
    """The refusal of one model is none while another admits, whatever the order.

    A request whose path names a model asks only this one.
    """
    async with _registry(bundle, make_bundle(tmp_path / "other", name="other")) as models:
        refuses = models.classifiers.of("other" if admits == "tiny" else "tiny")
        await refuses.retire(0)
        for name in (None, "unknown", admits):
            models.check_admission(name, timeout_s=1)
        with pytest.raises(ShuttingDown):
            models.check_admission(refuses.model.name, timeout_s=1)
        await models.classifiers.of(admits).retire(0)
        with pytest.raises(ShuttingDown):
            models.check_admission(None, timeout_s=1)
