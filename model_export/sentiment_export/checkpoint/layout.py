"""Which files of a checkpoint are read (config, tokenizer, and weights or an ONNX graph), and where
the hub's cache has them.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from sentiment_service.engine.model.bundle import CACHED, MANIFEST
from sentiment_service.errors import UserError, first_line

from sentiment_export.checkpoint.architectures import ARCHITECTURES

CONFIG_FILE = "config.json"
ADAPTER_FILE = "adapter_config.json"
# What SetFit saves beside an encoder: a classifier of scikit-learn, or of its own.
SETFIT_FILES = ("model_head.pkl", "model_head.skops", "config_setfit.json")
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
# Weights that transformers 4 reads with this argument.
_OF_OTHERS = {"tf_model.h5": "from_tf", "flax_model.msgpack": "from_flax"}
GRAPH = ".onnx"
# The fp32 graph of a directory that has several: Optimum's name, and transformers.js's.
FP32_GRAPHS = ("model.onnx", "onnx/model.onnx")
# The first line of what Git leaves in place of a large file, before Git LFS fetches the file.
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
DATES = "commit-dates"  # our own notes beside the hub client's refs and snapshots
DEFAULT_REVISION = "main"
COMMIT = re.compile(r"[0-9a-f]{40}")


def choose_files(
    names: Iterable[str], where: str, onnx: str | None = None
) -> tuple[list[str], str]:
    """The config and tokenizer files, and the weights: one file, an index of shards, or a graph.

    ``names`` are those of a checkpoint's files. ``onnx`` is the graph to read in the place of
    weights (``--onnx``); "" is the one fp32 graph where there are no weights, and None takes none.
    """
    held = set(names)
    weights = next((name for name in WEIGHT_FILES if name in held), None)
    if onnx or (onnx is not None and weights is None and MANIFEST not in held):
        weights = _choose_graph(held, where, onnx) or weights
    if ADAPTER_FILE in held:
        raise UserError(
            f"{where} holds an adapter of PEFT: merge it first (merge_and_unload), and save the "
            f"whole model; to leave the adapter out of a model, remove {ADAPTER_FILE}"
        )
    if setfit := next((name for name in SETFIT_FILES if name in held), None):
        raise UserError(
            f"{where} holds {setfit}, so it is a model of SetFit, whose classifier is not in its "
            "weights: fine-tune a sequence classifier on the same texts (sentiment-export finetune)"
        )
    if CONFIG_FILE not in held:
        fault = f"{where} has no {CONFIG_FILE}, so it is not a checkpoint"
        files = [name.rpartition("/") for name in held]
        whole = {one for one, _, file in files if file in WEIGHT_FILES or file.endswith(GRAPH)}
        whole &= {one for one, _, file in files if file == CONFIG_FILE}
        if whole:  # of a Trainer's, the newest have the largest numbers
            newest = ", ".join(sorted(whole, key=lambda one: (len(one), one))[-3:])
            fault += f"; there is one in {newest}: give this directory, or a local copy of it"
        raise UserError(fault)
    if weights is None and MANIFEST in held:
        raise UserError(
            f"{where} is a bundle, which is what an export makes; serve it with --model"
        )
    if weights is None:
        unread = (".h5", ".msgpack", ".ckpt.index", ".gguf", ".safetensors", ".ort", GRAPH)
        other = sorted(name for name in held if name.endswith(unread))
        instead = f"; {', '.join(other[:3])} cannot be read" if other else ""
        if way := next((way for name, way in _OF_OTHERS.items() if name in held), None):
            instead += f": load it in transformers 4 with {way}=True, and save the model"
        raise UserError(
            f"{where} has no weights: one of {', '.join(WEIGHT_FILES)} is needed{instead}"
        )
    return [CONFIG_FILE, *(name for name in TOKENIZER_FILES if name in held)], weights


def _choose_graph(held: set[str], where: str, wanted: str) -> str | None:
    """The graph that is ``wanted``, or the only fp32 one; None if there are no graphs."""
    graphs = sorted(name for name in held if name.endswith(GRAPH))
    if wanted:
        name = PurePosixPath(wanted).as_posix()
        if name in graphs:
            return name
        listed = f"; it has {', '.join(graphs)}" if graphs else ""
        raise UserError(f"{where} has no ONNX file {wanted} (--onnx){listed}")
    chosen = [name for name in FP32_GRAPHS if name in graphs] or graphs
    if len(chosen) > 1:
        raise UserError(
            f"{where} has {len(graphs)} ONNX graphs: choose one of {', '.join(graphs)} with --onnx"
        )
    return chosen[0] if chosen else None


def names_in(path: Path) -> list[str]:
    """The names of the files in a directory, and of the ONNX files in the directories in it."""
    found = [*path.iterdir(), *path.glob(f"*/*{GRAPH}")]
    return [file.relative_to(path).as_posix() for file in found if file.is_file()]


def weight_files(path: Path, weights: str) -> list[str]:
    """The names of all files in ``path`` that hold weights: ``weights``, its shards or its data."""
    if not weights.endswith(GRAPH):
        return list(dict.fromkeys([weights, *shards(path / weights)]))
    from sentiment_export.checkpoint.graph_file import data_files, read_model  # needs onnx

    folder, graph = PurePosixPath(weights).parent, path / weights
    return [weights, *(str(folder / name) for name in data_files(read_model(graph), graph))]


def choose_local_files(path: Path, onnx: str | None = None) -> tuple[list[str], str]:
    """The same as ``choose_files`` for a local checkpoint directory, whose files are there."""
    if not path.is_dir():
        raise UserError(f"{path} is not a directory; give a local checkpoint directory")
    names = names_in(path)
    if CONFIG_FILE not in names:  # a Trainer's directory has its checkpoints in others
        names += [str(file.relative_to(path)) for file in path.glob("*/*")]
    side_files, weights = choose_files(names, str(path), onnx)
    pointers = [name for name in (*side_files, weights) if _is_pointer(path / name)]
    if weights not in pointers:
        pointers += [name for name in weight_files(path, weights) if _is_pointer(path / name)]
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
    """The JSON object in a file, which may begin with a byte order mark."""
    try:
        held = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read {path}: {first_line(error)}{cure(path)}") from error
    if not isinstance(held, dict):
        raise UserError(f"cannot read {path}: it is not a JSON object{cure(path)}")
    return held


def shards(weights: Path) -> list[str]:
    """The files that hold the tensors: ``weights`` itself, or the shards of an index."""
    if not weights.name.endswith(".index.json"):
        return [weights.name]
    listed = read_json(weights).get("weight_map")
    names = set(map(str, listed.values())) if isinstance(listed, dict) else set()
    if not names or any(Path(name).name != name for name in names):
        raise UserError(f"{weights} names no shards, or some that are not in its own directory")
    return sorted(names)


def origin(path: Path) -> tuple[str, str] | None:
    """Hub id and commit, if the path is that of a snapshot in a hub cache. No file is read."""
    commit, snapshots, model = [*reversed(path.absolute().parts), "", "", ""][:3]
    if snapshots != "snapshots" or not model.startswith(CACHED) or not COMMIT.fullmatch(commit):
        return None
    return model.removeprefix(CACHED).replace("--", "/"), commit


def cure(path: Path, elsewhere: str = "") -> str:
    """What helps if this file is damaged, as the end of an error.

    The hub's client takes what its cache holds for whole, and downloads it only if it is not there.
    Several models of a cache may share a file.
    """
    if not any(map(origin, path.absolute().parents)):
        return elsewhere
    return f"; delete {path.resolve()} and download it again"


def commit_date(path: Path) -> str | None:
    """When the commit of a snapshot in a hub cache was made (ISO 8601), if the hub has said it."""
    note = path.parent.parent / DATES / path.name
    return note.read_text(encoding="utf-8") if note.is_file() else None


def check_revision(revision: str | None) -> None:
    """Check that a revision can be one, since it becomes a part of a path in the cache."""
    if revision is not None and (not revision or ".." in revision or revision.startswith("/")):
        raise UserError(f"{revision!r} is not a revision; give a branch, a tag or a commit")


def of_cache(model: Path, revision: str) -> Path:
    snapshot = snapshot_of(model, revision)
    if snapshot is None:
        refs = (path for path in (model / "refs").rglob("*") if path.is_file())
        held = [path.relative_to(model / "refs").as_posix() for path in refs]
        held += [path.name for path in (model / "snapshots").iterdir()]
        raise UserError(
            f"{model} has no revision {revision}; it holds {', '.join(sorted(held)) or 'none'}"
        )
    return snapshot


def snapshot_of(model: Path, revision: str) -> Path | None:
    ref = model / "refs" / revision
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else revision
    snapshot = model / "snapshots" / commit
    return snapshot if COMMIT.fullmatch(commit) and snapshot.is_dir() else None


def is_complete(snapshot: Path, onnx: str | None) -> bool:
    try:
        _, weights = choose_files(names_in(snapshot), str(snapshot), onnx)
        return all((snapshot / name).is_file() for name in weight_files(snapshot, weights))
    except UserError:
        return False
