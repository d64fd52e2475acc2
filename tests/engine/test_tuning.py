"""Self-tuning: what is chosen from the costs, what is measured, and what the cache keeps."""

import json
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from time import sleep
from typing import Any

import onnxruntime
import platformdirs
import pytest
from sentiment_service.engine import host, loading
from sentiment_service.engine.model import device
from sentiment_service.engine.model.device import CPU, CUDA, CudaGpu, CudaState, Device
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.options import EngineConfig
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.engine.tuning import (
    BATCHES,
    CUDA_BATCHES,
    CUDA_MAX_PADDING,
    LEAST_QUEUE_TOKENS,
    TEXT_TOKENS,
    UNKNOWN_SPREAD,
    Cost,
    ServingPlan,
    _key,
    choose,
    measure,
    queue_tokens,
    tune,
)
from sentiment_service.errors import OutOfMemory, UserError
from sentiment_service.settings.settings import Settings
from sentiment_service.workers.worker_process import take_share

from tests.support.tiny_bundle import load, make_bundle

# Two runners answer more, one runner of two threads answers sooner.
TWO_RUNNERS = Cost(2, 1, {1: 0.010, 4: 0.030, 16: 0.100}, alone=0.008)
TWO_THREADS = Cost(1, 2, {1: 0.006, 4: 0.018, 16: 0.062}, alone=0.006)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """A model in a bundle of its own."""
    return load(make_bundle(tmp_path / "tiny"))


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    """A config with nothing set, and with a cache directory that does not exist yet."""
    return Settings(cache_dir=tmp_path / "cache" / "sentiment").engine_config()


def inferring(model: Model, before: Callable[[Model, int], object]) -> None:
    """Call ``before`` with each batch's model and size. Copies with other threads do so, too."""

    class Watched(Model):
        def infer(self, encodings: Sequence[Encoding]) -> Any:
            before(self, len(encodings))
            return super().infer(encodings)

    model.__class__ = Watched


# Only that it is measured matters, and not what is found.
QUICK = partial(measure, seconds=0.0)


@pytest.fixture
def batches(model: Model) -> list[int]:
    """The sizes of the batches that infer gets."""
    seen: list[int] = []
    inferring(model, lambda _, texts: seen.append(texts))
    return seen


def _kept(config: EngineConfig) -> Path:
    assert config.cache_dir is not None
    (file,) = config.cache_dir.glob("tuning-*.json")
    return file


def _costs(config: EngineConfig) -> Any:
    """The costs that were measured for each way to share the CPUs."""
    return json.loads(_kept(config).read_text())


@pytest.mark.parametrize(
    ("target_s", "expected"),
    [
        (0.0, (TWO_RUNNERS, 16)),  # 320 texts a second
        (0.2, (TWO_RUNNERS, 16)),
        (0.199, (TWO_RUNNERS, 4)),  # 267
        (0.059, (TWO_THREADS, 4)),  # 222
        (0.035, (TWO_RUNNERS, 1)),  # 200
        (0.019, (TWO_THREADS, 1)),
        (0.001, (TWO_THREADS, 1)),  # nothing keeps to it: the soonest
    ],
)
def test_the_most_throughput_within_the_target(target_s: float, expected: tuple[Cost, int]) -> None:
    """The latency target covers the wait for the running batch and the text's own batch."""
    assert choose([TWO_THREADS, TWO_RUNNERS], target_s) == expected


def test_batches_are_as_large_as_costs_little() -> None:
    """Larger batches may cost up to three per cent of throughput: smaller differences are noise."""
    flat = Cost(2, 1, {1: 0.010, 4: 0.0345, 8: 0.070, 16: 0.150}, alone=0.01)
    assert choose([flat], 0.0) == (flat, 8)


