"""Matches the tensors in weight files to the weights of a model, by name and shape.

Checkpoints on the hub spell the same weights in several ways: TensorFlow's ``gamma`` and
``beta``, prefixes added by a trainer, and extra entries that no classifier reads. A weight that
does not match is an error with its name, both shapes and the likely cause. It is never replaced
by random numbers.

``write_checkpoint`` writes a bundle as the checkpoint that it would be exported from, with weights
read back from a graph. Of fp32, they are the checkpoint's own. Of int8, they are what the int8
values stand for, so an export of them has the same int8 values again.
"""

import json
import mmap
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from sentiment_service.engine.model.bundle import SIDE_FILES, Bundle, Precision
from sentiment_service.errors import UserError
from sentiment_service.settings.settings import CheckpointOptions

from sentiment_export.checkpoint.architectures import NotRecognised
from sentiment_export.checkpoint.config import read_config
from sentiment_export.checkpoint.family import Encoder, Shape
from sentiment_export.checkpoint.tensor_files import Tensor

# Of DataParallel and DistributedDataParallel, of Lightning, and of torch.compile.
TRAINERS_PREFIXES = ("module.", "model.", "_orig_mod.")
# Name parts that PEFT gives to the weights of an adapter, and to those that it stands beside.
ADAPTER = ("lora_", ".base_layer.", "base_model.model.")
# Types whose values are the weights themselves. Integers and 8-bit floats are quantized: without
# their scales, which lie elsewhere, they would be taken for other weights.
READ_DTYPES = ("float32", "float16", "bfloat16", "float64")
OF_A_LAYER = re.compile(r"layers?\.\d")
ANYTHING = re.compile("(?s).*")


@dataclass(frozen=True, slots=True)
class Weights(Mapping[str, NDArray[Any]]):
    """Weights as float32 under the names of the model; each is read when it is asked for.

    ``added`` rows are appended to the weight of a name: copies of one of its rows.
    """

    tensors: Mapping[str, Tensor]
    names: Mapping[str, str]  # name in the model -> name in the files
    where: str
    added: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # row, how many copies

    def __getitem__(self, name: str) -> NDArray[Any]:
        key = self.names[name]
        values = self.tensors[key].read()
        if not np.isfinite(values).all():
            raise UserError(
                f"{key} in {self.where} holds values that are not finite (NaN, or infinite in "
                "float32): the training probably failed; give another checkpoint"
            )
        if name in self.added:
            row, copies = self.added[name]
            values = np.concatenate([values, np.repeat(values[row : row + 1], copies, axis=0)])
        return values

    def release(self) -> None:
        """Give back the memory of what was read. It is read again if it is asked for."""
        for data in {id(tensor.data): tensor.data for tensor in self.tensors.values()}.values():
            data.madvise(mmap.MADV_DONTNEED)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def fit(
    expected: Mapping[str, Shape], prefix: str, tensors: Mapping[str, Tensor]
) -> dict[str, str]:
    """The name in the files of each ``expected`` weight that is there; exact matches win."""
    names: dict[str, str] = {}
    for name in sorted(tensors, key=lambda name: (name not in expected, name)):
        spelled = next((s for s in _spellings(name, prefix) if s in expected), None)
        if spelled is not None and spelled not in names:
            names[spelled] = name
    return {name: names[name] for name in expected if name in names}


def unread(names: Mapping[str, str], tensors: Iterable[str]) -> list[str]:
    """The tensors in the files that the model does not read."""
    read = set(names.values())
    return [key for key in tensors if key not in read]


def check_fit(
    names: Mapping[str, str],
    expected: Mapping[str, Shape],
    tensors: Mapping[str, Tensor],
    where: str,
    known_unused: re.Pattern[str] = ANYTHING,
) -> None:
    """Check that the tensors, as ``fit`` has named them, make up what config.json describes."""
    unused = unread(names, tensors)
    # First: quantized weights can have other shapes, and others beside them.
    for key in names.values():
        if (dtype := tensors[key].dtype) not in READ_DTYPES:
            raise UserError(
                f"{key} in {where} is of type {dtype}, probably quantized; give the "
                f"checkpoint from before, with weights in {', '.join(READ_DTYPES)}"
            )
    for name, key in names.items():
        found, wanted = list(tensors[key].shape), list(expected[name])
        if found != wanted:
            raise UserError(
                f"{key} is {found} in {where}, but config.json asks for {wanted}: it is probably "
                "from another checkpoint"
            )
    adapter = next((key for key in unused if any(part in key for part in ADAPTER)), None)
    if adapter is not None:
        raise UserError(
            f"{where} holds {adapter}, a weight of an adapter (PEFT, such as LoRA): merge the "
            "adapter first (merge_and_unload), and save the whole model"
        )
    if missing := [name for name in expected if name not in names]:
        instead = unused[0] if unused and not names else ""
        raise UserError(_what_is_missing(missing, instead, where))
    extra = [key for key in unused if OF_A_LAYER.search(key)]
    if extra:
        raise UserError(
            f"{where} holds {extra[0]}, which the model that config.json describes does not "
            "have: the number of layers in config.json is probably from another checkpoint"
        )
    if unknown := [key for key in unused if not known_unused.fullmatch(key)]:
        raise UserError(
            f"{where} holds {unknown[0]}, which is not a weight of the classifier that config.json "
            "describes; if no logit depends on it, load the checkpoint in "
            "AutoModelForSequenceClassification of transformers and save it again, which drops it"
        )


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


