"""``sentiment doctor``: what serving needs on this machine, and what helps if it is missing."""

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from sentiment_service.cli.findings import Finding
from sentiment_service.engine.host import available_cpus, cpu_name, vector_flags
from sentiment_service.engine.loading import load_as_set, load_model
from sentiment_service.engine.model.bundle import Bundle, bundles_to_use
from sentiment_service.engine.model.device import CPU, CUDA, CudaState, cuda_state
from sentiment_service.engine.model.model import TEXTS, Model, decided, tolerance
from sentiment_service.errors import InferenceFailed, UserError, first_line
from sentiment_service.exported_models import with_bundles, with_candidate
from sentiment_service.settings.settings import Settings

RUNTIMES = ("onnxruntime", "onnxruntime-gpu")  # both provide the module onnxruntime


def examine(settings: Settings) -> Iterator[Finding]:
    """All findings, from the installation to a computed batch."""
    version = importlib.metadata.version("sentiment-service")
    yield Finding("versions", True, f"service {version}, Python {platform.python_version()}")
    yield _runtime()
    cpus = f"{available_cpus():g} of {os.cpu_count()} CPUs may be used"
    yield Finding("CPU", True, f"{cpu_name()} ({vector_flags()}), {cpus}")
    yield _gpu(settings, cuda_state())
    try:
        say = partial(print, "sentiment:", file=sys.stderr)
        settings = with_candidate(with_bundles(settings, say), say)
    except UserError as error:
        yield Finding("model", False, str(error))
        return
    for path in bundles_to_use(settings.model):
        yield from _model(path, settings)


def _runtime() -> Finding:
    beside = [str(Path(ort.__file__).parents[1])]  # where the module that is used was installed
    installed = [
        f"{found.name} {found.version}"
        for name in RUNTIMES
        for found in importlib.metadata.distributions(name=name, path=beside)
    ]
    providers = ", ".join(name.removesuffix("ExecutionProvider") for name in _providers())
    packages = f"{' and '.join(installed) or 'onnxruntime'}, with the providers {providers}"
    if len(installed) > 1:
        cure = "both packages write the same files: uninstall both, then install one of them"
        return Finding("runtime", False, packages, cure)
    return Finding("runtime", True, packages)


def _providers() -> list[str]:
    # TensorRT is in the package for GPUs, but the service does not use it.
    return [name for name in ort.get_available_providers() if name in (CPU, CUDA)]


def _gpu(settings: Settings, state: CudaState) -> Finding:
    if not state.problem:
        gpus = "; ".join(map(str, state.gpus))
        driver = f"driver {state.driver or 'of unknown version'} for CUDA {state.driver_cuda}"
        return Finding("GPU", True, f"{gpus}; {driver}, the runtime needs {state.runtime_cuda}")
    if settings.device == "cpu":
        return Finding("GPU", True, "not used, because the device is cpu")
    if settings.device == "auto" and CUDA not in _providers():
        return Finding("GPU", True, "no GPU package is installed; serving on the CPU")
    return Finding("GPU", False, state.problem, state.cure)


def _model(path: Path, settings: Settings) -> Iterator[Finding]:
    """Load the model, compute a batch, and compare a GPU with the CPU."""
    try:
        started = time.perf_counter()
        model = load_as_set(path, settings.engine_config(), threads=1)
        loaded = time.perf_counter()
        # By each copy of the model: they take turns.
        logits = np.stack([_logits(model) for _ in range(model.device.copies)])
        computed = time.perf_counter()
    except UserError as error:
        yield Finding("model", False, str(error))
        return
    except Exception as error:  # onnxruntime's exceptions share no base class
        yield Finding(
            "model", False, f"{path}: ONNX Runtime cannot compute it: {first_line(error)}"
        )
        return
    batch_ms = (computed - loaded) / len(logits) * 1000
    yield Finding(
        "model",
        True,
        f"{model.name} ({model.short_digest}) in {model.precision} on {model.provider}, loaded in "
        f"{loaded - started:.1f} s; a batch of {len(TEXTS)} texts took {batch_ms:.0f} ms",
    )
    if model.provider != CPU:
        try:
            yield _parity(model, logits)
        except UserError as error:  # of the variant for the CPU
            yield Finding("parity", False, str(error))


def _parity(model: Model, logits: NDArray[np.float32]) -> Finding:
    """Compare the logits of each GPU with those of the CPU, in fp32 if the bundle has it.

    ``logits`` has the shape [GPUs, texts, labels].
    """
    bundle = Bundle.open(model.path)
    precision = "fp32" if "fp32" in bundle.manifest.variants else model.precision
    expected = _logits(load_model(bundle, device="cpu", precision=precision, threads=0))
    difference = float(np.abs(logits - expected).max())
    allowed = tolerance(model.precision, expected)
    changed = int((logits.argmax(2) != expected.argmax(1))[:, decided(expected)].any(0).sum())
    said = (
        f"logits differ from {precision} on the CPU by up to {difference:.2g} (allowed: "
        f"{allowed:.2g}), and {changed} of {len(TEXTS)} labels differ"
    )
    if difference <= allowed and not changed:
        return Finding("parity", True, said)
    return Finding("parity", False, said, "serve with --precision fp32, and report this")


def _logits(model: Model) -> NDArray[np.float32]:
    """Logits [texts, labels] of ``TEXTS``, computed as one batch."""
    results = model.infer([model.tokenizer.encode(text) for text in TEXTS])
    rows = [result for result in results if not isinstance(result, InferenceFailed)]
    if len(rows) < len(results):
        raise UserError(f"{model.name}: the model gives no finite logits")
    return np.stack(rows)
