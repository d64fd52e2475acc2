"""Makes checkpoints with random weights and exports them. What exists is not made again.

Needs the packages of the exporter. The bundles can be made on another machine and carried.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from app.engine.model.bundle import MANIFEST, sha256
from benchmarks.tables import Row
from checks.gpu.setup import Setup

NONE, ALL = "none", "all"  # choices of fusions, beside each of them
FP16 = "onnx/model_fp16.onnx"


def run(setup: Setup) -> Iterator[Row]:
    """Make the bundles of all shapes. The first one is also made with each choice of fusions."""
    setup.work.mkdir(parents=True, exist_ok=True)
    for number, shape in enumerate(setup.size.shapes):
        yield {"shape": shape, **_bundle(setup, shape)}
        if number == 0:
            yield {"shape": shape, "made": "fusions: " + ", ".join(_fusions(setup, shape))}


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
    """Write a bundle with fp16 without fusions, with each alone and with all; returns the names."""
    directory = setup.fusions(shape)
    if not directory.exists():
        partial = directory.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        write_fusions(setup.work / shape, setup.bundle(shape), partial)
        partial.rename(directory)
    return sorted(path.name for path in directory.iterdir())


def write_fusions(checkpoint: Path, bundle: Path, directory: Path) -> None:
    """Write a copy of the bundle for each choice of fusions, with fp16 as its only variant."""
    from model_export.checkpoint.checkpoint import load_checkpoint
    from model_export.graph.fusions import FUSIONS
    from model_export.graph.variants import export_graph, write_fp16

    choices: dict[str, Sequence[str]] = {NONE: (), **{name: [name] for name in FUSIONS}}
    choices[ALL] = tuple(FUSIONS)
    with tempfile.TemporaryDirectory() as folder:
        plain = export_graph(load_checkpoint(checkpoint), Path(folder))
        for name, fusions in choices.items():
            target = directory / name
            shutil.copytree(bundle, target, ignore=shutil.ignore_patterns("onnx"))
            (target / "onnx").mkdir()
            write_fp16(plain, target / FP16, fusions)
            _write_manifest(target)


def _write_manifest(bundle: Path) -> None:
    """Leave fp16 as the only variant, with the checksum of its new file."""
    manifest = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))
    fp16 = manifest["variants"]["fp16"]
    fp16 |= {"sha256": sha256(bundle / FP16), "bytes": (bundle / FP16).stat().st_size}
    manifest["variants"] = {"fp16": fp16}
    (bundle / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
