"""Self-tuning: what is chosen from costs, what is measured, what is kept for the next start."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.bundle import Bundle
from app.model import Encoding, Model
from app.settings import Settings
from app.tuning import CACHE, TEXT_TOKENS, Cost, Plan, choose, tune
from tests.serving import COMMAND, Process
from tests.tiny_bundle import make_bundle

# Two runners answer more, one runner of two threads answers sooner.
TWO_RUNNERS = Cost(2, 1, {1: 0.010, 4: 0.030, 16: 0.100}, alone=0.008)
TWO_THREADS = Cost(1, 2, {1: 0.006, 4: 0.018, 16: 0.062}, alone=0.006)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """A model in a bundle of its own, which may be written to."""
    bundle = Bundle.open(make_bundle(tmp_path / "tiny"))
    return Model.load(bundle, device="cpu", precision="auto", threads=1)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that are inferred."""
    seen: list[int] = []
    infer = Model.infer

    def counted(model: Model, encodings: Sequence[Encoding]) -> Any:
        seen.append(len(encodings))
        return infer(model, encodings)

    monkeypatch.setattr(Model, "infer", counted)
    return seen


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
    """A text waits for a running batch and for its own; both count, and the target binds both."""
    assert choose([TWO_THREADS, TWO_RUNNERS], target_s) == expected


def test_batches_are_as_large_as_costs_little() -> None:
    """Up to three per cent of the throughput: small differences are noise."""
    flat = Cost(2, 1, {1: 0.010, 4: 0.0345, 8: 0.070, 16: 0.150}, alone=0.01)
    assert choose([flat], 0.0) == (flat, 8)


def test_what_is_set_is_not_measured(model: Model, batches: list[int]) -> None:
    """With all three set there is nothing to find out."""
    settings = Settings(runners=3, threads=1, max_batch_tokens=100)
    assert tune(model, settings, cpus=2) == Plan(3, 1, 100, "as set")
    assert batches == []
    assert not (model.path / CACHE).exists()


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"runners": 1}, "runners", 1),
        ({"threads": 2}, "threads", 2),
        ({"max_batch_tokens": 77}, "max_batch_tokens", 77),
    ],
)
def test_a_single_setting_is_kept_and_the_rest_measured(
    model: Model, batches: list[int], settings: dict[str, int], field: str, value: int
) -> None:
    """It narrows what there is to choose from."""
    plan = tune(model, Settings.model_validate(settings), cpus=2)
    assert getattr(plan, field) == value
    assert plan.runners * plan.threads == 2
    assert batches
    assert "measured in" in plan.reason


def test_the_budget_is_one_of_the_measured_batches(model: Model) -> None:
    """In tokens: texts of the measured length."""
    plan = tune(model, Settings(), cpus=2)
    assert plan.max_batch_tokens in {TEXT_TOKENS * texts for texts in (1, 2, 4, 8, 16)}


def test_the_next_start_reads_what_was_measured(model: Model, batches: list[int]) -> None:
    """The costs are kept, not the choice: another target chooses anew from the same figures."""
    first = tune(model, Settings(), cpus=2)
    batches.clear()
    again = tune(model, Settings(), cpus=2)
    tune(model, Settings(target_latency_ms=1), cpus=2)
    assert batches == []
    assert "measured earlier" in again.reason
    assert again == Plan(first.runners, first.threads, first.max_batch_tokens, again.reason)


ODD_COSTS: list[object] = [
    [],
    [{"runners": 1}],
    [{"runners": 2, "threads": 1, "seconds": {}, "alone": 1.0}],
    [{"runners": 2, "threads": 1, "seconds": {"1": 0.0}, "alone": 1.0}],
    [{"runners": 0, "threads": 1, "seconds": {"1": 1.0}, "alone": 1.0}],
]


@pytest.mark.parametrize("kept", ["", "{", "[]", '{"key": 1}', "null", *ODD_COSTS])
def test_a_damaged_cache_is_measured_anew(model: Model, batches: list[int], kept: object) -> None:
    """It is never an error, and the next start has a sound one."""
    cache = model.path / CACHE
    if isinstance(kept, list):  # under the right key
        tune(model, Settings(), cpus=2)
        document = json.loads(cache.read_text())
        cache.write_text(json.dumps(document | {"costs": kept}))
        batches.clear()
    else:
        cache.write_text(str(kept))
    tune(model, Settings(), cpus=2)
    assert batches
    batches.clear()
    tune(model, Settings(), cpus=2)
    assert batches == []


def test_another_quota_or_model_is_measured_anew(model: Model, batches: list[int]) -> None:
    """Figures of another machine would mislead."""
    tune(model, Settings(), cpus=2)
    batches.clear()
    tune(model, Settings(), cpus=1)
    assert batches
    batches.clear()
    model.sha256 = "another"
    tune(model, Settings(), cpus=1)
    assert batches


def test_a_bundle_that_cannot_be_written_is_served(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read-only images are common: the figures are lost with the process, nothing else."""
    model.path = tmp_path / "absent"
    assert "measured in" in tune(model, Settings(), cpus=2).reason
    assert not model.path.exists()


def test_measuring_takes_bounded_time(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow model is measured on the batches that fit into the time, at least on one text."""
    monkeypatch.setattr("app.tuning.MEASURING_SECONDS", 0.0)
    monkeypatch.setattr("app.tuning.LEAST_SECONDS", 0.0)
    assert tune(model, Settings(), cpus=2).max_batch_tokens == TEXT_TOKENS


def test_the_choice_is_explained(tmp_path: Path) -> None:
    """In one line of the log, in /info and in /models; what is set is called so."""
    bundle = make_bundle(tmp_path / "tiny")
    flags = ("--model", str(bundle), "--threads", "1", "--max-batch-tokens", "99")
    with Process(*flags, command=COMMAND) as process:
        assert "tiny: runners 2 x threads 1, at most 99 tokens a batch" in process.first_lines
