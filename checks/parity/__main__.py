"""Compares exports with what two versions of transformers compute: ``make parity-check``.

Each version writes a checkpoint of every architecture and says its logits. The bundles made of them
are also loaded by Optimum, whose loader is for transformers 4.
"""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
from sentiment_export.checkpoint.architectures import ARCHITECTURES
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.export import export
from sentiment_export.output import ONNX_FILES
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE, Bundle

from checks.parity.reference import TEXTS

HERE = Path(__file__).parent
OF_PYTORCH = 1e-4  # of logits up to 4
OF_OPTIMUM = 1e-5  # it computes the same file


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="parity-") as directory:
        older = Path(directory) / "packages"
        packages = ("--target", older, "--no-deps", "--requirements", HERE / "transformers4.txt")
        subprocess.run([sys.executable, "-m", "uv", "-q", "pip", "install", *packages], check=True)
        sources, bundles = [], [EMBEDDED_BUNDLE]
        for place in ("", str(older)):
            work = Path(directory) / f"checkpoints-{len(bundles)}"
            sources += [work / name for name in ARCHITECTURES]
            version = _run(place, "write", *(work / name for name in ARCHITECTURES))
            bundles += [work / f"{name} of {version}" for name in ARCHITECTURES]
        said = [None, *sources]
        for source, bundle in zip(sources, bundles[1:], strict=True):
            checkpoint = load_checkpoint(source)
            with redirect_stdout(None):
                export(checkpoint, bundle, precisions=("fp32",), reference="fp32")
        by_optimum = json.loads(_run(str(older), "load", *bundles))
        checked = [*map(_check, bundles, said, by_optimum)]
    return int(not all(checked))


def _check(bundle: Path, source: Path | None, by_optimum: dict[str, list[list[float]]]) -> bool:
    """Whether the logits of a bundle are those of its source and of Optimum."""
    opened, good, differences = Bundle.open(bundle), True, []
    for precision in opened.manifest.variants:
        model = load_model(opened, device="cpu", precision=precision, threads=1)
        encodings = [model.tokenizer.encode(text) for text in TEXTS]
        found = np.array([model.infer([encoding])[0] for encoding in encodings])
        expected = {"Optimum": (by_optimum[Path(ONNX_FILES[precision]).name], OF_OPTIMUM)}
        if source:
            said = json.loads((source / "logits.json").read_text())
            expected["PyTorch"] = (said, OF_PYTORCH)
        for name, (logits, allowed) in expected.items():
            largest = float(np.abs(found - logits).max())
            differences.append(f"{precision} by {largest:.1e} from {name}'s")
            good &= largest <= allowed
    says = "ok" if good else "FAILED"
    print(f"parity-check: {bundle.name}: {says}, differs {', '.join(differences)}", flush=True)
    return good


def _run(packages: str, *words: str | Path) -> str:
    """Run ``reference.py`` with packages that take the place of others; what it prints."""
    variables = {**os.environ, "PYTHONPATH": packages, "TRANSFORMERS_VERBOSITY": "error"}
    variables["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    command = [sys.executable, HERE / "reference.py", *words]
    done = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
