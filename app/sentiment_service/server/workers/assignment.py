"""What a worker process is given: its number, sockets and models, and its share of the machine.

The supervisor passes it in an environment variable.
"""

import importlib.metadata
import json
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self, TypeVar

from sentiment_service.engine.machine.host import available_cpus, numa_nodes
from sentiment_service.errors import UserError
from sentiment_service.settings.settings import Settings, cache_directory

VARIABLE = "_SENTIMENT_WORKER"
# What auto chooses. Eight CPUs compute the embedded model as fast as one event loop can feed them.
# A GPU computes more than one event loop can feed, so its workers have fewer CPUs.
CPUS_A_WORKER = 8
CPUS_A_GPU_WORKER = 4

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Assignment:
    """The number of a worker, its models, and the file descriptors that it inherits."""

    number: int  # from 0
    workers: int  # of the service
    board: int
    credentials: int  # a file in memory with those that are in force
    control: int  # a Unix socket for messages from and to the supervisor
    sites: list[int]  # a Unix socket for the connections of each port
    # Paths of bundles. A checkpoint may have changed since the supervisor exported it, and then
    # this worker would serve another model than the others.
    models: list[str]
    cache: str  # the directory for caches; "" for the usual one

    @classmethod
    def of_this_process(cls) -> Self | None:
        """What the supervisor has passed to this process; None if no supervisor has started it."""
        passed = os.environ.pop(VARIABLE, None)
        return cls(**json.loads(passed)) if passed else None

    def applied_to(self, settings: Settings) -> Settings:
        """The settings with what the supervisor has determined for all workers."""
        cache = Path(self.cache) if self.cache else settings.cache_dir
        models = tuple(map(Path, self.models))
        return settings.model_copy(update={"model": models, "cache_dir": cache})

    def environment(self) -> dict[str, str]:
        """The environment of the worker."""
        return {**os.environ, VARIABLE: json.dumps(asdict(self))}


def worker_count(settings: Settings) -> int:
    """The number of worker processes that these settings mean on this machine.

    Raises:
        UserError: the system can have only one.
    """
    linux = sys.platform == "linux"
    cpus = available_cpus()
    if settings.workers == "auto":
        each = CPUS_A_GPU_WORKER if _computes_on_gpu(settings.device) else CPUS_A_WORKER
        return max(1, int(cpus) // each) if linux else 1
    if settings.workers > 1 and not linux:
        raise UserError("--workers: more than one worker needs Linux")
    if settings.workers > max(1.0, cpus):
        logger.warning("%d workers share %g CPUs: more workers than CPUs", settings.workers, cpus)
    return settings.workers


def _computes_on_gpu(device: str) -> bool:
    """Whether ``--device`` means a GPU. The supervisor does not load CUDA to find out."""
    if device != "auto":
        return device != "cpu"
    try:
        importlib.metadata.distribution("onnxruntime-gpu")
    except importlib.metadata.PackageNotFoundError:
        return False
    return Path("/dev/nvidiactl").exists()


def with_shared_cache(settings: Settings, stack: ExitStack) -> Settings:
    """The settings with another directory for caches if the usual one cannot be written.

    Otherwise each worker would measure while others serve. That directory ends with the ``stack``.
    """
    usual = cache_directory(settings)
    with suppress(OSError):
        if usual is not None:
            usual.mkdir(parents=True, exist_ok=True)
            if os.access(usual, os.W_OK):
                return settings
    with suppress(OSError):  # no directory at all can be written
        made = stack.enter_context(tempfile.TemporaryDirectory(prefix="sentiment-"))
        return settings.model_copy(update={"cache_dir": Path(made)})
    return settings


def take_share(settings: Settings, number: int, workers: int) -> tuple[Settings, float, int]:
    """Take the share of worker ``number``: its settings and CPUs, and the workers on its GPU.

    The last two are numbers. The settings have its GPUs, and the number of ``workers``, by which
    limits are shared.

    On a machine with several NUMA nodes, the process is pinned to the CPUs of its node, so that
    its memory is near. Call it before threads are started.
    """
    cpus = available_cpus() / workers
    nodes = numa_nodes()
    if len(nodes) > 1 and (workers % len(nodes) == 0 or len(nodes) % workers == 0):
        os.sched_setaffinity(0, [cpu for node in part(nodes, number, workers) for cpu in node])
    kind, _, numbers = settings.device.partition(":")
    gpus = numbers.split(",")  # one without a number for `cuda` and `auto`
    if numbers:
        own = ",".join(part(gpus, number, workers))
        settings = settings.model_copy(update={"device": f"{kind}:{own}"})
    gpu_workers = len(range(number % len(gpus), workers, len(gpus)))
    return settings.model_copy(update={"workers": workers}), cpus, gpu_workers


def part(items: Sequence[T], number: int, workers: int) -> Sequence[T]:
    """The items of worker ``number``: several if there are enough for all, else a shared one."""
    return items[number::workers] or [items[number % len(items)]]
