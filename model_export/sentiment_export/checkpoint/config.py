"""Reads and checks config.json, before weights are downloaded or a model is built from it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentiment_service.errors import UserError

from sentiment_export.checkpoint.architectures import find_architecture
from sentiment_export.checkpoint.layout import CONFIG_FILE, read_json

# What changes the computation in a way that the export does not follow, and the one value that
# does not: causal attention, layers with fewer heads than the others.
_FIXED: dict[str, object] = {"is_decoder": False, "add_cross_attention": False, "pruned_heads": {}}


def read_config(directory: Path, where: str) -> dict[str, Any]:
    """The entries of the config.json in ``directory``, checked. Errors name ``where``.

    Raises:
        UserError: the file cannot be read, its architecture is not exported, or an entry makes
            it compute what no export does.
    """
    config = read_json(directory / CONFIG_FILE)
    find_architecture(config.get("model_type"), where)
    _check_entries(config, where)
    return config


def model_config(entries: Mapping[str, Any]) -> Any:
    """The config of transformers that has these entries, which are checked.

    Its own reader would open the file again, and takes no byte order mark.
    """
    from transformers import CONFIG_MAPPING  # only where a model or a tokenizer is made

    return CONFIG_MAPPING[entries["model_type"]].from_dict(dict(entries))


def check_task(config: Mapping[str, Any], where: str) -> None:
    """Check that the config is that of a sequence classifier in floating point.

    Raises:
        UserError: the model was made for another task, or its weights are quantized.
    """
    classes = config.get("architectures") or ()
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in classes):
        raise _wrong(where, "architectures", classes, "a list of class names")
    other = [name for name in classes if "SequenceClassification" not in name]
    if other:
        raise UserError(
            f"{where} is a {other[0]}, not a sequence classifier: fine-tune it first, or give "
            "the checkpoint of a classifier"
        )
    if quantization := config.get("quantization_config"):
        given = quantization.get("quant_method") if isinstance(quantization, dict) else None
        method = given if isinstance(given, str) else "by an unknown method"
        raise UserError(
            f"{where} is quantized ({method[:40]}), and its floating-point weights are lost: give "
            "the checkpoint that it was made from; the export makes its own int8"
        )


def _check_entries(config: Mapping[str, Any], where: str) -> None:
    """Check what transformers takes and the graph cannot have; it refuses the rest itself."""
    for name, value in _FIXED.items():
        if config.get(name) and config[name] != value:
            accepted = f"{json.dumps(value)}, as in an encoder whose layers are all alike"
            raise _wrong(where, name, config[name], accepted)
    padding, rows = config.get("pad_token_id", 0), config.get("vocab_size")
    if type(padding) is not int or not 0 <= padding < (rows if type(rows) is int else math.inf):
        raise _wrong(where, "pad_token_id", padding, f"an id below vocab_size, which is {rows}")


def _wrong(where: str, name: str, value: object, accepted: str) -> UserError:
    text = json.dumps(value, default=str)
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    return UserError(f"{where}: {name} in config.json is {shown}; it must be {accepted}")
