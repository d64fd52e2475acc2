"""Async tests, a tiny bundle, the application within its lifespan, and a gate before inference."""

import asyncio
import gc
import inspect
import os
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import httpcore2
import hypothesis
import pytest
from fastapi.testclient import TestClient
from sentiment_service.engine.model.model import Model
from sentiment_service.main import create_app
from sentiment_service.settings.settings import Settings

from tests.support.batching import PATIENCE_S
from tests.support.raw_http import port_of
from tests.support.serving import Gate, Process, listening
from tests.support.tiny_bundle import make_bundle

# Where this is set, each of the hundreds of processes that tests start would compile all modules
# again, which takes as long as half of its start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# No test cuts the power; on a busy disk, each of the thousands of waits takes long.
os.fsync = lambda fd: None

# To read the certificates of all authorities takes 20 ms, and each client of httpx2 does it again:
# also those that tests make at each look at what they wait for.
httpcore2.default_ssl_context = cache(httpcore2.default_ssl_context)

# So that nothing is measured.
SET_BY_HAND: dict[str, Any] = {"runners": 2, "threads": 1, "max_batch_tokens": 512}
FLAGS = [
    part
    for name, value in SET_BY_HAND.items()
    for part in (f"--{name.replace('_', '-')}", str(value))
]

# No test may depend on who else uses the CPU.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

# The files that take longest, in this order. They begin first, so that the processes of `make test`
# end at about the same time.
LONGEST = (
    "graph/test_graphs_of_architectures.py",
    "server/test_shutdown.py",
    "routes/test_page.py",
    "cli/test_exported_models.py",
    "model_export/test_distil.py",
    "checkpoint/test_hub.py",
    "workers/test_supervisor.py",
    "cli/test_bench.py",
    "routes/test_page_files.py",
    "project/test_readme.py",
    "workers/test_workers.py",
    "request/test_key_files.py",
    "files/test_classify_files.py",
    "grpc_api/test_hostile_clients.py",
    "deploy/test_chart_values.py",
    "model_export/test_finetune.py",
    "server/test_reload.py",
    "server/test_shadow.py",
    "server/test_connections.py",
    "openapi/test_openapi.py",
    "checks/test_soak.py",
    "observability/test_logs.py",
    "model/test_every_cpu.py",
    "project/test_packaging.py",
    "recorded/test_recorded_answers.py",
    "model_export/test_export.py",
    "model_export/test_known_checkpoints.py",
    "model_export/test_onnx_sources.py",
    "files/test_tables.py",
    "batching/test_batcher_simulation.py",
    "faults/test_machine_faults.py",
    "checkpoint/test_architectures.py",
    "observability/test_traces.py",
)

Serve = Callable[..., TestClient]
Listen = Callable[..., int]
Start = Callable[..., Process]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two processes for each CPU, because tests wait for servers and timers; at most four."""
    return min(2 * len(os.sched_getaffinity(0)), 4)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files of tests by how long they take, as far as that is known."""

    def place(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((n for n, name in enumerate(LONGEST) if path.endswith(name)), len(LONGEST))

    items.sort(key=place)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What modules load stays, so the garbage collector does not look at it, now or later.

    A collection of PyTorch's and transformers' objects takes 0.4 s, and some tests ask for dozens.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


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


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is measured is kept for the tests alone; processes inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny bundle; not to be changed."""
    return make_bundle(tmp_path_factory.mktemp("bundles") / "tiny")


@pytest.fixture(scope="session")
def url(bundle: Path) -> Iterator[str]:
    """The URL of a server of the tiny model, for all tests that only ask it."""
    with Process("--model", str(bundle), *FLAGS) as process:
        yield process.url


def served(*flags: str, embedded: bool = False, **options: Any) -> Any:
    """A fixture: a server of the tiny or the embedded model, with these flags, for one module."""

    @pytest.fixture(scope="module")
    def process(bundle: Path) -> Iterator[Process]:
        model = () if embedded else ("--model", str(bundle))
        with Process(*model, *FLAGS, *flags, **options) as process:
            yield process

    return process


@pytest.fixture
def serve(bundle: Path) -> Iterator[Serve]:
    """Start the application with these settings; it ends with the test."""
    with ExitStack() as stack:

        def start(**settings: Any) -> TestClient:
            app = create_app(Settings(**{"model": (bundle,), **SET_BY_HAND, **settings}))
            return stack.enter_context(TestClient(app))

        yield start


@pytest.fixture
def listen(bundle: Path) -> Iterator[Listen]:
    """Start the application with these settings on a port of its own; it ends with the test."""
    with ExitStack() as stack:

        def start(*, keep_alive_s: int = 5, **settings: Any) -> int:
            app = create_app(Settings(**{"model": (bundle,), **SET_BY_HAND, **settings}))
            return port_of(stack.enter_context(listening(app, keep_alive_s=keep_alive_s)))

        yield start


@pytest.fixture
def start(bundle: Path) -> Iterator[Start]:
    """Start ``sentiment serve`` with the tiny bundle and these flags; it ends with the test."""
    with ExitStack() as stack:

        def start(*flags: str, bundle: Path = bundle, **options: Any) -> Process:
            return stack.enter_context(Process("--model", str(bundle), *FLAGS, *flags, **options))

        yield start


@pytest.fixture
def client(serve: Serve) -> TestClient:
    """The application with its default settings."""
    return serve()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> Iterator[Gate]:
    """Inference goes through a gate, open for the warm-up; it opens again when the test ends."""
    gate = Gate()
    gate.open.set()
    monkeypatch.setattr(Model, "infer", lambda model, encodings: gate.infer(model, encodings))
    yield gate
    gate.open.set()


@pytest.fixture
def pool(gate: Gate) -> Iterator[ThreadPoolExecutor]:
    """A pool of clients in the background, answered at the latest when the test ends."""
    with ThreadPoolExecutor(8) as pool:
        yield pool
        gate.open.set()
