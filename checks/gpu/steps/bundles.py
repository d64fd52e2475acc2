"""Makes checkpoints with random weights and exports them. What exists is not made again.

Needs the packages of the exporter. The bundles can be made on another machine and carried.
"""

import shutil
from collections.abc import Iterator

from benchmarks.tables import Row
from checks.gpu.setup import Setup


def run(setup: Setup) -> Iterator[Row]:
    """Make the bundles of all shapes."""
    setup.work.mkdir(parents=True, exist_ok=True)
    for shape in setup.size.shapes:
        yield {"shape": shape, **_bundle(setup, shape)}


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
