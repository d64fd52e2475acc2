"""What ONNX Runtime's exceptions say of memory and devices: the real texts, without a GPU."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import DeviceReset, EPFail, Fail, RuntimeException
from sentiment_service.engine.model.device import CPU
from sentiment_service.engine.model.sessions import device_error
from sentiment_service.errors import DeviceLost, OutOfMemory

LIMIT_BYTES = 2**20
# The model y = MatMulInteger(a: uint8 [m, k], b: int8 [k, n]).
_A, _B, _Y = (
    helper.make_tensor_value_info(name, kind, [None, None])
    for name, kind in (("a", TensorProto.UINT8), ("b", TensorProto.INT8), ("y", TensorProto.INT32))
)
_GRAPH = helper.make_graph(
    [helper.make_node("MatMulInteger", ["a", "b"], ["y"])], "p", [_A, _B], [_Y]
)
MATMUL_INTEGER = helper.make_model(
    _GRAPH, opset_imports=[helper.make_opsetid("", 18)], ir_version=8
).SerializeToString()


def failure(library: str, code: int, words: str, call: str) -> str:
    """An error of CUDA, cuBLAS or cuDNN as ``cuda_call.cc`` of ONNX Runtime 1.31 writes it."""
    place = "/onnxruntime_src/onnxruntime/core/providers/cuda"
    return (
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running "
        f"MatMul node. Name:'/layer.0/MatMul' Status Message: {place}/cuda_call.cc:129 "
        f"{library} failure {code}: {words} ; GPU=0 ; hostname=secret-host ; "
        f"file={place}/cuda_stream_handle.cc ; line=175 ; expr={call}; "
    )


def cuda(code: int, words: str, call: str = "cudaStreamSynchronize(stream)") -> str:
    return failure("CUDA", code, words, call)


def arena(words: str) -> str:
    return (
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Softmax node. "
        "Name:'/layer.0/Softmax' Status Message: "
        "/onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:360 "
        f"void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) "
        f"{words}\n"
    )


CUDA_MEMORY = cuda(2, "out of memory", "cudaMalloc((void**)&p, size)")
ILLEGAL_ADDRESS = cuda(700, "an illegal memory access was encountered")
ARENA_MEMORY = arena("Failed to allocate memory for requested buffer of size 8388608000")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeException(CUDA_MEMORY),
        Fail(ARENA_MEMORY),
        Fail(arena("Available memory of 1048576 is smaller than requested bytes of 800000000")),
        Fail(arena("Failed to find a free memory block despite calling Extend. rounded_bytes=256")),
        RuntimeException(
            failure("CUBLAS", 3, "CUBLAS_STATUS_ALLOC_FAILED", "cublasCreate(&cublas_handle_)")
        ),
        RuntimeException(
            failure(
                "CUDNN",
                4004,
                "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
                "cudnnCreate(&cudnn_handle_)",
            )
        ),
        RuntimeException("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc"),
        MemoryError("std::bad_alloc"),  # what the Python binding makes of it
        MemoryError(),
    ],
)
def test_memory_that_ran_out_is_recognised(error: Exception) -> None:
    """On a GPU and on a CPU; the error for the client says nothing of hosts, files or nodes."""
    known = device_error(error)
    assert isinstance(known, OutOfMemory)
    assert known.detail.startswith("there is too little memory to compute this text")


def test_the_text_of_a_real_session_is_recognised() -> None:
    """ONNX Runtime's own arena, limited to a megabyte, raises an error that is recognised."""
    limited = ort.OrtArenaCfg({"max_mem": LIMIT_BYTES, "arena_extend_strategy": 1})
    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT)
    # It is shared by the process, and used only by sessions that ask for it.
    ort.create_and_register_allocator(memory, limited)
    options, silent = ort.SessionOptions(), ort.RunOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    silent.log_severity_level = 4
    session = ort.InferenceSession(MATMUL_INTEGER, options, providers=[CPU])
    feeds = {"a": np.zeros((1_000, 64), np.uint8), "b": np.zeros((64, 1_000), np.int8)}
    with pytest.raises(Exception, match="smaller than requested bytes") as raised:
        session.run(None, feeds, silent)
    assert isinstance(device_error(raised.value), OutOfMemory)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeException(ILLEGAL_ADDRESS), "700: an illegal memory access was encountered"),
        (EPFail(cuda(214, "uncorrectable ECC error encountered")), "214: uncorrectable ECC error"),
        (Fail(cuda(999, "unknown error")), "999: unknown error"),  # also: fell off the bus
        (Fail(cuda(46, "CUDA-capable device(s) is/are busy or unavailable")), "46: CUDA-capable"),
        (Fail(cuda(719, "unspecified launch failure")), "719: unspecified launch failure"),
        (DeviceReset("[ONNXRuntimeError] : 15 : DEVICE_RESET : gone"), "it was reset"),
    ],
)
def test_a_lost_device_is_recognised(error: Exception, reason: str) -> None:
    """The message names CUDA's error and the cure, but neither the host nor files."""
    known = device_error(error)
    assert isinstance(known, DeviceLost)
    assert reason in str(known)
    assert str(known).endswith("only a restart of the service helps")
    assert "secret-host" not in str(known)
    assert "onnxruntime_src" not in str(known)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("inference failed"),
        Fail("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : indices element out of data bounds"),
        # These leave the context usable, or say nothing of it.
        RuntimeException(cuda(701, "too many resources requested for launch")),
        RuntimeException(failure("CUBLAS", 13, "CUBLAS_STATUS_EXECUTION_FAILED", "cublasGemmEx()")),
        RuntimeException(failure("CUDNN", 5000, "CUDNN_STATUS_EXECUTION_FAILED", "cudnnReduce()")),
    ],
)
def test_other_errors_say_nothing_of_the_device(error: Exception) -> None:
    """They fail the texts that cause them, and nothing else."""
    assert device_error(error) is None


def test_the_provider_of_the_installed_version_is_the_one_that_was_read() -> None:
    """The options and texts are those of the CUDA provider inside ONNX Runtime, not of its plugin.

    If an upgrade fails here, the options of ``device.py`` must be read again in the plugin.
    """
    assert "cuda-plugin-ep" not in ort.get_build_info()
