"""The files of a checkpoint that are read: config, tokenizer and one format of the weights."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app.engine.model.bundle import MANIFEST
from app.errors import UserError, first_line
from model_export.checkpoint.architectures import ARCHITECTURES

CONFIG_FILE = "config.json"
ADAPTER_FILE = "adapter_config.json"
# Files that the tokenizers of the architectures may use; each may be absent.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    *dict.fromkeys(
        name
        for architecture in ARCHITECTURES.values()
        for files in architecture.tokenizers
        for name in files.names
    ),
)
# Preferred first: safetensors hold only tensors. An index names the shards of a large model.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# The first line of what Git leaves in place of a large file, before Git LFS fetches the file.
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def check_directory(path: Path) -> None:
    """Return if ``path`` is a directory.

    Raises:
        UserError: it is not.
    """
    if not path.is_dir():
        raise UserError(f"{path} is not a directory; give a local checkpoint directory")


def choose_files(names: Iterable[str], where: str) -> tuple[list[str], str]:
    """Choose the files to read from the file names of a checkpoint.

    Returns:
        The config and tokenizer files, and the weights: one file, or the index of the shards.

    Raises:
        UserError: config or weights are missing; the message names ``where``.
    """
    held = set(names)
    weights = next((name for name in WEIGHT_FILES if name in held), None)
    if ADAPTER_FILE in held:
        alone = weights is None or CONFIG_FILE not in held
        raise UserError(
            f"{where} holds an adapter of PEFT {'without' if alone else 'beside'} its model: merge "
            "the adapter first (merge_and_unload), and save the whole model"
            + ("" if alone else f"; to leave the adapter out, remove {ADAPTER_FILE}")
        )
    if CONFIG_FILE not in held:
        raise UserError(f"{where} has no {CONFIG_FILE}, so it is not a checkpoint")
    if weights is None and MANIFEST in held:
        raise UserError(
            f"{where} is a bundle, which is what an export makes: {MANIFEST} and README.md in it "
            "say what it holds; serve it with --model"
        )
    if weights is None:
        other = sorted(n for n in held if n.endswith((".h5", ".msgpack", ".ckpt.index", ".onnx")))
        instead = f"; {', '.join(other[:3])} cannot be read" if other else ""
        raise UserError(
            f"{where} has no weights: one of {', '.join(WEIGHT_FILES)} is needed{instead}"
        )
    return [CONFIG_FILE, *(name for name in TOKENIZER_FILES if name in held)], weights


def choose_local_files(path: Path) -> tuple[list[str], str]:
    """The same as ``choose_files`` for a local checkpoint directory, whose files are there.

    Raises:
        UserError: config or weights are missing, one of the files is a pointer of Git LFS, or a
            link leads nowhere.
    """
    held = (file.name for file in path.iterdir() if file.is_file() or file.is_symlink())
    side_files, weights = choose_files(held, str(path))
    chosen = [*side_files, weights]
    for name in chosen:  # in a hub's cache, the files are links
        if not (path / name).exists():
            raise UserError(
                f"{path / name} is a link to {(path / name).readlink()}, which is missing: "
                "download or copy the checkpoint again"
            )
    pointers = [name for name in chosen if _is_pointer(path / name)]
    if weights not in pointers:
        pointers += [name for name in shards(path / weights) if _is_pointer(path / name)]
    if pointers:
        raise UserError(
            f"{path} holds pointers of Git LFS instead of files ({', '.join(pointers[:3])}): run "
            "`git lfs pull` there"
        )
    return side_files, weights


def _is_pointer(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, which may begin with a byte order mark.

    Raises:
        UserError: the file cannot be read, or holds something else.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {first_line(error)}") from error
    if not isinstance(held, dict):
        raise UserError(f"cannot read {path}: it is not a JSON object")
    return held


def shards(weights: Path) -> dict[str, list[str]]:
    """The files that hold the tensors: ``weights`` itself, or the shards of an index.

    Returns:
        The tensors that the index says are in each file; none are said of ``weights`` itself.

    Raises:
        UserError: the index cannot be read, or names a file outside its directory.
    """
    if not weights.name.endswith(".index.json"):
        return {weights.name: []}
    listed: dict[str, list[str]] = {}
    try:
        for tensor, name in json.loads(weights.read_text(encoding="utf-8"))["weight_map"].items():
            listed.setdefault(name, []).append(tensor)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"cannot read {weights}: {error!r}") from error
    if not listed or any(not isinstance(name, str) or Path(name).name != name for name in listed):
        raise UserError(f"{weights} names shards that are not files in its own directory")
    return dict(sorted(listed.items()))