@pytest.mark.parametrize(
    ("seconds", "spread", "threads"),
    [
        (0.0400, 0.00, 1),  # 200 texts/s each
        (0.0385, 0.00, 1),  # 4 % more: that may be chance
        (0.0360, 0.00, 2),  # 11 % more
        (0.0360, 0.06, 1),  # 11 % more, where either may be 6 % off
        (0.0300, 0.06, 2),  # a third more
    ],
)
def test_one_thread_a_runner_unless_another_way_is_clearly_better(
    seconds: float, spread: float, threads: int
) -> None:
    """If noise may decide, one thread per runner is chosen, since it needs no synchronisation."""
    other = Cost(1, 2, {8: seconds}, alone=0.001, spread=spread)
    last = Cost(2, 1, {8: 0.080}, alone=0.002, spread=spread)
    assert choose([other, last], 0.0)[0].threads == threads


def test_what_is_set_is_not_measured(
    model: Model, config: EngineConfig, batches: list[int]
) -> None:
    """With all three settings set, nothing is measured."""
    as_set = replace(config, runners=3, threads=1, max_batch_tokens=100)
    plan = tune(model, as_set, cpus=2)
    assert plan.summary() == "runners 3 x threads 1, at most 100 tokens a batch, as set"
    assert batches == []
    assert config.cache_dir is not None
    assert not config.cache_dir.exists()


@pytest.mark.parametrize(
    ("field", "value"), [("runners", 1), ("threads", 2), ("max_batch_tokens", 77)]
)
def test_a_single_setting_is_kept_and_the_rest_measured(
    model: Model, config: EngineConfig, batches: list[int], field: str, value: Any
) -> None:
    """A single setting is kept, and the other two are chosen to fit it."""
    plan = tune(model, replace(config, **{field: value}), cpus=2)
    found = {"runners": plan.runners, "threads": plan.threads}
    assert (found | {"max_batch_tokens": plan.budget.tokens})[field] == value
    assert plan.runners * plan.threads == 2
    assert batches
    assert "measured in" in plan.reason


def test_texts_of_any_lengths_fit_together_where_padding_is_not_computed(
    model: Model, config: EngineConfig
) -> None:
    """A flat graph on a GPU computes no padding; of one with padding, a quarter at most is that."""
    model.provider = CUDA
    config = replace(config, runners=1, max_batch_tokens=4096, max_queue_tokens=4096)
    assert tune(model, config, cpus=2).budget.max_padding == CUDA_MAX_PADDING
    model.flat = True
    assert tune(model, config, cpus=2).budget.max_padding is None


def test_loading_the_kernels_of_a_size_does_not_end_the_search(
    model: Model,
) -> None:
    """On a GPU, the first batch of a size takes long, and all sizes are measured all the same."""
    known: set[int] = set()

    class Gpu(Model):
        def infer(self, encodings: Sequence[Encoding]) -> list[Any]:
            sleep(0.002 if len(encodings) in known else 0.3)
            known.add(len(encodings))
            return []

    model.__class__, model.provider = Gpu, CUDA
    (cost,) = measure(model, [(1, 1)])
    assert [*cost.seconds] == [*CUDA_BATCHES]
    assert max(cost.seconds.values()) < 0.1


@pytest.mark.parametrize("provider", [CPU, CUDA])
def test_a_list_that_ended_early_is_kept(
    model: Model,
    config: EngineConfig,
    batches: list[int],
    provider: str,
) -> None:
    """A slow GPU, or one with little memory, never gets to the largest size: not every start."""
    model.provider = provider
    tune(model, config, 2, QUICK)
    batches.clear()
    tune(model, config, cpus=2)
    assert not batches


def test_one_process_measures_a_gpu_and_the_others_read(model: Model, config: EngineConfig) -> None:
    """A second start waits while the first measures, and then takes what that has kept."""
    measuring, go_on = Event(), Event()

    def slow(*_: object) -> list[Cost]:
        measuring.set()
        assert go_on.wait(60)
        return [Cost(2, 1, {1: 0.001}, alone=0.001)]

    model.provider = CUDA
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(tune, model, config, 2, slow)
        assert measuring.wait(60)
        second = pool.submit(tune, model, config, 2, lambda *_: pytest.fail("measured twice"))
        with pytest.raises(TimeoutError):
            second.result(0.3)
        go_on.set()
    assert "measured in" in first.result().reason
    assert "measured earlier" in second.result().reason


