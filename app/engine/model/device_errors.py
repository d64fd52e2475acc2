"""Recognise when ONNX Runtime ran out of memory, and when it lost its device.

Both are known only from the text of its exceptions, which share no base class. The texts are those
of ONNX Runtime 1.31 (``cuda_call.cc``, ``bfc_arena.cc``), CUDA 13 (``driver_types.h``), cuBLAS 13
and cuDNN 9.
"""

import re

from app.errors import DeviceLost, OutOfMemory

# As in "CUDA failure 700: an illegal memory access was encountered ; GPU=0 ; hostname=...".
_CUDA_FAILURE = re.compile(r"CUDA failure (\d+): ([^;]*[^; ])")

_MEMORY_ALLOCATION = 2
# CUDA asks for a new process after 226, 7xx (without 709), 810 and 911. After the others, the GPU,
# its driver or a service of the driver is gone.
_LOST = {
    46,  # devices unavailable
    100,  # no device
    214,  # uncorrectable ECC error
    220,  # uncorrectable NVLink error
    226,  # error contained by the GPU
    700,  # illegal address
    702,  # launch timeout
    709,  # context destroyed
    710,  # assertion on the device
    714,  # hardware stack error
    715,  # illegal instruction
    716,  # misaligned address
    717,  # invalid address space
    718,  # invalid program counter
    719,  # launch failure
    721,  # tensor memory leak
    802,  # system not ready: a daemon of the driver has ended
    805,  # no connection to the MPS server
    806,  # a call of the MPS server failed
    810,  # the MPS server has ended this client
    911,  # external device
    999,  # unknown: also what a GPU that has fallen off the bus reports
}

_NO_MEMORY = re.compile(
    # ONNX Runtime's arena, on the CPU as well: the device has no more; the arena's limit is
    # reached; what is free is in too small pieces.
    r"Failed to allocate memory for requested buffer of size"
    r"|Available memory of \d+ is smaller than requested bytes"
    r"|Failed to find a free memory block despite calling Extend"
    r"|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_INTERNAL_ERROR_(HOST|DEVICE)_ALLOCATION_FAILED"
    r"|std::bad_alloc|bad allocation"  # of GNU's and of Microsoft's C++ library
)


def device_error(error: Exception) -> OutOfMemory | DeviceLost | None:
    """What an exception of ``session.run`` says about the device; None if it says nothing."""
    text = str(error)
    failure = _CUDA_FAILURE.search(text)
    code = int(failure[1]) if failure else None
    if code in _LOST or "DEVICE_RESET" in text:
        reason = f"CUDA error {code}: {failure[2]}" if failure else "it was reset"
        return DeviceLost(
            f"the GPU cannot be used any more ({reason}); only a restart of the service helps"
        )
    if isinstance(error, MemoryError) or code == _MEMORY_ALLOCATION or _NO_MEMORY.search(text):
        return OutOfMemory(
            "there is too little memory to compute this text; send a shorter text, or try again "
            "when there is less load"
        )
    return None
