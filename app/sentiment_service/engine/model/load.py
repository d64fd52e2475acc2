"""Load a bundle's model: choose the device and the variant that suits it."""

import logging
from typing import Literal

import onnxruntime as ort

from sentiment_service.engine.machine.gpu import CUDA
from sentiment_service.engine.model.bundle import Bundle, Precision
from sentiment_service.engine.model.device import CPU, Device
from sentiment_service.engine.model.model import Model
from sentiment_service.errors import UserError

# The precisions that `auto` tries on each provider, best first.
VARIANTS: dict[str, tuple[Precision, ...]] = {CPU: ("int8", "fp32"), CUDA: ("fp16", "fp32")}

logger = logging.getLogger(__name__)


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
    the CPU. ``Device.of`` knows the other devices. The precision ``auto`` means: the variant that
    was made for the device. ``gpu_memory_mb`` limits what the sessions of ``gpu_workers`` together
    take on the GPU that they share; 0 means: no limit. ``name`` takes the place of the bundle's
    own.

    Raises:
        UserError: a file is damaged, the variant is not in the bundle, its output does not fit the
            labels, or CUDA was requested and cannot be used.
    """

    def load_on(place: Device) -> Model:
        place.check()
        chosen = _preferred(bundle, place.provider) if precision == "auto" else precision
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


def _preferred(bundle: Bundle, provider: str) -> Precision:
    variants = VARIANTS[provider]
    return next((p for p in variants if p in bundle.manifest.variants), variants[-1])
