"""The real MicroBatcher in virtual time: random scenarios are checked against its guarantees.

Each scenario is played once and recorded; the checks read the record.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.batching.simulation import fault_properties as faults
from tests.engine.batching.simulation import properties
from tests.engine.batching.simulation.record import Record, Scenario
from tests.engine.batching.simulation.scenarios import (
    early_drain,
    faulty_runners,
    patient,
    scenarios,
)


@pytest.fixture(autouse=True, scope="module")
def silence() -> Iterator[None]:
    """Turn off the log: hundreds of batches raise errors here on purpose."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


EVERYWHERE = (
    properties.nothing_is_raised_where_nobody_looks,
    properties.each_text_is_computed_once,
    properties.the_budget_is_kept,
)
CHECKS = (
    *EVERYWHERE,
    properties.every_item_gets_its_own_answer,
    properties.submit_returns_the_moment_it_can,
    properties.what_came_in_time_is_kept,
    properties.the_seconds_add_up,
    properties.texts_of_one_length_start_in_turn,
    properties.the_queue_is_bounded,
    properties.nothing_is_computed_in_vain,
    properties.the_wait_is_bounded,
    properties.runners_share_what_waits,
    properties.no_runner_idles_while_a_text_waits,
    properties.the_queue_holds_what_waits,
    properties.only_culprits_fail,
    properties.refusals,
    properties.drain,
    properties.the_reports,
)
CHECKS_OF_RUNNERS = (
    *EVERYWHERE,
    faults.nobody_is_stranded,
    faults.the_failed_go_on,
    faults.the_stuck_are_known,
)


def check_all(scenario: Scenario, checks: Sequence[Callable[[Record], None]] = CHECKS) -> Record:
    record = Record(scenario)
    for check in checks:
        check(record)
    return record


ordinary = settings(deadline=None)


@settings(deadline=None, max_examples=300)
@given(scenarios())
def test_anything(scenario: Scenario) -> None:
    """All checks hold with deadlines, departures, failures, refusals and shutdown at once."""
    check_all(scenario)


@ordinary
@given(scenarios(**patient, drains=st.just([]), outages=st.just((0.0, 0.0))))
def test_patient_clients(scenario: Scenario) -> None:
    """If no client gives up, every admitted text is computed, and its wait is bounded."""
    record = check_all(scenario)
    assert set(record.batch_of) == set(record.visit_of)


@ordinary
@given(
    scenarios(
        **patient,
        lengths=st.sampled_from([[1], [1], [5], [2] * 10, [1, 3] * 5]),
        gaps=st.sampled_from([0.0, 1.0, 2.0, 3.0]),
        fates=st.just("good"),
        budgets=st.integers(1, 10),
        drains=st.just([]),
    )
)
def test_newcomers(scenario: Scenario) -> None:
    """If texts arrive as fast as they are served, neither new texts nor a list are starved."""
    check_all(scenario)


@ordinary
@given(
    scenarios(
        **patient,
        lengths=st.lists(st.integers(1, 4), min_size=1, max_size=20),
        fates=st.sampled_from(["good", "good", "good", "culprit", "refused"]),
        budgets=st.just(150),
    )
)
def test_failures_in_large_batches(scenario: Scenario) -> None:
    """If many texts share a batch and many fail, each gets its own result or error."""
    check_all(scenario)


@ordinary
@given(
    scenarios(
        lengths=st.lists(st.just(5), min_size=1, max_size=4),
        gaps=st.sampled_from([0.0, 0.0, 0.0, 1.0, 10.0]),
        limits=st.sampled_from([39, 40]),  # exactly full, or one too many
        drains=st.just([]),
    )
)
def test_a_crowd_before_a_small_queue(scenario: Scenario) -> None:
    """If too much arrives, the admitted requests fit, and the refused ones did not."""
    check_all(scenario)


@ordinary
@given(scenarios(**patient, drains=st.lists(early_drain, min_size=1, max_size=3)))
def test_shutdown(scenario: Scenario) -> None:
    """Drain ends a busy batcher in time, called once, or again while the first call waits."""
    check_all(scenario)


@settings(deadline=None, max_examples=200)
@given(scenarios(**faulty_runners))
def test_runners_that_hang_or_are_lost(scenario: Scenario) -> None:
    """Whatever happens to the runners, no client without a deadline waits for ever."""
    own = (
        properties.every_item_gets_its_own_answer,
        faults.each_text_is_answered_or_told_why,
    )
    check_all(scenario, (*CHECKS_OF_RUNNERS, *own))


@ordinary
@given(
    scenarios(
        lengths=st.lists(st.integers(1, 20), max_size=20),
        memories=st.sampled_from([5.0, 15.0, 30.0, 60.0]),
        outages=st.just((0.0, 0.0)),
        budgets=st.sampled_from([10, 60, 100, 128]),
    )
)
def test_memory_that_runs_out(scenario: Scenario) -> None:
    """Every text is computed in a batch that fits; only what is too long alone fails."""
    others = {  # they count a batch as one call, or a text that fails as a culprit
        properties.what_came_in_time_is_kept,
        properties.the_seconds_add_up,
        properties.texts_of_one_length_start_in_turn,
        properties.the_wait_is_bounded,
        properties.runners_share_what_waits,
        properties.only_culprits_fail,
        properties.the_reports,
    }
    own = (faults.only_what_is_too_long_fails, faults.the_budget_falls_for_good)
    check_all(scenario, (*(check for check in CHECKS if check not in others), *own))


@ordinary
@given(
    scenarios(
        **patient,
        lengths=st.lists(st.integers(1, 20), max_size=20),
        fates=st.sampled_from([*["good"] * 8, "culprit"]),
        memories=st.sampled_from([math.inf, math.inf, 30.0]),
        device_losses=st.sampled_from([0.0, 20.0, 100.0, 300.0]),
        limits=st.just(100_000),
        drains=st.just([]),
    )
)
def test_a_device_that_is_lost(scenario: Scenario) -> None:
    """Every text gets one result or error, and nothing is tried again on the lost device."""
    checks = (
        properties.nothing_is_raised_where_nobody_looks,
        properties.every_item_gets_its_own_answer,
        properties.the_budget_is_kept,
        properties.no_runner_idles_while_a_text_waits,
        properties.the_queue_holds_what_waits,
        properties.drain,
        faults.no_call_follows_a_lost_device,
        faults.what_the_device_computed_is_kept,
    )
    check_all(scenario, checks)
