"""Load and memory of the GPUs, as NVIDIA's management library (NVML) knows them.

The package nvidia-ml-py of the extra `gpu` calls NVML. Without the package, a driver or a GPU there
are no series.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

# NVML answers within milliseconds. A scrape does not wait longer for a GPU that does not answer.
WAIT_S = 0.25
# The metrics, by the fields of ``Gpu``.
SHOWN = {
    "up": "1 while NVML answers for the GPU.",
    "utilization_ratio": "Share of time in which it computed.",
    "memory_used_bytes": "Bytes in use, by all processes.",
    "memory_total_bytes": "Bytes that it has.",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """What NVML reports for a GPU or for a MIG instance of a GPU. None means: not reported.

    ``index`` is NVML's, which can differ from CUDA's; instances of GPU 0 are 0:0, 0:1 ...
    """

    index: str
    name: str
    up: bool = False  # NVML answers; also if the answer is that it may not or cannot say
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


class Nvml:
    """The GPUs of this machine or container.

    Raises:
        ModuleNotFoundError: nvidia-ml-py is not installed.
        Exception: there is no driver, or it does not work (``pynvml.NVMLError``).
    """

    def __init__(self) -> None:
        self._nvml = import_module("pynvml")
        self._nvml.nvmlInit()
        self._found: list[tuple[str, str, Any]] = []  # index, name and handle of each
        for number in range(self._nvml.nvmlDeviceGetCount()):
            with suppress(self._nvml.NVMLError):  # a lost GPU must not hide the others
                handle = self._nvml.nvmlDeviceGetHandleByIndex(number)
                for index, instance in self._instances(str(number), handle):
                    name = self._nvml.nvmlDeviceGetName(instance)
                    self._found.append((index, name, instance))

    def _instances(self, index: str, handle: Any) -> list[tuple[str, Any]]:
        """The MIG instances of a GPU that is divided, else the GPU itself.

        A container that has an instance may not read the memory of the whole GPU.
        """
        instances = []
        mode = self._ask(self._nvml.nvmlDeviceGetMigMode, handle)
        if mode and mode[0] == self._nvml.NVML_DEVICE_MIG_ENABLE:
            for number in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with suppress(self._nvml.NVMLError):  # there are fewer, or others are hidden
                    instance = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                    instances.append((f"{index}:{number}", instance))
        return instances or [(index, handle)]

    def read(self) -> list[Gpu]:
        """Read all GPUs. A value that NVML does not give is left out."""
        return [self._read(*found) for found in self._found]

    def _read(self, index: str, name: str, handle: Any) -> Gpu:
        try:
            memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle)
            rates = self._ask(self._nvml.nvmlDeviceGetUtilizationRates, handle)
        except self._nvml.NVMLError:
            return Gpu(index, name)
        return Gpu(
            index,
            name,
            up=True,
            utilization_ratio=rates and rates.gpu / 100,
            memory_used_bytes=memory and memory.used,
            memory_total_bytes=memory and memory.total,
        )

    def _ask(self, function: Callable[[Any], Any], handle: Any) -> Any:
        """What NVML answers for a GPU; None if that is not supported or not permitted."""
        with suppress(self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_NoPermission):
            return function(handle)
        return None


class GpuCollector(Collector):
    """The metrics of the GPUs. ``refresh`` reads them; a scrape shows what was read last."""

    def __init__(self) -> None:
        self._nvml: Nvml | None = None
        self._gpus: list[Gpu] = []
        self._reading: Future[list[Gpu]] | None = None
        self._absent = False

    async def refresh(self) -> None:
        """Read the GPUs on a thread, because NVML can block for seconds when a GPU is lost.

        A GPU that does not answer within ``WAIT_S`` is not up. Its thread is left alone; no other
        one is started before it returns.
        """
        if self._absent:
            return
        reading = self._reading
        if reading is None or reading.done():
            reading = Future()
            thread = threading.Thread(target=self._read, args=(reading,), name="nvml", daemon=True)
            with suppress(RuntimeError):  # no more threads: to this scrape, the GPUs are silent
                thread.start()
                self._reading = reading
        done, _ = await asyncio.wait([asyncio.wrap_future(reading)], timeout=WAIT_S)
        silent = [Gpu(gpu.index, gpu.name) for gpu in self._gpus]
        self._gpus = reading.result() if done else silent

    def _read(self, reading: Future[list[Gpu]]) -> None:
        try:
            if self._nvml is None:
                self._nvml = Nvml()
            reading.set_result(self._nvml.read())
        except Exception:  # no package, no driver, or a driver that does not work
            self._absent = self._nvml is None
            reading.set_result([])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families, without those that have no value."""
        for name, text in SHOWN.items():
            family = GaugeMetricFamily(f"sentiment_gpu_{name}", text, labels=("gpu", "name"))
            for gpu in self._gpus:
                if (value := getattr(gpu, name)) is not None:
                    family.add_metric((gpu.index, gpu.name), value)
            if family.samples:
                yield family
