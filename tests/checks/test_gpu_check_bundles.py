"""The bundles of ``make gpu-check``: one for each choice of fusions."""

import json
import shutil
from pathlib import Path

import pytest

from app.engine.model.bundle import MANIFEST, Bundle
from app.engine.model.load import load_model
from checks.gpu.bundles import ALL, NONE, write_fusions
from model_export.graph.fusions import FUSIONS
from tests.support.checkpoints import exported


def test_each_choice_of_fusions_is_a_bundle(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each has fp16 alone, with the fusions of its name, and the one without fusions computes."""
    made = exported(tmp_path_factory.getbasetemp(), "roberta")
    bundle = shutil.copytree(made.bundle, tmp_path / "bundle")
    manifest = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))
    fp32 = manifest["variants"]["fp32"]
    manifest["variants"]["fp16"] = fp32 | {"file": "onnx/model_fp16.onnx"}
    (bundle / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    fusions = tmp_path / "fusions"
    write_fusions(made.source, bundle, fusions)
    assert {path.name for path in fusions.iterdir()} == {NONE, ALL, *FUSIONS}
    bundles = {path.name: Bundle.open(path) for path in fusions.iterdir()}
    assert {tuple(one.manifest.variants) for one in bundles.values()} == {("fp16",)}
    digests = {one.manifest.variants["fp16"].sha256 for one in bundles.values()}
    assert len(digests) == len(bundles)
    model = load_model(bundles[NONE], device="cpu", precision="fp16", threads=1)
    assert len(model.infer([model.tokenizer.encode("so good")])) == 1
