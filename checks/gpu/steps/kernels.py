"""Where the nodes of the graphs are computed, and the kernels of a batch, by PyTorch's profiler.

CUDA reports the kernels of the whole process to it, so also those of ONNX Runtime. The kernels are
left out where ONNX Runtime's environment has no PyTorch, as that of ``make gpu-check``.
"""

from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import onnxruntime as ort
from sentiment_service.engine.model.bundle import Bundle
from sentiment_service.engine.model.device import CPU, Device
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.model.sessions import for_cpu

from benchmarks.tables import Row
from checks.gpu.models import load, of_tokens, precisions
from checks.gpu.setup import Setup

TEXTS, TOKENS = 64, 32
NAME_CHARACTERS = 100


def run(setup: Setup) -> Iterator[Row]:
    """Look at the graph without padding and at the one with it."""
    for path in setup.bundles:
        precision = precisions(path)[-1]
        for row in _placement(Bundle.open(path).variant_path(precision), setup):
            yield {"graph": path.name, **row}
        if setup.device == "cuda" and find_spec("torch"):
            for row in _kernels(load(path, precision, setup.device)):
                yield {"graph": path.name, **row}


def _placement(graph: Path, setup: Setup) -> Iterator[Row]:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    folder = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(folder, str(graph.parent))
    device = Device.of(setup.device)
    content = graph if device.gpus else for_cpu(graph)
    session = ort.InferenceSession(content, options, providers=[*device.providers(0), CPU])
    types: dict[str, Counter[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        found = types.setdefault(part.ep_name, Counter())
        found.update(node.op_type for node in part.get_nodes())
    for name, counts in types.items():
        names = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
        yield {"computed by": name, "count": counts.total(), "names": names}


def _kernels(model: Model) -> Iterator[Row]:
    """Those of one batch, the longest first, with their microseconds on the GPU."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    batch = of_tokens(model, TOKENS, TEXTS)
    model.infer(batch)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        model.infer(batch)
        torch.cuda.synchronize()
    kernels = sorted(seen.key_averages(), key=lambda one: -one.device_time_total)
    yield {"count": sum(one.count for one in kernels), "names": "all kernels and copies"}
    for one in kernels:
        us = one.device_time_total
        yield {"count": one.count, "names": one.key[:NAME_CHARACTERS], "µs": us}
