"""Random scenarios, as strategies of Hypothesis."""

import math
from typing import Any

from hypothesis import strategies as st

from tests.engine.batching.simulation.record import (
    ENOUGH_S,
    KNOWN_AFTER_S,
    Ask,
    Fate,
    Scenario,
    Text,
)

lengths = st.one_of(
    st.lists(st.integers(1, 60), max_size=10),
    st.lists(st.integers(1, 4), max_size=25),
    st.lists(st.sampled_from([9, 10, 11]), max_size=10),
    st.lists(st.integers(1, 60), min_size=1, max_size=1),
)
gaps = st.sampled_from([0.0] * 4 + [1.0, 3.0, 10.0, 50.0])
timeouts = st.sampled_from([1000.0, ENOUGH_S, ENOUGH_S, 300.0, 100.0, 30.0, 5.0, 0.0])
departures = st.sampled_from([math.inf] * 8 + [100.0, 20.0, 1.0, 0.0])
fates: st.SearchStrategy[Fate] = st.sampled_from(["good"] * 12 + ["culprit", "refused"])
outages = st.sampled_from([(0.0, 0.0), (20.0, 90.0)])
one_drain = st.tuples(
    st.sampled_from([500.0, 200.0, 100.0, 60.0, 30.0, 5.0]),
    st.sampled_from([ENOUGH_S, 100.0, 30.0, 10.0, 1.0, 0.0]),
)
early_drain = st.tuples(
    st.sampled_from([30.0, 10.0, 3.0, 1.0]), st.sampled_from([ENOUGH_S, 100.0, 10.0, 1.0, 0.0])
)
drains = st.lists(one_drain, max_size=2)
budgets = st.integers(1, 150) | st.just(150)
limits = st.sampled_from([100_000, 500, 200, 60])

no_hangs = st.just(math.inf)
no_losses: st.SearchStrategy[frozenset[int]] = st.just(frozenset())
endless: st.SearchStrategy[float] = st.just(math.inf)


@st.composite
def scenarios(
    draw: st.DrawFn,
    *,
    lengths: st.SearchStrategy[list[int]] = lengths,
    gaps: st.SearchStrategy[float] = gaps,
    timeouts: st.SearchStrategy[float] = timeouts,
    departures: st.SearchStrategy[float] = departures,
    fates: st.SearchStrategy[Fate] = fates,
    outages: st.SearchStrategy[tuple[float, float]] = outages,
    drains: st.SearchStrategy[list[tuple[float, float]]] = drains,
    budgets: st.SearchStrategy[int] = budgets,
    limits: st.SearchStrategy[int] = limits,
    hangs: st.SearchStrategy[float] = no_hangs,
    losses: st.SearchStrategy[frozenset[int]] = no_losses,
    memories: st.SearchStrategy[float] = endless,
    device_losses: st.SearchStrategy[float] = endless,
) -> Scenario:
    asks = []
    now = 0.0
    visits = st.tuples(gaps, lengths, timeouts, departures)
    for request, visit in enumerate(draw(st.lists(visits, min_size=1, max_size=12))):
        gap, tokens, timeout_s, goes_after_s = visit
        texts = [Text(request, index, length, draw(fates)) for index, length in enumerate(tokens)]
        now += gap
        asks.append(Ask(now, tuple(texts), timeout_s, goes_after_s))
    return Scenario(
        tuple(asks),
        drains=tuple(draw(drains)),
        runners=draw(st.integers(1, 3)),
        max_batch_tokens=draw(budgets),
        max_queue_tokens=draw(limits),
        batch_seconds=draw(st.sampled_from([0.0, 10.0])),
        outage=draw(outages),
        misbehaviour=draw(st.sampled_from(["raise", "raise at once", "exit", "short"])),
        report_raises=draw(st.booleans()),
        hang_s=draw(hangs),
        lost_takes=draw(losses),
        lost_batches=draw(losses),
        memory=draw(memories),
        device_lost_at=draw(device_losses),
        eager=draw(st.booleans()),
        work_first=draw(st.booleans()),
    )


# What makes a scenario patient: nobody gives up.
patient: dict[str, Any] = {"timeouts": st.just(ENOUGH_S), "departures": st.just(math.inf)}
# Runners hang or are lost, while clients have no deadline.
faulty_runners: dict[str, Any] = {
    "timeouts": st.just(math.inf),
    "departures": departures,
    "fates": st.sampled_from([*["good"] * 8, "culprit", "hangs"]),
    "hangs": st.sampled_from([2 * KNOWN_AFTER_S, ENOUGH_S]),
    "losses": st.frozensets(st.integers(0, 20), max_size=8),
    "drains": st.just([]),
}
