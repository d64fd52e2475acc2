"""Stands in for nvidia-ml-py: two GPUs, of which a test can lose or block one.

Put this directory on the path of Python's modules.
"""

import threading
from types import SimpleNamespace

GIB = 2**30
lost: set[int] = set()
parts: set[int] = set()  # GPUs that do not tell their load, as the parts of a GPU (MIG)
no_driver = False
answers = threading.Event()  # while it is not set, no call returns
answers.set()


class NVMLError(Exception):
    """What each failing call raises."""


def nvmlInit() -> None:  # noqa: N802
    """Fail without a driver."""
    if no_driver:
        raise NVMLError("Driver Not Loaded")


def nvmlSystemGetDriverVersion() -> str:  # noqa: N802
    """The version of the driver."""
    return "580.65.06"


def nvmlDeviceGetCount() -> int:  # noqa: N802
    """The number of GPUs."""
    return 2


def nvmlDeviceGetHandleByIndex(index: int) -> int:  # noqa: N802
    """The index serves as handle."""
    return index


def nvmlDeviceGetName(handle: int) -> str:  # noqa: N802
    """The same name for both."""
    return "NVIDIA Test"


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:  # noqa: N802
    """Used and total bytes."""
    answers.wait(30)
    if handle in lost:
        raise NVMLError("GPU is lost")
    return SimpleNamespace(used=(handle + 1) * GIB, total=16 * GIB)


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:  # noqa: N802
    """The load in percent."""
    if handle in lost | parts:
        raise NVMLError("Not Supported")
    return SimpleNamespace(gpu=75)
