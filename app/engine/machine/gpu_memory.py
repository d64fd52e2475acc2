"""Memory of this process that a GPU reads directly, and the GPU that a thread copies to.

ONNX Runtime has such pinned memory, but its Python interface does not give it out. So it is taken
from NVIDIA's driver. CUDA itself recognises it when it copies.
"""

import ctypes
import weakref
from functools import cache

import numpy as np
from numpy.typing import NDArray

from app.engine.machine.gpu import LIBCUDA

_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for every GPU


def use_gpu(gpu: int, library: str = LIBCUDA) -> ctypes.CDLL | None:
    """Make this GPU the thread's current one. Returns the driver, or None if it does not work.

    Otherwise the first copy of a thread would take memory on the first GPU, even to copy to
    another. ONNX Runtime does the same, but only when it computes.
    """
    try:
        cuda, context = _context(gpu, library)
    except OSError:
        return None
    return None if cuda.cuCtxSetCurrent(context) else cuda


def pinned_array(size: int, gpu: int, library: str = LIBCUDA) -> NDArray[np.int64]:
    """An array of ``size`` elements in memory that is pinned while the array exists.

    If the driver has no such memory, the array is in ordinary memory: copies are slower then.
    """
    cuda = use_gpu(gpu, library)
    address, length = ctypes.c_void_p(), ctypes.c_size_t(size * 8)
    if cuda is None or cuda.cuMemHostAlloc(ctypes.byref(address), length, _PORTABLE):
        return np.empty(size, np.int64)
    memory = (ctypes.c_int64 * size).from_address(address.value or 0)
    # The end of the process frees it in any case, also while the GPU hangs.
    weakref.finalize(memory, _free, address, gpu, library).atexit = False
    return np.frombuffer(memoryview(memory).cast("B"), np.int64)


def _free(address: ctypes.c_void_p, gpu: int, library: str) -> None:
    if (cuda := use_gpu(gpu, library)) is not None:  # this may be another thread
        cuda.cuMemFreeHost(address)


@cache
def _context(gpu: int, library: str) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """The driver, and the GPU's primary context, which ONNX Runtime also uses.

    Raises:
        OSError: there is no driver, or it does not work.
    """
    cuda = ctypes.CDLL(library)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if code := (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), gpu)
        or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    ):
        raise OSError(f"CUDA error {code}")
    return cuda, context