def costing(texts_per_second: float) -> Callable[..., list[Cost]]:
    """A measurement that finds this speed."""
    return lambda *_: [Cost(2, 1, {64: 128 / texts_per_second}, alone=0.01)]


def test_a_budget_that_is_set_leaves_a_gpu_its_queue(model: Model, config: EngineConfig) -> None:
    """With ``--max-batch-tokens``, a GPU's queue still holds a second; workers on it share that."""
    model.provider = CUDA
    plan = tune(model, replace(config, max_batch_tokens=4096), 2, costing(9_000))
    assert (plan.budget.tokens, plan.max_queue_tokens) == (4096, 288_000)
    shared = replace(config, max_batch_tokens=4096, gpu_workers=4)
    assert tune(model, shared, 2, costing(9_000)).max_queue_tokens == 288_000 // 4


@pytest.mark.parametrize(
    ("texts_per_second", "memory_gb", "tokens"),
    [(400, 8, 65_536), (36_000, 8, 894_784), (36_000, 64, 1_152_000), (36_000, 1, 111_848)],
    ids=["a CPU", "an H200 in a pod", "an H200", "an H200 with little memory"],
)
def test_the_queue_holds_a_second(texts_per_second: int, memory_gb: int, tokens: int) -> None:
    """By default, a second's work may wait, but at least 65,536 tokens, and within the memory."""
    cost = Cost(2, 1, {64: 128 / texts_per_second}, alone=0.01)
    assert queue_tokens(cost, memory_gb * 2**30) == tokens


