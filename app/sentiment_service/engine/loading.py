"""Load bundles on the device and in the variant that suit, and warm up and tune their models."""

import logging
import os
from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import numpy  # noqa: F401 - if memory is short, it says so; ONNX Runtime would print a traceback
import onnxruntime as ort

from sentiment_service.engine.model.bundle import Bundle, Precision
from sentiment_service.engine.model.device import CPU, CUDA, Device
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.model.sessions import loading_error
from sentiment_service.engine.options import EngineConfig
from sentiment_service.engine.step_thread import Steps
from sentiment_service.engine.text.text_tokenizer import PARALLELISM, use_idle_cpus
from sentiment_service.engine.tuning import ServingPlan, tune
from sentiment_service.errors import ServiceError, UserError

logger = logging.getLogger(__name__)

# The precisions that `auto` tries on each provider, best first.
VARIANTS: dict[str, tuple[Precision, ...]] = {CPU: ("int8", "fp32", "fp16"), CUDA: ("fp16", "fp32")}


def load_model(
    bundle: Bundle,
    *,
    device: str,
    precision: Precision | Literal["auto"],
    threads: int,
    gpu_memory_mb: int = 0,
    gpu_workers: int = 1,
    name: str | None = None,
) -> Model:
    """Open the model with ``threads`` intra-op threads per batch (0: one per core).

    The device ``auto`` means: the first GPU if CUDA works and the bundle has a variant for it, else
    the CPU. The precision ``auto`` means: the variant that was made for the device.
    ``gpu_memory_mb`` limits what ``gpu_workers`` together take on the GPU that they share; 0 means:
    no limit. ``name`` takes the place of the bundle's own.
    """

    def load_on(place: Device) -> Model:
        place.check()
        variants = VARIANTS[place.provider]
        best = next((p for p in variants if p in bundle.manifest.variants), variants[-1])
        chosen = best if precision == "auto" else precision
        return Model(bundle, chosen, place, threads=threads, gpu_memory_mb=gpu_memory_mb, name=name)

    if device != "auto":
        return load_on(Device.of(device, gpu_workers))
    # The package for CPUs is no reason for a warning: nobody expects a GPU of it.
    if CUDA in ort.get_available_providers() and precision != "int8":
        try:
            return load_on(Device.of("cuda", gpu_workers))
        except UserError as error:
            logger.warning("serving on the CPU: %s", error)
    return load_on(Device.of("cpu"))


WARM_UP_TEXT = "The first batch pays for memory that the next ones find ready."
WARM_UP_BATCHES = (1, 8)  # texts

# A model, and the plan for its runners and batches.
Loaded = tuple[Model, ServingPlan]


def load_all(paths: Iterable[Path], config: EngineConfig, cpus: float) -> dict[str, Loaded]:
    """Load all bundles and return their models by name, in the order of ``paths``."""
    os.environ[PARALLELISM] = "false"  # until there are idle CPUs
    loaded: dict[str, Loaded] = {}
    for path, name in zip_longest(paths, config.served_name):
        model, plan = load(path, config, cpus, name=name)
        if model.name in loaded:
            raise UserError(
                f"two bundles hold a model named {model.name}; give each a --served-name"
            )
        loaded[model.name] = model, plan
    return loaded


def load_as_set(
    path: Path, config: EngineConfig, *, threads: int, name: str | None = None
) -> Model:
    return load_model(
        Bundle.open(path),
        device=config.device,
        precision=config.precision,
        threads=threads,
        gpu_memory_mb=config.gpu_memory_mb,
        gpu_workers=config.gpu_workers,
        name=name,
    )


def load(
    path: Path,
    config: EngineConfig,
    cpus: float,
    plan: ServingPlan | None = None,
    *,
    name: str | None = None,
) -> Loaded:
    """Load the bundle's model and compute its first batches, which show whether it works.

    If a ``plan`` is given, nothing is measured: other models may be computing at the same time.
    """
    threads = plan.threads if plan is not None else 1
    model = load_as_set(path, config, threads=threads, name=name)
    encoding = model.tokenizer.encode(WARM_UP_TEXT)
    try:
        # Each size once on each copy of the model, which take turns.
        sizes = [texts for texts in WARM_UP_BATCHES for _ in range(model.device.copies)]
        results = [result for texts in sizes for result in model.infer([encoding] * texts)]
        if any(isinstance(result, ServiceError) for result in results):
            raise UserError(f"{path}: the model gives no finite logits")
        if plan is None:
            plan = tune(model, config, cpus)
            logger.info("%s: %s (GET /models says why)", model.name, plan.sharing())
        else:
            plan = replace(plan, budget=copy(plan.budget))  # which its own batches lower
    except UserError:  # it is one line for the operator
        raise
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise loading_error(error, f"{path}: ONNX Runtime cannot compute the model") from error
    if model.provider == CUDA:
        # The runners and the event loop use the other CPUs. On the CPU provider, none is idle.
        idle = int(cpus) - plan.runners * plan.threads - 1
        model.tokenizer.texts.divides_lists = use_idle_cpus(idle)
    return model.with_threads(plan.threads), plan


def load_again(
    old: Model, config: EngineConfig, cpus: float, plan: ServingPlan, candidate: Path | None = None
) -> Steps[Loaded]:
    """Load the bundle of ``old``, or a candidate's under the same name. It is one step of a job."""
    yield
    name = old.name if old.renamed or candidate else None
    # With `auto`, a GPU that has no room for a moment must not move the model to the CPU.
    config = replace(config, device=str(old.device))
    return load(candidate or old.path, config, cpus, plan, name=name)
