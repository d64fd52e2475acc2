"""What a checkpoint's files say of themselves: the weights' headers, the tokenizer's JSON."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from app.errors import UserError
from model_export.checkpoint.layout import CONFIG, TOKENIZER, shards
from model_export.checkpoint.weights import Shape, pickled_tensors

# How safetensors spell PyTorch's dtypes; others are kept as spelled.
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
# The tokenizers that have no tokenizer.json, by the files that they have.
KINDS_BY_FILES = {
    ("vocab.json", "merges.txt"): "byte-level BPE",
    ("sentencepiece.bpe.model",): "sentencepiece unigram",
    ("vocab.txt",): "WordPiece",
}


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of one tensor."""

    name: str
    shape: Shape
    dtype: str  # as PyTorch spells it
    file: str

    @property
    def parameters(self) -> int:
        """How many numbers a model could learn: those of a table of ids are none."""
        return prod(self.shape) if "float" in self.dtype else 0


def read_headers(weights: Path) -> list[Header]:
    """Every tensor of a file, or of the shards that an index names; sorted by name.

    Raises:
        UserError: a file is missing, damaged, or holds more than plain tensors.
    """
    headers: dict[str, Header] = {}
    for name in shards(weights):
        path = weights.with_name(name)
        if not path.is_file():
            raise UserError(f"{weights} names {name}, which is missing: copy or download it again")
        found = _safetensors(path) if name.endswith(".safetensors") else _pickled(path)
        headers |= {header.name: header for header in found}
    return [headers[name] for name in sorted(headers)]


def read_tokenizer(path: Path, present: list[str]) -> dict[str, Any]:
    """What the tokenizer's JSON files say; the tokenizer itself is not loaded.

    Raises:
        UserError: one of them is damaged.
    """
    whole, config, special = (
        read_json(path / name) if name in present else {}
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
    )
    alone = (kind for files, kind in KINDS_BY_FILES.items() if set(files) <= set(present))
    try:
        tokens = {
            role: token["content"] if isinstance(token, dict) else token
            for role, token in (config | special).items()
            if role.endswith("_token")
        }
        return {
            "kind": _kind(whole) if whole else next(alone, None),
            "max_tokens": config.get("model_max_length"),
            "special_tokens": {r: token for r, token in tokens.items() if isinstance(token, str)},
            "added_tokens": [t["content"] for t in whole.get("added_tokens", ()) if t["special"]],
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path}: its tokenizer's JSON files are damaged: {error!r}") from error


def read_files(path: Path, present: list[str], weights: str) -> list[dict[str, Any]]:
    """Name, bytes and format of every file; ``weights`` are those that are read."""
    formats = {CONFIG: "config", **dict.fromkeys(TOKENIZER, "tokenizer")}
    formats[weights] = "index of shards"
    for name in shards(path / weights):
        safe = name.endswith(".safetensors")
        formats[name] = "safetensors" if safe else "pickle, read as plain tensors"
    sizes = {name: (path / name).stat().st_size for name in present}
    return [
        {"name": name, "bytes": size, "format": formats.get(name, "not needed")}
        for name, size in sizes.items()
    ]


def read_json(path: Path) -> dict[str, Any]:
    """The object that a file holds.

    Raises:
        UserError: it cannot be read, or holds none.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if not isinstance(held, dict):
        raise UserError(f"cannot read {path}: it is no JSON object")
    return held


def _kind(whole: dict[str, Any]) -> str:
    """Of a tokenizer.json; the oldest ones do not name it."""
    model = whole["model"]
    guess = "Unigram" if isinstance(model["vocab"], list) else "WordPiece"
    kind = model.get("type") or ("BPE" if "merges" in model else guess)
    if kind == "BPE" and "ByteLevel" in json.dumps(whole.get("pre_tokenizer")):
        return "byte-level BPE"
    return "sentencepiece unigram" if kind == "Unigram" else str(kind)


def _safetensors(path: Path) -> Iterator[Header]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - the file is no mapping
                tensor = file.get_slice(name)
                dtype = str(tensor.get_dtype())
                yield Header(name, tuple(tensor.get_shape()), DTYPES.get(dtype, dtype), path.name)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged: {error}; copy or download it again") from error


def _pickled(path: Path) -> Iterator[Header]:
    for name, tensor in pickled_tensors(path, "meta"):
        dtype = str(tensor.dtype).removeprefix("torch.")
        yield Header(str(name), tuple(tensor.shape), dtype, path.name)


def _is_token(token: Any) -> bool:
    return isinstance(token, dict) and "content" in token
