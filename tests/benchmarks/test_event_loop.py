"""The benchmark of the event loop: its seams, its timers and that it runs."""

import asyncio
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from app.engine.model.bundle import EMBEDDED_BUNDLE
from benchmarks.event_loop import seams
from benchmarks.event_loop.parts import REST, by_part
from benchmarks.event_loop.seams import PARTS, SEAMS, find
from benchmarks.event_loop.slices import Load, Plan
from benchmarks.event_loop.timers import Timers, read
from benchmarks.event_loop.totals import beside_bare, beside_other_tree
from benchmarks.subject import Subject
from benchmarks.tables import Row
from tests.support.serving import ROOT


@pytest.fixture
def plan() -> Plan:
    """A very short measurement."""
    subject = Subject("embedded", EMBEDDED_BUNDLE, "int8", count=8, seconds=1.0, connections=1)
    return Plan(subject, rounds=1, seconds=0.05, loads=[Load(2, 1), Load(1, 2)])


@pytest.mark.parametrize(("module", "name", "part"), SEAMS)
def test_each_seam_exists(module: str, name: str, part: str) -> None:
    """If a function of the table moves, this test names it."""
    find(module, name)
    assert part in PARTS


def test_a_seam_is_replaced_wherever_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that import a function by name call the timed one, too."""
    body, classify = (import_module(f"app.api.{name}") for name in ("body", "routes.classify"))
    original = body.read_body
    loaded = [module for name, module in sys.modules.items() if name.startswith("app.")]
    for module in loaded:
        if vars(module).get("read_body") is original:
            monkeypatch.setattr(module, "read_body", original)  # so that it is restored
    monkeypatch.setattr(seams, "SEAMS", [("app.api.body", "read_body", "body")])
    seams.replace_all(lambda function, part: lambda: (function, part))
    assert body.read_body is classify.read_body
    assert body.read_body() == (original, "body")


@pytest.fixture
def work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Timers, Callable[[int], None], Path]:
    """Timers without a cost of their own, a function that uses CPU time, and the file."""
    now = 0

    def use(nanoseconds: int) -> None:
        nonlocal now
        now += nanoseconds

    made = Timers(tmp_path / "parts", ["a", "b"])
    made._call = made._step = (0, 0)
    monkeypatch.setattr("time.thread_time_ns", lambda: now)
    return made, use, tmp_path / "parts"


Work = tuple[Timers, Callable[[int], None], Path]


def test_time_in_an_inner_part_does_not_count_for_the_outer_one(work: Work) -> None:
    """Each nanosecond counts once, also when the inner function raises an error."""
    made, use, file = work

    def fail() -> None:
        use(5)
        raise ValueError("as planned")

    inner = made.timed(fail, "b")

    def outer() -> None:
        use(1)
        with pytest.raises(ValueError, match="as planned"):
            inner()
        use(2)

    use(100)  # in no part
    made.timed(outer, "a")()
    assert list(read(file)) == [3, 5, 0]


def test_the_timers_cost_is_taken_off(work: Work) -> None:
    """What a timer costs inside and outside is counted for the timers instead."""
    made, use, file = work
    made._call = (10, 20)
    inner = made.timed(lambda: use(100), "b")
    made.timed(lambda: inner() or use(100), "a")()
    assert list(read(file)) == [100 - 20 - 10, 100 - 10, 2 * (10 + 20)]


def test_time_in_which_a_coroutine_waits_does_not_count(work: Work) -> None:
    """Other tasks run meanwhile. Its result and its errors arrive as without timers."""
    made, use, file = work

    async def wait(seconds: float) -> str:
        use(1)
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            use(30)
            raise
        use(2)
        return "done"

    timed = made.timed(wait, "a")

    async def others() -> str:
        waiting = asyncio.create_task(timed(0.01))
        cancelled = asyncio.create_task(timed(60))
        await asyncio.sleep(0)
        use(1_000)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        result: str = await waiting
        return result

    assert asyncio.run(others()) == "done"
    assert list(read(file)) == [1 + 2 + 1 + 30, 0, 0]


def test_the_totals_are_measured(plan: Plan) -> None:
    """There is a row for each load and server, and the bare route is compared with itself."""
    rows = list(beside_bare(plan))
    assert len(rows) == 2 * 6
    assert all(row["CPU µs a request"] > 0 and row["texts/s"] > 0 for row in rows)
    assert {row["÷ bare FastAPI"] for row in rows if "FastAPI" in row["server"]} == {1.0}


def test_another_tree_is_compared(plan: Plan, tmp_path: Path) -> None:
    """The service of a directory runs its own modules. The tree need not have this benchmark."""
    shutil.copytree(ROOT / "app", tmp_path / "app")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    mark = tmp_path / "imported"
    (tmp_path / "app" / "__init__.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    rows = list(beside_other_tree(plan, str(tmp_path)))
    assert len(rows) == 2 * 4
    assert {row["÷ other tree"] for row in rows if "other" in row["server"]} == {1.0}
    assert mark.exists()


def test_the_parts_add_up(plan: Plan) -> None:
    """Every part of the service's path takes time, and the rest is what is in no part."""
    found: dict[str, list[Row]] = {}
    for row in by_part(plan):
        found.setdefault(f"{row['server']} {row['connections']}", []).append(row)
    assert len(found) == 2 * 2
    for rows in found.values():
        parts = {row["part"]: row["CPU µs a request"] for row in rows}
        assert all(parts[part] > 0 for part in (*PARTS, REST))
        summed = sum(parts[part] for part in (*PARTS, REST))
        assert summed == pytest.approx(parts["sum of the parts"])
