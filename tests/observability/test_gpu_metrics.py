"""The metrics of GPUs, with a module in the place of nvidia-ml-py."""

import asyncio
import importlib
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sentiment_service.observability import metrics

from tests.conftest import Serve
from tests.support.serving import eventually

FAKE = Path(__file__).parents[1] / "support/machines/fake_nvml"
GIB = 2**30


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module in the place of nvidia-ml-py, fresh for each test."""
    monkeypatch.syspath_prepend(FAKE)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    module = importlib.import_module("pynvml")
    yield module
    module.answers.set()
    sys.modules.pop("pynvml")


@pytest.fixture
def scraped(nvml: ModuleType, client: TestClient) -> TestClient:
    """The application on a machine with two GPUs."""
    return client


def _gpus(client: TestClient) -> dict[str, dict[str, float]]:
    """Value by name, without the prefix, and by the GPU's index."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if sample.name.startswith("sentiment_gpu_"):
                assert sample.labels["name"] == "NVIDIA Test"
                name = sample.name.removeprefix("sentiment_gpu_")
                found.setdefault(name, {})[sample.labels["gpu"]] = sample.value
    return found


def test_a_scrape_shows_load_and_memory_of_each_gpu(scraped: TestClient) -> None:
    """Both GPUs have all four series, in the first scrape."""
    assert _gpus(scraped) == {
        "up": {"0": 1, "1": 1},
        "utilization_ratio": {"0": 0.75, "1": 0.75},
        "memory_used_bytes": {"0": GIB, "1": 2 * GIB},
        "memory_total_bytes": {"0": 16 * GIB, "1": 16 * GIB},
    }


def test_a_lost_gpu_is_not_up(scraped: TestClient, nvml: ModuleType) -> None:
    """Its other series end, the other GPU's go on, and the scrape succeeds."""
    _gpus(scraped)
    nvml.lost.add(0)
    found = _gpus(scraped)
    assert found.pop("up") == {"0": 0, "1": 1}
    assert [list(values) for values in found.values()] == [["1"]] * 3


def test_a_part_of_a_gpu_is_up(scraped: TestClient, nvml: ModuleType) -> None:
    """In a container with a part of GPU 0 (MIG), the series are the part's, which has no load.

    NVML does not let the container read the memory of the whole GPU.
    """
    nvml.divided.add(0)
    assert _gpus(scraped) == {
        "up": {"0:1": 1, "1": 1},
        "utilization_ratio": {"1": 0.75},
        "memory_used_bytes": {"0:1": GIB, "1": 2 * GIB},
        "memory_total_bytes": {"0:1": 16 * GIB, "1": 16 * GIB},
    }
    nvml.lost.add(0)
    assert _gpus(scraped)["up"] == {"0:1": 0, "1": 1}


def test_what_nvml_may_not_say_has_no_series(scraped: TestClient, nvml: ModuleType) -> None:
    """A GPU of which NVML says neither memory nor load is up: NVML answers."""
    nvml.divided.add(0)
    nvml.hidden.add(0)
    found = _gpus(scraped)
    assert found.pop("up") == {"0": 1, "1": 1}
    assert [list(values) for values in found.values()] == [["1"]] * 3


def test_a_gpu_that_does_not_answer_does_not_hold_up_the_scrape(
    scraped: TestClient, nvml: ModuleType
) -> None:
    """Scrapes succeed with up 0 and share one waiting thread; afterwards it is up again."""
    _gpus(scraped)
    nvml.answers.clear()
    assert [_gpus(scraped) for _ in range(3)] == [{"up": {"0": 0, "1": 0}}] * 3
    assert [thread.name for thread in threading.enumerate()].count("nvml") == 1
    nvml.answers.set()
    eventually(lambda: _gpus(scraped)["up"] == {"0": 1, "1": 1})


async def test_a_second_scrape_does_not_block_the_first(nvml: ModuleType) -> None:
    """It begins to read again before the first one shows what was read.

    The first must show that, and not wait for the second reading without a limit.
    """
    collector = metrics.GpuCollector()
    await collector.refresh()
    reading: Future[metrics.Gpus] = Future()
    collector._reading = reading
    first = asyncio.create_task(collector.refresh())
    await asyncio.sleep(0)
    nvml.answers.clear()
    rescue = threading.Timer(5, nvml.answers.set)  # a blocked event loop could not end the test
    rescue.start()
    second = asyncio.create_task(collector.refresh())
    reading.set_result({("0", "NVIDIA Test"): metrics.SILENT})
    await first
    assert not nvml.answers.is_set()
    rescue.cancel()
    nvml.answers.set()
    await second


def test_without_a_driver_there_are_no_series(scraped: TestClient, nvml: ModuleType) -> None:
    """NVML is not asked again, and the scrape succeeds."""
    nvml.has_driver.clear()
    assert _gpus(scraped) == {}
    nvml.has_driver.set()
    assert _gpus(scraped) == {}


def test_without_the_package_there_are_no_series(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU installation has no nvidia-ml-py."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert _gpus(serve()) == {}
