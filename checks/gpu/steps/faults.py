"""What the engine says of real faults: no memory, and a kernel that ends the process's CUDA."""

import ctypes
from collections.abc import Iterator

from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import Bundle
from sentiment_service.engine.model.device import LIBCUDA
from sentiment_service.engine.model.model import Model
from sentiment_service.errors import DeviceLost, OutOfMemory, ServiceError

from benchmarks.tables import Row
from checks.gpu.models import of_tokens, precisions
from checks.gpu.setup import Setup

MEMORY_MB = 800  # for the weights and a small batch
TOKENS, MANY_TEXTS = 512, 512
# Stores to an address that is nobody's: error 700.
BAD_KERNEL = b"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry store() {
  .reg .b64 %place;
  .reg .b32 %value;
  mov.u64 %place, 4096;
  mov.u32 %value, 1;
  st.global.u32 [%place], %value;
  ret;
}
"""


def run(setup: Setup) -> Iterator[Row]:
    """Cause each fault and compute again."""
    if setup.device == "cpu":
        yield {"fault": "none: they need a GPU"}
        return
    bundle = setup.bundle
    model = load_model(
        Bundle.open(bundle),
        device=setup.device,
        precision=precisions(bundle)[-1],
        threads=0,
        gpu_memory_mb=MEMORY_MB,
    )
    expected = {
        ("none", 1): None,
        (f"more than {MEMORY_MB} MB", MANY_TEXTS): OutOfMemory,
        ("none any more", 1): None,
        ("an illegal address", 1): DeviceLost,
    }
    wrong = []
    for (fault, texts), error in expected.items():
        if error is DeviceLost:
            _store_nowhere()
        found = _error(model, texts)
        yield {"fault": fault, "texts": texts, "ends in": found and f"{found!r}"}
        if type(found) is not (error or type(None)):
            wrong.append(fault)
    assert not wrong, f"another end than expected: {', '.join(wrong)}"


def _error(model: Model, texts: int) -> ServiceError | DeviceLost | None:
    try:
        model.compute(of_tokens(model, TOKENS, texts))
    except (ServiceError, DeviceLost) as error:
        return error
    return None


def _store_nowhere() -> None:
    """Start the kernel in the context of this thread, which is that of its last batch."""
    cuda = ctypes.CDLL(LIBCUDA)
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    assert not cuda.cuModuleLoadData(ctypes.byref(module), BAD_KERNEL)
    assert not cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"store")
    assert not cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