def _what_is_missing(missing: Sequence[str], instead: str, where: str) -> str:
    listed = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    if instead:
        return (
            f"{where} lacks {listed}; it has {instead}, for example: save the state dict of the "
            "classifier alone, without what was built around it"
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


def options_of(bundle: Bundle) -> CheckpointOptions:
    manifest = bundle.manifest
    return CheckpointOptions(
        labels=tuple(manifest.labels),
        preprocessing=manifest.preprocessing,
        text_pairs=manifest.text_pairs,
        max_tokens=manifest.max_tokens,
        languages=tuple(manifest.languages or filter(None, [manifest.language])),
    )


def write_checkpoint(bundle: Bundle, directory: Path) -> None:
    """Write a checkpoint with the weights of the bundle's fp32 graph, or else of its int8 one."""
    from safetensors.numpy import save_file  # of the extra torch

    config = read_config(bundle.path, str(bundle.path))
    source, held_variants = bundle.manifest.source, bundle.manifest.variants
    if not {"fp32", "int8"} & {*held_variants}:
        raise UserError(
            f"{bundle.path} holds only {', '.join(held_variants)}, from which weights are not read "
            f"back: give the checkpoint, {source.repo_id or source.path}"
        )
    precision: Precision = "fp32" if "fp32" in held_variants else "int8"
    try:
        encoder = Encoder.of(config, len(bundle.manifest.labels))
        graph = onnx.load(bundle.variant_path(precision)).graph
        held = _renamed({t.name: numpy_helper.to_array(t) for t in graph.initializer}, encoder)
        weights = {
            name: np.ascontiguousarray(_weight(name, shape, held, encoder), np.float32)
            for name, shape in encoder.weights.items()
        }
    except (NotRecognised, KeyError, ValueError) as error:
        raise UserError(
            f"the weights of {bundle.path} cannot be read back from its {precision} graph "
            f"({error}): give the checkpoint, {source.repo_id or source.path}"
        ) from error
    for name in SIDE_FILES:
        shutil.copyfile(bundle.path / name, directory / name)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(weights, directory / "model.safetensors")


def _renamed(held: Mapping[str, Any], encoder: Encoder) -> dict[str, Any]:
    """The constants under the names of today; those of 0.2.0 had some others for int8."""
    words = f"{encoder.family.prefix}.embeddings.word_embeddings.weight"
    found = {}
    for name, values in held.items():
        plain = name.removeprefix("int8.")
        plain = re.sub("^word_embedding(?=$|_)", f"{words}_int8", plain)
        plain = plain.replace("weight_int8_scale", "weight_scale")
        if layer := re.fullmatch(r"layer\.(\d+)\.attention_output\.bias", plain):
            place = encoder.layers[int(layer[1])]
            plain = f"{place}.{encoder.family.layer.attention_output}.bias_folded"
        found[plain] = values
    return found


def _weight(
    name: str, shape: tuple[int, ...], held: Mapping[str, Any], encoder: Encoder
) -> np.ndarray:
    """A weight of the checkpoint, undoing what ``graph.classifier`` did to it."""
    layer, (module, _, kind) = encoder.family.layer, name.rpartition(".")
    if name in held:
        values = held[name]
    elif f"{name}.T" in held:
        values = held[f"{name}.T"].T
    elif f"{name}_int8" in held:
        values = held[f"{name}_int8"] * held[f"{module}.weight_scale"]
        values = values if module.endswith("word_embeddings") else values.T
    elif f"{name}.0" in held:  # token types, of which only the first is read
        values = np.broadcast_to(held[f"{name}.0"], shape)
    elif f"{name}_folded" in held:
        values = held[f"{name}_folded"]
    elif kind == "bias" and module.endswith((layer.key, layer.value)):
        # Softmax ignores the key's. The value's is in the folded one, which must be there.
        place = next(place for place in encoder.layers if module.startswith(f"{place}."))
        values = np.zeros_like(held[f"{place}.{layer.attention_output}.bias_folded"])
    else:
        raise KeyError(f"it has no {name}")
    if values.shape != shape:
        raise ValueError(f"{name} is {values.shape}, not {shape}")
    return np.asarray(values)
