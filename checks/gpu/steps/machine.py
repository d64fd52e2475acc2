"""The machine, the versions and what CUDA finds."""

import importlib.metadata
from collections.abc import Iterator

import onnxruntime as ort
from sentiment_service.engine.model.device import cuda_state

from benchmarks.tables import Row, conditions
from checks.gpu.run_steps import CUDA, WORKS
from checks.gpu.setup import Setup


def run(setup: Setup) -> Iterator[Row]:
    """One row for each fact; first of all what decides whether the other steps run."""
    state = cuda_state()
    yield {"what": CUDA, "value": state.problem or WORKS}
    yield {
        "what": "NVIDIA driver",
        "value": f"{state.driver or 'none'}, CUDA {state.driver_cuda or 'unknown'}; "
        f"ONNX Runtime needs CUDA {state.runtime_cuda or 'none: it is the build for CPUs'}",
    }
    for number, gpu in enumerate(state.gpus):
        yield {"what": f"GPU {number}", "value": str(gpu)}
    yield {"what": "ONNX Runtime", "value": ort.get_build_info()}
    packages = sorted(
        f"{one.name} {one.version}"
        for one in importlib.metadata.distributions()
        if one.name.startswith(("nvidia-", "onnxruntime"))
    )
    yield {"what": "packages", "value": ", ".join(packages)}
    for what, value in conditions().items():
        yield {"what": what, "value": value}