def test_workers_share_the_memory_for_queues(model: Model, tmp_path: Path) -> None:
    """The queues of two workers together take no more than that of one process."""
    settings = Settings(cache_dir=tmp_path)
    one, *_ = take_share(settings, 0, 1)
    worker, *_ = take_share(settings, 0, 2)
    whole = tune(model, one.engine_config(), 2, costing(1e9)).max_queue_tokens
    half = tune(model, worker.engine_config(), 2, costing(1e9)).max_queue_tokens
    assert half == max(LEAST_QUEUE_TOKENS, whole // 2)


def test_a_queue_that_is_set_is_kept(
    model: Model, config: EngineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """The setting decides, measured or not; without a measurement, the default is the least.

    Where the longest text of the model does not fit, a warning says so.
    """
    by_hand = replace(config, runners=2, threads=1, max_batch_tokens=99)
    assert tune(model, by_hand, cpus=2).max_queue_tokens == LEAST_QUEUE_TOKENS
    for one in (config, by_hand):
        set_too = replace(one, max_queue_tokens=500)
        assert tune(model, set_too, cpus=2).max_queue_tokens == 500
        longest_fits = replace(one, max_queue_tokens=2 * model.max_tokens)
        tune(model, longest_fits, cpus=2)
        assert caplog.messages == []
        tune(model, replace(one, max_queue_tokens=2 * model.max_tokens - 1), cpus=2)
        assert f"takes texts of up to {model.max_tokens}" in caplog.messages.pop()
        caplog.clear()


def test_another_gpu_is_measured_again(
    model: Model, config: EngineConfig, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured on one GPU, with one limit of memory, is not used on another."""
    model.provider, model.device = CUDA, Device((0,))
    for name, limit in (("L4", ""), ("L4", "8"), ("H100", "8")):
        gpu = CudaGpu(name, 1 << 30, (9, 0))
        monkeypatch.setattr(device, "cuda_state", lambda gpu=gpu: CudaState(gpus=(gpu,)))
        model.provider_options = {"gpu_mem_limit": limit}
        assert tune(model, config, 2, QUICK).runners == 2
        assert batches
        batches.clear()
        tune(model, config, 2, QUICK)
        assert not batches


def test_time_that_others_had_does_not_count(
    model: Model,
) -> None:
    """The cost of a batch on one thread is the thread's CPU time, not the elapsed time."""
    inferring(model, lambda *_: sleep(0.05))
    (cost,) = measure(model, [(1, 1)])
    assert max(cost.seconds.values()) < 0.05


def test_few_rounds_leave_much_in_doubt(
    model: Model, config: EngineConfig, batches: list[int]
) -> None:
    """A slow model is measured once, with as few texts as fit into the time.

    One round shows no spread, so a large spread is assumed, and the rule for noise decides.
    """
    assert tune(model, config, 2, QUICK).budget.tokens == TEXT_TOKENS
    assert {*batches} == {1}
    assert [cost["spread"] for cost in _costs(config)] == [UNKNOWN_SPREAD] * 2


def test_ways_are_measured_in_turns(model: Model) -> None:
    """Each size of each way is measured once per round, so a busy neighbour affects all alike."""
    order: list[tuple[int, int]] = []

    def noted(model: Model, texts: int) -> None:
        order.append((model.threads, texts))
        sleep(0.006)  # so that each batch is computed once

    inferring(model, noted)
    measure(model, [(1, 2), (2, 1)])
    # After the first two of each size: one batch of two threads, two of one.
    rounds = order[2 * 3 * len(BATCHES) :]
    assert [threads for threads, _ in rounds[:2]] == [2, 1]  # a text alone
    assert rounds[2:8] == [(2, 1), (1, 1), (1, 1), (2, 2), (1, 2), (1, 2)]
    assert len(rounds) % (2 + 3 * len(BATCHES)) == 0


def test_sizes_that_do_not_fit_into_the_memory_are_left_out(model: Model) -> None:
    """The service starts on a GPU with too little memory for the largest measured batches."""

    def limited(_: Model, texts: int) -> None:
        if texts > 2:
            raise RuntimeError("CUDA failure 2: out of memory ; GPU=0")

    inferring(model, limited)
    for cost in measure(model, [(1, 2), (2, 1)]):
        assert {*cost.seconds} == {1, 2}


def test_a_failure_while_measuring_is_one_line(
    config: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If inference fails while batches are measured, the start says why, without a traceback."""

    def failing(*_: object) -> ServingPlan:
        raise RuntimeError("CUDA failure 701: too many resources requested for launch ; GPU=0")

    monkeypatch.setattr(loading, "tune", failing)
    with pytest.raises(UserError, match="cannot compute the model: CUDA failure 701"):
        loading.load(make_bundle(tmp_path / "tiny"), config, 2)


def test_a_budget_lowered_for_want_of_memory_is_not_kept(
    model: Model, config: EngineConfig
) -> None:
    """The summary says why the budget is lower; the next start begins with what was measured."""
    plan = tune(model, config, cpus=2)
    start = plan.budget.tokens
    plan.budget.lower([start // 2] * 2, OutOfMemory("out of memory"))
    words = f"at most {start // 2} tokens a batch (lowered from {start}, because"
    assert words in plan.summary()
    assert tune(model, config, cpus=2).budget.tokens == start


def test_no_more_than_two_sessions_are_open_at_once(model: Model) -> None:
    """At most two sessions are open at once, because each holds its own copy of the weights."""
    open_at_once: list[int] = []
    alive: list[Any] = []

    class Counted(Model):
        def with_threads(self, threads: int) -> Model:
            other = super().with_threads(threads)
            if other is not self:
                alive.append(weakref.ref(other))
            open_at_once.append(1 + sum(one() is not None for one in alive))
            return other

    model.__class__ = Counted
    measure(model, [(1, 8), (2, 4), (4, 2), (8, 1)])
    assert len(alive) == 3
    assert max(open_at_once) == 2


def test_the_next_start_reads_what_was_measured(
    model: Model, config: EngineConfig, batches: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """The first start logs one line that names the file; the next one measures and logs nothing.

    The cache keeps the costs, not the choice: another target chooses from the same figures.
    """
    caplog.set_level("INFO")
    first = tune(model, config, cpus=2)
    assert first.budget.tokens in {TEXT_TOKENS * texts for texts in BATCHES}
    [line] = [line for line in caplog.messages if "kept in" in line]
    assert line.endswith(f" s, kept in {_kept(config)}")
    batches.clear()
    caplog.clear()
    again = tune(model, config, cpus=2)
    tune(model, replace(config, target_latency_ms=1), cpus=2)
    assert batches == []
    assert not caplog.messages
    assert "measured earlier" in again.reason
    assert (again.runners, again.threads) == (first.runners, first.threads)
    assert again.budget.tokens == first.budget.tokens


ODD_COSTS: list[object] = [
    [],
    [{"runners": 1}],
    [{"runners": 2, "threads": 1, "seconds": {}, "alone": 1.0}],
    [{"runners": 2, "threads": 1, "seconds": {"1": 0.0}, "alone": 1.0}],
    [{"runners": 0, "threads": 1, "seconds": {"1": 1.0}, "alone": 1.0}],
]


DEEP = pytest.param("[" * 200_000 + "]" * 200_000, id="200,000 levels")


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"key": 1}', "null", DEEP, *ODD_COSTS])
def test_a_damaged_cache_is_measured_anew(
    model: Model, config: EngineConfig, batches: list[int], kept: object
) -> None:
    """A damaged cache is not an error: costs are measured again, and the cache is rewritten."""
    tune(model, config, 2, QUICK)
    cache = _kept(config)
    cache.write_text(kept if isinstance(kept, str) else json.dumps(kept))
    batches.clear()
    tune(model, config, 2, QUICK)
    assert batches
    batches.clear()
    tune(model, config, 2, QUICK)
    assert batches == []


@pytest.mark.parametrize("change", ["quota", "model"])
def test_another_machine_or_model_is_measured_anew(
    model: Model, config: EngineConfig, batches: list[int], change: str
) -> None:
    """Another quota or model is measured again. The key names the CPU and the runtime, too."""
    tune(model, config, 2, QUICK)
    batches.clear()
    if change == "model":
        model.sha256 = "another"
    tune(model, config, 1 if change == "quota" else 2, QUICK)
    assert batches
    key = _key(model, 2, [(1, 2), (2, 1)])
    assert onnxruntime.__version__ in key
    assert host.cpu_name() in key


def test_nothing_is_written_beside_the_bundle(model: Model, config: EngineConfig) -> None:
    """Nothing is written into the bundle, which may be installed, shared or versioned."""
    before = sorted(model.path.rglob("*"))
    tune(model, config, 2, QUICK)
    assert sorted(model.path.rglob("*")) == before
    assert _kept(config).name.startswith("tuning-")


def test_a_cache_that_cannot_be_written_is_done_without(model: Model, tmp_path: Path) -> None:
    """If the cache cannot be written, as in a read-only container, only the figures are lost."""
    file = tmp_path / "file"
    file.write_text("not a directory")
    plan = tune(model, Settings(cache_dir=file / "cache").engine_config(), 2, QUICK)
    assert "measured in" in plan.reason
    assert file.read_text() == "not a directory"


def test_a_cache_that_is_no_file_holds_up_nobody(
    model: Model, config: EngineConfig, batches: list[int]
) -> None:
    """A pipe in place of the cache file is replaced; a directory stays, and nothing is kept."""
    tune(model, config, 2, QUICK)
    cache = _kept(config)
    for make, repaired in ((os.mkfifo, True), (os.mkdir, False)):
        cache.unlink()
        make(cache)
        batches.clear()
        tune(model, config, 2, QUICK)
        assert batches
        assert _kept(config).is_file() == repaired


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"cache_dir": "~/mine"}, "home/mine"),
        ({}, "caches/sentiment-service"),  # of the platform: on Linux, XDG_CACHE_HOME
    ],
)
def test_where_the_cache_is(
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    place: str,
) -> None:
    """In cache_dir, with a tilde for the home directory, or else in the platform's cache.

    An empty SENTIMENT_CACHE_DIR means unset.
    """
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setenv("SENTIMENT_CACHE_DIR", "")
    tune(model, Settings(**settings).engine_config(), 1, QUICK)
    assert list((tmp_path / place).glob("tuning-*.json"))


def test_without_a_home_there_is_no_cache(
    model: Model, batches: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a user without a home directory, nothing is written into the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        platformdirs, "user_cache_path", lambda name, *, appauthor: Path("~/.cache", name)
    )
    before = sorted(tmp_path.rglob("*"))
    tune(model, Settings().engine_config(), 2, QUICK)
    assert sorted(tmp_path.rglob("*")) == before
