"""Memory of this process that a GPU reads directly.

ONNX Runtime has such pinned memory, but its Python interface does not give it out. So it is taken
from NVIDIA's driver. CUDA itself recognises it when it copies.
"""

import ctypes
import weakref

import numpy as np
from numpy.typing import NDArray

from app.engine.machine.gpu import LIBCUDA

_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for every GPU


def pinned_array(size: int, gpu: int, library: str = LIBCUDA) -> NDArray[np.int64]:
    """An array of ``size`` elements in memory that is pinned while the array exists.

    If the driver has no such memory, the array is in ordinary memory: copies are slower then.
    """
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return np.empty(size, np.int64)
    address = ctypes.c_void_p()
    context = _context(cuda, gpu)
    bytes_ = ctypes.c_size_t(size * 8)
    if context is None or cuda.cuMemHostAlloc(ctypes.byref(address), bytes_, _PORTABLE):
        return np.empty(size, np.int64)
    memory = (ctypes.c_int64 * size).from_address(address.value or 0)
    # The end of the process frees it in any case, also while the GPU hangs.
    weakref.finalize(memory, _free, cuda, context, address).atexit = False
    return np.frombuffer(memoryview(memory).cast("B"), np.int64)


def _context(cuda: ctypes.CDLL, gpu: int) -> ctypes.c_void_p | None:
    """The GPU's context, which ONNX Runtime also uses. It becomes that of this thread."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    failed = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), gpu)
        or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        or cuda.cuCtxSetCurrent(context)
    )
    return None if failed else context


def _free(cuda: ctypes.CDLL, context: ctypes.c_void_p, address: ctypes.c_void_p) -> None:
    cuda.cuCtxSetCurrent(context)  # this may be another thread
    cuda.cuMemFreeHost(address)
