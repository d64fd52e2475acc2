"""Makes checkpoints with random weights and exports them. What exists is not made again.

Needs the packages of the exporter. The bundles can be made on another machine and carried.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu_check.setup import Setup
from benchmarks.tables import Row

FUSIONS_FILE = "fusions.json"
NONE, ALL = "none", "all"


def run(setup: Setup) -> Iterator[Row]:
    """Make the bundles of all shapes, and the fp16 graphs of the first shape with each fusion."""
    setup.work.mkdir(parents=True, exist_ok=True)
    for shape in setup.size.shapes:
        yield {"shape": shape, **_bundle(setup, shape)}
    first = next(iter(setup.size.shapes))
    yield {"shape": first, "made": ", ".join(_fusions(setup, first))}


def _bundle(setup: Setup, shape: str) -> Row:
    bundle, checkpoint = setup.bundle(shape), setup.work / shape
    if bundle.exists():
        return {"made": "earlier"}
    from benchmarks.random_checkpoint import random_checkpoint, timed_export

    if not checkpoint.exists():
        model_type, config = setup.size.shapes[shape]
        partial = checkpoint.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        random_checkpoint(partial, model_type, **config).rename(checkpoint)
    seconds, memory_gb = timed_export(checkpoint, bundle, "--precision", "fp32,fp16")
    return {"made": "fp32, fp16", "s": seconds, "GB of memory": memory_gb}


def _fusions(setup: Setup, shape: str) -> list[str]:
    """Write fp16 without fusions, with each alone and with all; returns what was written."""
    directory = setup.fusions(shape)
    if not (directory / FUSIONS_FILE).exists():
        _write_fusions(setup.work / shape, directory)
    return list(json.loads((directory / FUSIONS_FILE).read_text(encoding="utf-8")))


def _write_fusions(checkpoint: Path, directory: Path) -> None:
    from model_export.checkpoint.checkpoint import load_checkpoint
    from model_export.graph.variants import FUSIONS, export_graph, write_fp16

    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    plain = export_graph(load_checkpoint(checkpoint), directory)
    choices = {NONE: (), **{name: (name,) for name in FUSIONS}, ALL: tuple(FUSIONS)}
    for name, fusions in choices.items():
        write_fp16(plain, directory / f"{name}.onnx", fusions=fusions)
    with contextlib.suppress(FileNotFoundError):
        for path in directory.glob("plain.onnx*"):
            path.unlink()
    files = {name: f"{name}.onnx" for name in choices}
    (directory / FUSIONS_FILE).write_text(json.dumps(files), encoding="utf-8")
