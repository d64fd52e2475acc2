"""Recognise when ONNX Runtime ran out of memory, and when it lost its device.

Both are known only from the text of its exceptions, which share no base class. The texts are those
of ONNX Runtime 1.31 (``cuda_call.cc``, ``bfc_arena.cc``), CUDA 13 (``cudaGetErrorString``), cuBLAS
13 and cuDNN 9.
"""

import re

from sentiment_service.errors import DeviceLost, NoMemory, OutOfMemory, UserError, first_line

# ONNX Runtime writes "CUDA failure 700: an illegal memory access was encountered ; GPU=0", and its
# plugin for CUDA, which is to come, "CUDA error: an illegal memory access was encountered".
_CUDA_FAILURE = re.compile(r"CUDA (?:failure (\d+)|error): ([^;\n]*[^;\s])")

# CUDA asks for a new process after 226, 7xx (without 709), 810 and 911. After the others, the GPU,
# its driver or a service of the driver is gone.
_LOST = {
    46: "CUDA-capable device(s) is/are busy or unavailable",
    100: "no CUDA-capable device is detected",
    214: "uncorrectable ECC error encountered",
    220: "uncorrectable NVLink error detected during the execution",
    226: "Invalid access of peer GPU memory over nvlink or a hardware error",
    700: "an illegal memory access was encountered",
    702: "the launch timed out and was terminated",
    709: "context is destroyed",
    710: "device-side assert triggered",
    714: "hardware stack error",
    715: "an illegal instruction was encountered",
    716: "misaligned address",
    717: "operation not supported on global/shared address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
    721: "tensor memory not completely freed",
    802: "system not yet initialized",  # a daemon of the driver has ended
    805: "MPS client failed to connect to the MPS control daemon or the MPS server",
    806: "the remote procedural call between the MPS server and the MPS client failed",
    810: "the MPS client has been terminated by the server",
    911: "an async error has occured in external entity outside of CUDA",
    999: "unknown error",  # also what a GPU that has fallen off the bus reports
}

_NO_MEMORY = re.compile(
    r"CUDA (failure 2|error): out of memory"
    # ONNX Runtime's arena, on the CPU as well: the device has no more; the arena's limit is
    # reached; what is free is in too small pieces.
    r"|Failed to allocate memory for requested buffer of size"
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
    code, words = (int(failure[1] or 0), failure[2]) if failure else (0, "")
    lost = code in _LOST or words.startswith(tuple(_LOST.values()))
    if lost or "DEVICE_RESET" in text:
        reason = f"CUDA error{f' {code}' if code else ''}: {words}" if lost else "it was reset"
        return DeviceLost(
            f"the GPU cannot be used any more ({reason}); only a restart of the service helps"
        )
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return OutOfMemory(
            "there is too little memory to compute this text; send a shorter text, or try again "
            "when there is less load"
        )
    return None


def loading_error(error: Exception, failure: str) -> UserError:
    """The error for the operator if a model cannot be loaded: the ``failure`` with the reason.

    It is ``NoMemory`` if the memory ran out. If the device is lost, it is that error alone.
    """
    known = device_error(error)
    if isinstance(known, DeviceLost):
        return known
    kind = NoMemory if isinstance(known, OutOfMemory) else UserError
    return kind(f"{failure}: {first_line(error)}")
