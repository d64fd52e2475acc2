"""Reads weights as plain tensors and matches them to the model by name and shape.

Checkpoints on the hub spell the same weights in several ways: TensorFlow's ``gamma`` and
``beta``, prefixes added by a trainer, and extra entries that no classifier reads. A weight that
does not match is an error with its name, both shapes and the likely cause. It is never replaced
by random numbers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from sentiment_service.errors import UserError

from sentiment_export.checkpoint.layout import shards

# Of DataParallel and DistributedDataParallel, of Lightning, and of torch.compile.
TRAINERS_PREFIXES = ("module.", "model.", "_orig_mod.")
# Name parts that PEFT gives to the weights of an adapter, and to those that it stands beside.
ADAPTER = ("lora_", ".base_layer.", "base_model.model.")
# Types whose values are the weights themselves. Integers and 8-bit floats are quantized: without
# their scales, which lie elsewhere, they would be taken for other weights.
READ_DTYPES = ("float32", "float16", "bfloat16", "float64")
NUMBERED_LAYER = re.compile(r"layers?\.\d")


@dataclass(frozen=True, slots=True)
class Fit:
    """How the tensor names in the files match the weight names of the model."""

    names: dict[str, str]  # name in the model -> name in the files
    missing: list[str]  # in the model, but not in the files
    unused: list[str]  # in the files, but not read by the model

    @property
    def renamed(self) -> dict[str, str]:
        """Name in the files -> name in the model, where the two differ."""
        return {key: name for name, key in self.names.items() if key != name}


def fit(model: Any, tensors: Mapping[str, torch.Tensor]) -> Fit:
    """Match the names of the tensors in the files with those of the model; exact matches win."""
    expected: Mapping[str, torch.Tensor] = model.state_dict()
    names: dict[str, str] = {}
    for name in sorted(tensors, key=lambda name: (name not in expected, name)):
        spellings = _spellings(name, model.base_model_prefix)
        spelled = next((s for s in spellings if s in expected), None)
        if spelled is not None and spelled not in names:
            names[spelled] = name
    read = set(names.values())
    return Fit(
        names={name: names[name] for name in expected if name in names},
        missing=[name for name in expected if name not in names],
        unused=[name for name in tensors if name not in read],
    )


def check_fit(fitted: Fit, model: Any, tensors: Mapping[str, torch.Tensor], where: str) -> None:
    """Check that the tensors make up the model that config.json describes.

    Raises:
        UserError: a weight is missing, has another shape, belongs to a layer that the model lacks,
            or is no floating-point number of 16 bits or more. The message names the weight and the
            likely cause.
    """
    expected = model.state_dict()
    for name, key in fitted.names.items():
        found, wanted = list(tensors[key].shape), list(expected[name].shape)
        if found != wanted:
            raise UserError(
                f"{key} is {found} in {where}, but config.json asks for {wanted}: it is probably "
                "from another checkpoint"
            )
    adapter = next((key for key in fitted.unused if any(part in key for part in ADAPTER)), None)
    if adapter is not None:
        raise UserError(
            f"{where} holds {adapter}, a weight of an adapter (PEFT, such as LoRA): merge the "
            "adapter first (merge_and_unload), and save the whole model"
        )
    if fitted.missing:
        raise UserError(_what_is_missing(fitted, where))
    extra = [key for key in fitted.unused if NUMBERED_LAYER.search(key)]
    if extra:
        raise UserError(
            f"{where} holds {extra[0]}, which the model that config.json describes does not "
            "have: the number of layers in config.json is probably from another checkpoint"
        )
    for key in fitted.names.values():
        if (dtype := dtype_name(tensors[key])) not in READ_DTYPES:
            raise UserError(
                f"{key} in {where} is of type {dtype}, probably quantized; give the "
                f"checkpoint from before, with weights in {', '.join(READ_DTYPES)}"
            )


def load_weights(model: Any, weights: Path) -> None:
    """Load the tensors of a file, or of an index's shards, into the model as float32.

    Raises:
        UserError: a file is missing, damaged or holds more than plain tensors, or the
            weights do not fit the model, or one of them is not a finite number.
    """
    tensors = dict(read_tensors(weights))
    fitted = fit(model, tensors)
    check_fit(fitted, model, tensors, weights.name)
    taken = {name: tensors[key].to(torch.float32) for name, key in fitted.names.items()}
    for name, tensor in taken.items():
        if not tensor.isfinite().all():
            raise UserError(
                f"{fitted.names[name]} in {weights.name} holds values that are not finite (NaN, or "
                "infinite in float32): the training probably failed; give another checkpoint"
            )
    model.load_state_dict(taken, assign=True)


def dtype_name(tensor: torch.Tensor) -> str:
    """The type of a tensor's values in PyTorch's spelling, such as ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def read_tensors(weights: Path, device: str = "cpu") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of every entry of a file, or of the shards of an index.

    Tensors are mapped from disk where the format allows it, so those that are not used cost
    no memory. On the device ``meta``, pickled tensors have no contents and none are read.

    Raises:
        UserError: a file is missing, damaged, or holds more than plain tensors.
    """
    for file in shards(weights):
        path = weights.with_name(file)
        if not path.is_file():
            raise UserError(f"{weights} names {file}, which is missing: copy or download it again")
        yield from _safetensors(path) if path.suffix == ".safetensors" else _pickled(path, device)


def _safetensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - the file is not a mapping
                yield name, file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged: {error}; copy or download it again") from error


def _pickled(path: Path, device: str) -> Iterable[tuple[str, torch.Tensor]]:
    """The tensors of a pickle. Its code never runs: torch reads the tensors and nothing else."""
    try:
        try:
            loaded = torch.load(path, map_location=device, weights_only=True, mmap=True)
        except RuntimeError:  # files from before PyTorch 1.6 cannot be mapped
            loaded = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises whatever unpickling and unzipping raise
        raise UserError(
            f"{path} is damaged or holds more than plain tensors, and code in it is never run: "
            "copy or download it again, or save it as safetensors"
        ) from error
    entries = loaded.items() if isinstance(loaded, dict) else ()
    if not entries or not all(isinstance(tensor, torch.Tensor) for _, tensor in entries):
        raise UserError(
            f"{path} holds no dictionary of tensors (state dict): save model.state_dict()"
        )
    return entries


def _spellings(name: str, base_prefix: str) -> Iterator[str]:
    """Every model name that this entry may stand for, the likeliest first."""
    while True:
        plain = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        plain = plain.replace("LayerNorm.beta", "LayerNorm.bias")
        yield plain
        yield f"{base_prefix}.{plain}"
        prefix = next((prefix for prefix in TRAINERS_PREFIXES if name.startswith(prefix)), None)
        if prefix is None:
            return
        name = name.removeprefix(prefix)


def _what_is_missing(fitted: Fit, where: str) -> str:
    missing = fitted.missing
    listed = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    if not fitted.names:
        return (
            f"{where} lacks {listed}; it has {fitted.unused[0]}, for example: save the state dict "
            "of the classifier alone, without what was built around it"
        )
    if any("classifier" in name or "pooler" in name for name in missing):
        return (
            f"{where} is not a complete sequence classifier: it lacks {listed}; fine-tune it "
            "first, or give the checkpoint of a classifier"
        )
    return (
        f"{where} lacks {listed}: the file is cut short, or the number of layers in "
        "config.json is from another checkpoint"
    )
