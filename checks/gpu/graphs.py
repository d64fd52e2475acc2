"""Graphs without their weights, and weights for them from a seed.

Random weights do not compress, so they are made where they are used. Real are the graph, the
shapes, and how far the weights spread.
"""

import json
import shutil
import zlib
from pathlib import Path

import numpy as np
from sentiment_service.engine.model.bundle import MANIFEST, sha256

from checks.gpu.setup import Setup

WEIGHTS = "weights.json"  # in a bundle: what its graphs lack
LEAST_BYTES = 2**14  # smaller weights stay in the graph


def make(setup: Setup) -> None:
    """Export a checkpoint of this size, which needs the packages of the exporter.

    The graphs of its bundles have no weights, and will have different ones.
    """
    from sentiment_export.checkpoint.checkpoint import load_checkpoint
    from sentiment_export.graph.variants import export_graph, write_from_graph

    from benchmarks.random_checkpoint import random_checkpoint, timed_export

    making = setup.bundle.with_suffix(".making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    source = random_checkpoint(making / "checkpoint", "roberta", **setup.size.config)
    timed_export(source, making / "bundle", "--precision", "fp32,fp16")
    shutil.copytree(making / "bundle", making / "others")
    padded = export_graph(load_checkpoint(source), making)
    write_from_graph(padded, "fp16", making / "others/onnx/model_fp16.onnx")
    for name, target, precisions in (
        ("others", setup.others, ["fp32", "fp16"]),
        ("bundle", setup.bundle, ["fp16"]),
    ):
        _strip(making / name, precisions)
        (making / name).rename(target)
    shutil.rmtree(making)


def fill(bundle: Path) -> None:
    """Write the weights that the graphs of a bundle lack, if they lack any. The seed is fixed."""
    notes = bundle / WEIGHTS
    missing = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
    for file, weights in missing.items():
        target = _weights_of(bundle / file)
        if target.exists():
            continue
        partial = target.with_suffix(".partial")
        with partial.open("wb") as written:
            for name, dtype, count, spread in weights:
                generator = np.random.default_rng(zlib.crc32(name.encode()))
                values = generator.standard_normal(count, np.float32) * np.float32(spread)
                written.write(values.astype(dtype).data)
        partial.rename(target)


def _strip(bundle: Path, precisions: list[str]) -> None:
    """Take the weights out of the graphs of these precisions, and note how many and how large."""
    import onnx

    missing: dict[str, list[tuple[str, str, int, float]]] = {}
    manifest = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))
    manifest["variants"] = {name: manifest["variants"][name] for name in precisions}
    for variant in manifest["variants"].values():
        path = bundle / variant["file"]
        model = onnx.load(path)
        weights = missing[variant["file"]] = []
        end = 0
        for tensor in model.graph.initializer:
            size = len(tensor.raw_data)
            if size < LEAST_BYTES:
                continue
            array = onnx.numpy_helper.to_array(tensor)
            spread = float(array.std(dtype=np.float64))
            weights.append((tensor.name, array.dtype.name, array.size, spread))
            onnx.external_data_helper.set_external_data(tensor, _weights_of(path).name, end, size)
            tensor.ClearField("raw_data")
            end += size
        path.write_bytes(model.SerializeToString())
        variant |= {"sha256": sha256(path), "bytes": path.stat().st_size}
    for file in (bundle / "onnx").iterdir():
        if file.relative_to(bundle).as_posix() not in missing:
            file.unlink()
    (bundle / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    (bundle / WEIGHTS).write_text(json.dumps(missing), encoding="utf-8")


def _weights_of(graph: Path) -> Path:
    return graph.with_name(graph.name + "_data")
