"""Stands in for nvidia-ml-py: two GPUs, of which a test can lose, block or divide one.

A handle is the GPU's number; that of its parts is 10 more.

Put this directory on the path of Python's modules.
"""

import threading
from types import SimpleNamespace

GIB = 2**30
lost: set[int] = set()
divided: set[int] = set()  # GPUs in MIG mode; the container has the second part of each
hidden: set[int] = set()  # of the divided ones, those whose parts are not there
has_driver = threading.Event()
has_driver.set()
answers = threading.Event()  # while it is not set, no call returns
answers.set()


class NVMLError(Exception):
    """What each failing call raises."""


class NVMLError_NotSupported(NVMLError):  # noqa: N801
    """The GPU cannot say."""


class NVMLError_NoPermission(NVMLError):  # noqa: N801
    """This process may not ask."""


NVML_DEVICE_MIG_ENABLE = 1


def nvmlInit() -> None:  # noqa: N802
    """Fail without a driver."""
    if not has_driver.is_set():
        raise NVMLError("Driver Not Loaded")


def nvmlDeviceGetCount() -> int:  # noqa: N802
    """The number of GPUs."""
    return 2


def nvmlDeviceGetHandleByIndex(index: int) -> int:  # noqa: N802
    """The index serves as handle."""
    return index


def nvmlDeviceGetName(handle: int) -> str:  # noqa: N802
    """The same name for both."""
    return "NVIDIA Test"


def nvmlDeviceGetMigMode(handle: int) -> tuple[int, int]:  # noqa: N802
    """The present and the next mode; the second GPU is too old for it."""
    if handle not in divided and handle:
        raise NVMLError_NotSupported
    return (handle in divided, handle in divided)


def nvmlDeviceGetMaxMigDeviceCount(handle: int) -> int:  # noqa: N802
    """The number of parts at most."""
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(handle: int, index: int) -> int:  # noqa: N802
    """The only part that is visible."""
    if index != 1 or handle in hidden:
        raise NVMLError("Not Found")
    return handle + 10


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:  # noqa: N802
    """Used and total bytes."""
    answers.wait(30)
    if handle % 10 in lost:
        raise NVMLError("GPU is lost")
    if handle in divided:
        raise NVMLError_NoPermission
    return SimpleNamespace(used=(handle % 10 + 1) * GIB, total=16 * GIB)


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:  # noqa: N802
    """The load in percent."""
    if handle % 10 in lost:
        raise NVMLError("GPU is lost")
    if handle % 10 in divided:
        raise NVMLError_NotSupported
    return SimpleNamespace(gpu=75)
