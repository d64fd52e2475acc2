"""A bundle as the checkpoint that it would be exported from: its weights, read back from a graph.

Of fp32, they are the checkpoint's own. Of int8, they are what the int8 values stand for, so an
export of them has the same int8 values again.
"""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from sentiment_service.engine.model.bundle import SIDE_FILES, Bundle, Precision
from sentiment_service.errors import UserError
from sentiment_service.settings.settings import CheckpointOptions

from sentiment_export.checkpoint.architectures import NotRecognised
from sentiment_export.checkpoint.config import read_config
from sentiment_export.checkpoint.family import Encoder


def options_of(bundle: Bundle) -> CheckpointOptions:
    """What the bundle's manifest says of its checkpoint."""
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
