"""Reads facts from a checkpoint's files without loading weights or tokenizer."""

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from app.errors import UserError
from model_export.checkpoint.architectures import TokenizerFiles
from model_export.checkpoint.layout import CONFIG_FILE, TOKENIZER_FILES, read_json, shards
from model_export.checkpoint.weights import Shape, dtype_name, read_tensors


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, shape and type of one tensor in a weights file."""

    name: str
    shape: Shape
    dtype: str  # in PyTorch's spelling
    file: str

    @property
    def parameters(self) -> int:
        """Number of trainable values; integer tensors such as ``position_ids`` have none."""
        return prod(self.shape) if "float" in self.dtype else 0


def list_tensors(weights: Path) -> list[TensorInfo]:
    """Every tensor of a file, or of the shards that an index names; sorted by name.

    Raises:
        UserError: a file is missing, damaged, or holds more than plain tensors.
    """
    tensors = {
        name: TensorInfo(name, tuple(tensor.shape), dtype_name(tensor), file)
        for file, name, tensor in read_tensors(weights, device="meta")
    }
    return [tensors[name] for name in sorted(tensors)]


def read_tokenizer(path: Path, present: list[str], source: TokenizerFiles | None) -> dict[str, Any]:
    """Facts from the tokenizer's JSON files, without loading the tokenizer.

    ``source`` are the files from which a missing tokenizer.json is made.

    Raises:
        UserError: a JSON file is damaged.
    """
    whole, config, special = (
        read_json(path / name) if name in present else {}
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
    )
    try:
        tokens = {
            role: token["content"] if isinstance(token, dict) else token
            for role, token in (config | special).items()
            if role.endswith("_token")
        }
        return {
            "kind": _kind(whole) if whole else source.kind if source else None,
            "max_tokens": config.get("model_max_length"),
            "special_tokens": {r: token for r, token in tokens.items() if isinstance(token, str)},
            "added_tokens": [t["content"] for t in whole.get("added_tokens", ()) if t["special"]],
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path}: its tokenizer's JSON files are damaged: {error!r}") from error


def read_files(path: Path, present: list[str], weights: str) -> list[dict[str, Any]]:
    """Name, size in bytes and format of every file; ``weights`` names the weights to read."""
    formats = {CONFIG_FILE: "config", **dict.fromkeys(TOKENIZER_FILES, "tokenizer")}
    formats[weights] = "index of shards"
    for name in shards(path / weights):
        safe = name.endswith(".safetensors")
        formats[name] = "safetensors" if safe else "pickle, read as plain tensors"
    sizes = {name: (path / name).stat().st_size for name in present}
    return [
        {"name": name, "bytes": size, "format": formats.get(name, "not needed")}
        for name, size in sizes.items()
    ]


def _kind(whole: dict[str, Any]) -> str:
    """The tokenizer's kind from tokenizer.json; the oldest files do not name it."""
    model = whole["model"]
    guess = "Unigram" if isinstance(model["vocab"], list) else "WordPiece"
    kind = model.get("type") or ("BPE" if "merges" in model else guess)
    if kind == "BPE" and "ByteLevel" in json.dumps(whole.get("pre_tokenizer")):
        return "byte-level BPE"
    return "sentencepiece unigram" if kind == "Unigram" else str(kind)
