"""The registry of models, called directly: names, reloads and their end, without a server."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest
from sentiment_service.engine.classifier import Classifier
from sentiment_service.engine.health import Lifecycle
from sentiment_service.engine.loading import load_again, load_all
from sentiment_service.engine.model.bundle import MANIFEST, sha256
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.model_registry import ModelRegistry
from sentiment_service.engine.step_thread import StepThread
from sentiment_service.errors import (
    DeviceLost,
    InvalidBundle,
    ModelNotFound,
    NoMemory,
    NotReady,
    OutOfMemory,
    ServiceError,
    ShuttingDown,
)

from tests.support.batching import until
from tests.support.engine import Recorder, config_of, soon
from tests.support.reloads import release
from tests.support.serving import Gate
from tests.support.tiny_bundle import make_bundle, write_manifest


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle that the test may change."""
    return make_bundle(tmp_path / "tiny")


@asynccontextmanager
async def _registry(
    *bundles: Path, load: Callable[..., Any] = load_again, **changes: Any
) -> AsyncIterator[ModelRegistry]:
    """A registry of these bundles' models, which answer. It ends with the test.

    Reloads take the steps of ``load``.
    """
    config = config_of(bundles[0], model=bundles, **changes)
    lifecycle, worker = Lifecycle(drain_s=30.0), StepThread("tokenizer")

    def classifier_of(model: Model, plan: Any) -> Classifier:
        return Classifier(model, plan, config, Recorder(), step_thread=worker, lifecycle=lifecycle)

    models = ModelRegistry(config, lifecycle, 2, classifier_of, load)
    models.start(load_all(bundles, config, 2))
    lifecycle.started()
    try:
        yield models
    finally:
        await models.end()
        worker.close()


async def _revision(models: ModelRegistry, name: str | None = None) -> str | None:
    """The revision of the model that answers a text."""
    done = await models.classifier(name).classify(["love"], deadline=soon())
    assert not isinstance(done.outcomes[0], ServiceError)
    return done.model.revision


async def test_a_request_goes_to_the_named_model_or_to_the_first(bundle: Path) -> None:
    """An unknown name is refused, and the error lists the names that are served."""
    other = make_bundle(bundle.parent / "other", name="other")
    async with _registry(bundle, other) as models:
        assert models.classifier(None) is models.classifier("tiny")
        assert models.classifier("other").model.name == "other"
        with pytest.raises(ModelNotFound, match="tiny, other"):
            models.classifier("none")
        with pytest.raises(ModelNotFound):
            await models.reload("none")
        tiny, second = (sha256(path / MANIFEST)[:12] for path in (bundle, other))
        assert models.summary() == (
            f"tiny (fp32, CPUExecutionProvider, digest {tiny}), "
            f"other (fp32, CPUExecutionProvider, digest {second})"
        )


async def test_without_models_the_error_says_why(bundle: Path) -> None:
    """Before the start, the service is starting; after its end, it is shutting down."""
    config = config_of(bundle)
    lifecycle = Lifecycle(1.0)
    models = ModelRegistry(config, lifecycle, 2, lambda model, plan: pytest.fail("not loaded"))
    with pytest.raises(NotReady):
        models.classifier(None)
    async with _registry(bundle) as models:
        await models.end()
        with pytest.raises(ShuttingDown):
            models.classifier(None)
        with pytest.raises(ShuttingDown):
            await models.check_ready()


async def test_a_reload_answers_with_the_new_content(bundle: Path) -> None:
    """The old model's runners end."""
    async with _registry(bundle) as models:
        old = models.classifier(None)
        release(bundle, "fedcba9")
        assert await _revision(models) == "0123abc"
        await models.reload("tiny")
        assert await _revision(models) == "fedcba9"
        assert not old.computing
        with pytest.raises(ShuttingDown):
            old.check_admission(timeout_s=1)


async def test_the_old_model_finishes_what_it_has_begun(bundle: Path, gate: Gate) -> None:
    """New requests go to the new model meanwhile."""
    async with _registry(bundle) as models:
        release(bundle, "fedcba9")
        async with models.replacement("tiny") as use:
            old = models.classifier(None)
            gate.close()
            begun = asyncio.create_task(_revision(models))
            await until(gate.reached.is_set)
            switching = asyncio.create_task(use())
            await asyncio.sleep(0)
            assert models.classifier(None) is not old
            assert not switching.done()
            gate.open.set()
            await switching
        assert await begun == "0123abc"
        assert await _revision(models) == "fedcba9"


