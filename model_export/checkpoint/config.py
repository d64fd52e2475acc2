"""Reads and checks config.json, before weights are downloaded or a model is built from it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.errors import UserError
from model_export.checkpoint.architectures import find_architecture
from model_export.checkpoint.layout import CONFIG_FILE, read_json

# Entries by what they hold. Architectures spell some of them in their own way. The largest sizes
# are far beyond those of published encoders; they keep a damaged file from filling the memory.
_SIZES = {
    **dict.fromkeys(("num_hidden_layers", "n_layers"), (1, 256)),
    **dict.fromkeys(("num_attention_heads", "n_heads"), (1, 256)),
    **dict.fromkeys(("hidden_size", "dim", "embedding_size"), (1, 2**15)),
    **dict.fromkeys(("intermediate_size", "hidden_dim"), (1, 2**17)),
    "vocab_size": (1, 2**22),
    "max_position_embeddings": (1, 2**20),
    "type_vocab_size": (0, 256),
    "num_labels": (1, 2**15),
    # of ALBERT, BigBird, ModernBERT and MPNet
    **dict.fromkeys(("num_hidden_groups", "inner_group_num"), (1, 256)),
    "block_size": (1, 2**20),
    "num_random_blocks": (0, 2**10),
    "local_attention": (1, 2**20),
    "global_attn_every_n_layers": (1, 256),
    "relative_attention_num_buckets": (1, 2**20),
}
_UNTYPED = ("deberta", "deberta-v2")  # these can do without token types
_EPSILONS = ("layer_norm_eps", "norm_eps")
_GELUS = ("gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh", "quick_gelu")
_ACTIVATIONS = (*_GELUS, "mish", "relu", "relu2", "sigmoid", "silu", "swish", "tanh")
_CHOICES: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("hidden_act", "activation", "hidden_activation"), _ACTIVATIONS),
    **dict.fromkeys(("pooler_hidden_act", "classifier_activation"), _ACTIVATIONS),
    **dict.fromkeys(("dtype", "torch_dtype"), ("float32", "float16", "bfloat16", "float64", None)),
    "attention_type": ("block_sparse", "original_full"),
    "classifier_pooling": ("cls", "mean"),
}
# What changes the computation in a way that the export does not follow, and the one value that
# does not: causal attention, layers with fewer heads than the others.
_FIXED: dict[str, object] = {"is_decoder": False, "add_cross_attention": False, "pruned_heads": {}}
_OPTIONAL_DROPOUTS = ("classifier_dropout", "cls_dropout")
_WIDTHS = (("hidden_size", "num_attention_heads"), ("dim", "n_heads"))


def read_config(directory: Path, where: str) -> dict[str, Any]:
    """The entries of the config.json in ``directory``, checked. Errors name ``where``.

    Raises:
        UserError: the file cannot be read, its architecture is not exported, or an entry from
            which the model is built has a wrong type or size.
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
    for name, (least, most) in _SIZES.items():
        if name in config and not _is_whole(config[name], least, most):
            raise _wrong(where, name, config[name], f"a whole number from {least} to {most}")
    if config.get("type_vocab_size") == 0 and config["model_type"] not in _UNTYPED:
        raise _wrong(where, "type_vocab_size", 0, "1 or more in this architecture")
    for name in _EPSILONS:
        value = config.get(name, 1e-5)
        if not isinstance(value, float | int) or not 0 < value < 1:
            raise _wrong(where, name, value, "a number between 0 and 1")
    for name, choices in _CHOICES.items():
        if name in config and config[name] not in choices:
            listed = ", ".join(str(choice or "null") for choice in choices)
            raise _wrong(where, name, config[name], f"one of {listed}")
    for name, value in _FIXED.items():
        if config.get(name) and config[name] != value:
            accepted = f"{json.dumps(value)}, as in an encoder whose layers are all alike"
            raise _wrong(where, name, config[name], accepted)
    for name, value in config.items():
        if name.endswith(("dropout", "dropout_prob")) and not _is_dropout(name, value):
            raise _wrong(where, name, value, "a number from 0 to 1")
    rows = config.get("vocab_size", _SIZES["vocab_size"][1])
    if "pad_token_id" in config and not _is_whole(config["pad_token_id"], 0, rows - 1):
        accepted = f"the id of the padding token, a whole number from 0 to {rows - 1}"
        raise _wrong(where, "pad_token_id", config["pad_token_id"], accepted)
    for width, heads in _WIDTHS:
        if config.get(width, 0) % config.get(heads, 1):
            accepted = f"a multiple of {heads}, which is {config[heads]}"
            raise _wrong(where, width, config[width], accepted)


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_dropout(name: str, value: object) -> bool:
    if value is None:
        return name in _OPTIONAL_DROPOUTS
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _wrong(where: str, name: str, value: object, accepted: str) -> UserError:
    text = json.dumps(value, default=str)
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    return UserError(f"{where}: {name} in config.json is {shown}; it must be {accepted}")
