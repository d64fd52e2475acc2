"""Runs async tests, and holds inference up."""

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from sentiment_service.engine.model.model import Model

from tests.support.batching import PATIENCE_S
from tests.support.serving import Gate


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters

    async def bounded() -> None:
        async with asyncio.timeout(2 * PATIENCE_S):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})

    asyncio.run(bounded())
    return True


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the test session's exports, for ``checkpoints.exported``."""
    return tmp_path_factory.getbasetemp()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Inference goes through a gate, without a server; it opens again when the test ends."""
    gate = Gate()
    gate.open.set()
    monkeypatch.setattr(Model, "infer", lambda model, encodings: gate.infer(model, encodings))
    yield gate
    gate.open.set()