async def test_a_dropped_model_never_answers_and_lets_the_next_reload_begin(bundle: Path) -> None:
    """A reload waits for the one before it, so that at most two versions are in memory."""
    async with _registry(bundle) as models:
        release(bundle, "fedcba9")
        async with models.replacement("tiny"):
            waiting = asyncio.create_task(models.reload("tiny"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            assert not models.loading
        assert await _revision(models) == "0123abc"
        await waiting
        assert await _revision(models) == "fedcba9"


def _other_name(bundle: Path) -> None:
    write_manifest(bundle, name="other")


def _damage(bundle: Path) -> None:
    (bundle / "onnx/model.onnx").write_bytes(b"damaged")


@pytest.mark.parametrize("change", [_other_name, _damage, shutil.rmtree])
async def test_content_that_cannot_be_served_changes_nothing(bundle: Path, change: Any) -> None:
    """Another model's name, damage or no bundle: the old model stays, and can be reloaded later."""
    async with _registry(bundle) as models:
        old = models.classifier(None)
        change(bundle)
        with pytest.raises(InvalidBundle):
            await models.reload("tiny")
        assert models.classifier(None) is old
        assert await _revision(models) == "0123abc"
        shutil.rmtree(bundle, ignore_errors=True)
        make_bundle(bundle)
        release(bundle, "fedcba9")
        await models.reload("tiny")
        assert await _revision(models) == "fedcba9"


@pytest.mark.parametrize(
    ("fault", "error"), [(NoMemory("full"), OutOfMemory), (DeviceLost("gone"), NotReady)]
)
async def test_a_device_that_cannot_hold_both_models_keeps_the_old_one(
    bundle: Path, fault: Exception, error: type[ServiceError]
) -> None:
    """Neither a lack of memory nor a lost device during the load takes the old model away."""

    def load(*_: Any) -> Any:
        yield
        raise fault

    async with _registry(bundle, load=load) as models:
        with pytest.raises(error):
            await models.reload("tiny")
        assert await _revision(models) == "0123abc"


async def test_no_model_is_loaded_for_a_service_that_stops(bundle: Path) -> None:
    """A reload that is asked for then is refused, and the models drain."""
    loads: list[object] = []
    async with _registry(bundle, load=lambda *_: loads.append(_)) as models:
        models._lifecycle.stop()
        with pytest.raises(ShuttingDown):
            await models.reload("tiny")
        assert not loads
        assert await models.drain(models._lifecycle.stop_by)


async def test_draining_ends_with_its_time(bundle: Path, gate: Gate) -> None:
    """What is not finished by then is known: also that a thread still computes."""
    async with _registry(bundle) as models:
        gate.close()
        begun = asyncio.create_task(models.classifier(None).classify(["love"], deadline=soon()))
        await until(gate.reached.is_set)
        assert not await models.drain(0.0)
        assert models._lifecycle.computing
        (outcome,) = (await begun).outcomes
        assert isinstance(outcome, ShuttingDown)
        gate.open.set()


async def test_work_is_admitted_while_any_model_has_room(bundle: Path) -> None:
    """The refusal of one model is none, and not counted, while another admits, whatever the order.

    When all refuse, one is counted.
    """
    other = make_bundle(bundle.parent / "other", name="other")
    for admits in ("tiny", "other"):
        async with _registry(bundle, other) as models:
            refuses = models.classifier("other" if admits == "tiny" else "tiny")
            await refuses.retire(0)
            models.check_admission(timeout_s=1)
            observers = [cast(Recorder, one.observer) for one in models.classifiers.values()]
            assert [observer.failures for observer in observers] == [[], []]
            await models.classifier(admits).retire(0)
            with pytest.raises(ShuttingDown):
                models.check_admission(timeout_s=1)
            assert [*chain(*(one.failures for one in observers))] == [(ShuttingDown, 0)]


async def test_one_model_that_cannot_answer_makes_the_service_unready(
    bundle: Path, gate: Gate
) -> None:
    """It is live while a model fails, and ready again when the failing one answers a trial."""
    async with _registry(bundle) as models:
        gate.fails = True
        for _ in range(3):
            await models.classifier(None).classify(["love"], deadline=soon())
        assert not models.good
        models.check_live()
        with pytest.raises(NotReady, match="keeps failing"):
            await models.check_ready()
        gate.fails = False
        await models.check_ready()
        assert models.good
        models._lifecycle.failure = "a reason"
        with pytest.raises(NotReady, match="a reason"):
            models.check_live()
