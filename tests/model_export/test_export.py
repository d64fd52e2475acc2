"""Exports from checkpoint to bundle: complete, correct, and never half a bundle."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from sentiment_export import export as export_module
from sentiment_export.checkpoint.checkpoint import Checkpoint, load_checkpoint
from sentiment_export.export import export
from sentiment_export.graph import builder
from sentiment_export.graph.precisions import to_half_precision
from sentiment_export.graph.variants import Write, graphs_of
from sentiment_export.output import ONNX_FILES, model_card
from sentiment_export.quality.labelled import Example
from sentiment_service.engine.model.bundle import (
    EMBEDDED_BUNDLE,
    FORMAT_VERSION,
    Bundle,
    Manifest,
    Precision,
    sha256,
)
from sentiment_service.engine.model.model import Model, tolerance
from sentiment_service.errors import InferenceFailed, UserError
from sentiment_service.settings.settings import CheckpointOptions
from transformers import AutoTokenizer

from tests.support.checkpoints import (
    CORPUS,
    MAX_TOKENS,
    Exported,
    make_checkpoint,
)
from tests.support.machines.small_disk import run_on_small_disk
from tests.support.tiny_bundle import load

LABELS = ["negative", "neutral", "positive"]
FILES = {
    "README.md",
    "config.json",
    "manifest.json",
    "onnx/model.onnx",
    "onnx/model_int8.onnx",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture
def quick(roberta: Exported) -> Callable[[Path], object]:
    """Export RoBERTa to a path."""
    return lambda output: export(load_checkpoint(roberta.source), output)


def _files(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): sha256(path)
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_bundle_holds_what_the_contract_says(made: Exported) -> None:
    """The files, no more; the manifest's digests and sizes are those of the files.

    Even of a tiny model, whose biases, positions and names stay, int8 leaves about half.
    """
    found = _files(made.bundle)
    manifest = json.loads((made.bundle / "manifest.json").read_text())
    assert found.keys() == FILES
    side_files = ("config.json", "tokenizer.json", "tokenizer_config.json")
    assert manifest["files"] == {name: found[name] for name in side_files}
    assert manifest["variants"].keys() == {"fp32", "int8"}
    for variant in manifest["variants"].values():
        assert variant["sha256"] == found[variant["file"]]
        assert variant["bytes"] == (made.bundle / variant["file"]).stat().st_size
        assert variant["parity"].keys() == {"samples", "max_abs_logit_diff", "label_agreement"}
    fp32, int8 = manifest["variants"]["fp32"], manifest["variants"]["int8"]
    assert (fp32["file"], int8["file"]) == ("onnx/model.onnx", "onnx/model_int8.onnx")
    assert int8["bytes"] < 0.55 * fp32["bytes"]
    assert fp32["passes"] == ["padding left out", "last layer for the first token only"]
    done = ["int8 with a scale per token", "int8 embedding"]
    assert int8["passes"] == [*fp32["passes"], *done]


def test_the_manifest_says_where_it_comes_from(made: Exported) -> None:
    """The source's name and digests, never a path of the machine; the packages' versions."""
    manifest = json.loads((made.bundle / "manifest.json").read_text())
    assert manifest["format_version"] == FORMAT_VERSION
    assert manifest["name"] == "bundle"
    assert manifest["source"] == {"path": "source", "files": _files(made.source)}
    assert manifest["architecture"].endswith("ForSequenceClassification")
    assert manifest["labels"] == LABELS
    assert manifest["max_tokens"] == MAX_TOKENS
    assert manifest["preprocessing"] == "none"
    assert manifest["created_with"]["torch"] == version("torch")
    everything = "".join((made.bundle / n).read_text() for n in FILES if not n.startswith("onnx"))
    assert str(made.source.parent) not in everything


@pytest.mark.parametrize(
    ("said", "given", "one", "several"),
    [
        ("en", (), "en", []),
        (7, (), None, []),
        ("en", ("de", "fr"), None, ["de", "fr"]),
    ],
)
def test_languages_are_recorded(
    tmp_path: Path, said: object, given: tuple[str, ...], one: str | None, several: list[str]
) -> None:
    """The service then warns of texts in others; a checkpoint mostly has no such entry.

    The manifest has one as ``language``, several as ``languages``.
    """
    source = make_checkpoint(tmp_path / "source", "bert", language=said)
    checkpoint = load_checkpoint(source, CheckpointOptions(languages=given))
    manifest = export(checkpoint, tmp_path / "out", precisions=["fp32"])
    assert (manifest.language, manifest.languages) == (one, several)


def test_the_graphs_are_valid_with_free_batch_and_length(made: Exported) -> None:
    """fp32 is plain ONNX at opset 18; every input is [batch, sequence] of any size."""
    onnx.checker.check_model(str(made.bundle / "onnx/model.onnx"), full_check=True)
    plain = onnx.load(made.bundle / "onnx/model.onnx")
    assert [(entry.domain, entry.version) for entry in plain.opset_import] == [("", 18)]
    for name in ("onnx/model.onnx", "onnx/model_int8.onnx"):
        model = onnx.load(made.bundle / name)
        versions = {entry.domain: entry.version for entry in model.opset_import}
        assert versions[""] == 18
        for value in model.graph.input:
            sizes = value.type.tensor_type.shape.dim
            assert len(sizes) == 2
            assert all(size.dim_param and not size.HasField("dim_value") for size in sizes)
        (output,) = model.graph.output
        assert output.name == "logits"
        assert output.type.tensor_type.shape.dim[1].dim_value == 3


@pytest.mark.parametrize(
    ("spelled", "labels"),
    [
        (["LABEL_0", "LABEL_1"], ["LABEL_0", "LABEL_1"]),
        (["POS", "NEU", "NEG"], [*reversed(LABELS)]),
        (
            ["1 star", "2 stars", "3 stars", "4 stars", "très bon, 好"],
            ["1 star", "2 stars", "3 stars", "4 stars", "très bon, 好"],
        ),
    ],
)
def test_any_label_set_is_written_and_served(
    tmp_path: Path, spelled: list[str], labels: list[str]
) -> None:
    """The same in config.json and manifest; also those that transformers does not write."""
    source = make_checkpoint(
        tmp_path / "source",
        "bert",
        id2label=dict(enumerate(spelled)),
        label2id={label: index for index, label in enumerate(spelled)},
    )
    export(load_checkpoint(source), tmp_path / "out", precisions=["fp32"])
    config = json.loads((tmp_path / "out/config.json").read_text(encoding="utf-8"))
    assert config["id2label"] == {str(index): label for index, label in enumerate(labels)}
    assert config["label2id"] == {label: index for index, label in enumerate(labels)}
    manifest = Bundle.open(tmp_path / "out").manifest
    assert manifest.labels == labels
    assert list(manifest.variants) == ["fp32"]
    assert not (tmp_path / "out/onnx/model_int8.onnx").exists()


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param([f"emotion {index}" for index in range(28)], id="28 emotions"),
        pytest.param(["toxic"], id="a single logit"),
    ],
)
def test_a_multi_label_checkpoint_stays_one(tmp_path: Path, labels: list[str]) -> None:
    """Its labels are its own, its scores sigmoids, also where it has a single label.

    It is scored on labelled texts as well.
    """
    source = make_checkpoint(
        tmp_path / "source",
        "bert",
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
        problem_type="multi_label_classification",
    )
    checkpoint = load_checkpoint(source)
    examples = [Example("en", (labels[0],), "meh")]
    export(checkpoint, tmp_path / "out", precisions=["fp32"], examples=examples)
    model = load(tmp_path / "out")
    assert model.multi_label
    assert model.labels == labels
    (logits,) = model.infer([model.tokenizer.encode("what a lovely afternoon")])
    assert not isinstance(logits, InferenceFailed)
    np.testing.assert_allclose(model.scores(logits), 1 / (1 + np.exp(-logits)), rtol=1e-5)
    accuracy = Bundle.open(tmp_path / "out").manifest.variants["fp32"].accuracy
    assert accuracy is not None
    assert accuracy["samples"] == 1
    assert 0 <= accuracy["micro_f1"] <= 1


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(None, id="a pipe"),
        pytest.param("mine", id="a file"),
        pytest.param({"notes.txt": "mine"}, id="a directory"),
        pytest.param({"manifest.json": '{"name": "a web app", "icons": []}'}, id="a web page"),
        pytest.param({"manifest.json": "["}, id="a damaged manifest"),
    ],
)
def test_what_is_no_bundle_is_never_replaced(
    roberta: Exported, tmp_path: Path, held: dict[str, str] | str | None
) -> None:
    """Refused before any work, and left as it was; a manifest.json alone makes no bundle."""
    output = tmp_path / "out"
    if held is None:
        os.mkfifo(output)
    elif isinstance(held, str):
        output.write_text(held)
    else:
        output.mkdir()
        for name, text in held.items():
            (output / name).write_text(text)
    before, kind = _files(tmp_path), output.stat().st_mode
    with pytest.raises(UserError, match="out exists and is not a bundle"):
        export(load_checkpoint(roberta.source), output)
    assert (_files(tmp_path), output.stat().st_mode) == (before, kind)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_bundle_is_replaced_whole(
    quick: Callable[[Path], object], roberta: Exported, tmp_path: Path
) -> None:
    """Nothing of the old one is left, and nothing lies beside the new one."""
    output = Path(shutil.copytree(roberta.bundle, tmp_path / "new" / "out"))
    first = _files(output)
    (output / "onnx/model_fp16.onnx").write_text("of the old one")
    quick(output)
    assert _files(output).keys() == first.keys()
    Bundle.open(output)
    assert [path.name for path in output.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("name", [".git/HEAD", "notes.txt", "onnx/mine.onnx"])
def test_what_no_bundle_has_is_never_deleted(roberta: Exported, tmp_path: Path, name: str) -> None:
    """A repository around the bundle, or a file beside its own, is named and stays."""
    output = shutil.copytree(roberta.bundle, tmp_path / "out")
    (output / name).parent.mkdir(exist_ok=True)
    (output / name).write_text("mine")
    before = _files(output)
    shown = ".git" if name.startswith(".git") else name
    with pytest.raises(UserError, match=f"out holds {shown}, which the export would delete"):
        export(load_checkpoint(roberta.source), output)
    assert _files(output) == before


def test_what_is_put_there_during_an_export_stays_too(
    quick: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output is looked at again before it is replaced."""
    output = tmp_path / "out"

    def slow(manifest: Manifest, *, multi_label: bool) -> str:
        output.mkdir()
        (output / "notes.txt").write_text("mine")
        return model_card(manifest, multi_label=multi_label)

    monkeypatch.setattr(export_module, "model_card", slow)
    with pytest.raises(UserError, match="out exists and is not a bundle"):
        quick(output)
    assert [path.name for path in output.iterdir()] == ["notes.txt"]


def test_a_bundle_that_could_not_be_served_does_not_appear(
    quick: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finished bundle is opened from its files before it gets its name."""
    write = export_module._write_side_files

    def without_labels(checkpoint: Checkpoint, directory: Path) -> None:
        write(checkpoint, directory)
        config = json.loads((directory / "config.json").read_text())
        del config["id2label"]
        (directory / "config.json").write_text(json.dumps(config))

    monkeypatch.setattr(export_module, "_write_side_files", without_labels)
    with pytest.raises(UserError, match="no usable id2label"):
        quick(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_an_empty_directory_is_filled(
    roberta: Exported,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Even the current one, and the bundle has its name. Each step says a line.

    That of a variant has its size and parity.
    """
    output = tmp_path / "moods"
    output.mkdir()
    monkeypatch.chdir(output)
    export(load_checkpoint(roberta.source), Path())
    said = capsys.readouterr().out.splitlines()
    assert Bundle.open(output).manifest.name == "moods"
    assert said[0] == "writing the graphs"
    assert said[1::2] == ["comparing fp32 with PyTorch", "comparing int8 with PyTorch"]
    assert [line.split(":")[0] for line in said[2::2]] == ["fp32", "int8"]
    assert all("of PyTorch, labels agree on" in line for line in said[2::2])


def _fail(error: BaseException) -> Callable[..., None]:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    return fail


# Each step fails in both ways, once with an old bundle and once without.
@pytest.mark.parametrize(
    ("step", "replacing"),
    [("verify", False), ("model_card", True), ("_write_side_files", False), ("sha256", True)],
)
@pytest.mark.parametrize("error", [UserError("the fp32 model differs"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing_behind(
    quick: Callable[[Path], object],
    roberta: Exported,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    step: str,
    replacing: bool,
) -> None:
    """Whatever fails, or Ctrl-C: no bundle, no temporary file, and an old bundle untouched."""
    output = tmp_path / "out"
    replacing ^= isinstance(error, KeyboardInterrupt)
    if replacing:
        shutil.copytree(roberta.bundle, output)
    before = _files(tmp_path)
    monkeypatch.setattr(export_module, step, _fail(error))
    with pytest.raises(type(error)):
        quick(output)
    assert _files(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if replacing else [])


def _export_damaged(
    roberta: Exported, output: Path, damaged: Precision, name: str, **options: Any
) -> None:
    """Export with a variant that has a wrong weight, whose name holds ``name``."""

    def graphs(checkpoint: Checkpoint, work: Path) -> Write:
        whole = graphs_of(checkpoint, work)

        def write(precision: Precision, target: Path) -> list[str]:
            passes = whole(precision, target)
            if precision == damaged:
                model = ir.load(target)
                value = next(v for key, v in model.graph.initializers.items() if name in key)
                assert value.const_value is not None
                array = np.array(value.const_value.numpy())
                array[:] = array[::-1].copy()
                value.const_value = ir.tensor(array, name=value.name)
                ir.save(model, target)
            return passes

        return write

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_module, "graphs_of", graphs)
        export(load_checkpoint(roberta.source), output, **options)


def test_fp32_with_a_wrong_weight_is_refused(roberta: Exported, tmp_path: Path) -> None:
    """The message names the variant, and nothing is written."""
    with pytest.raises(UserError, match="the fp32 model differs too much from PyTorch"):
        _export_damaged(roberta, tmp_path / "out", "fp32", "layer.0.output.dense.bias")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("reference", "named"), [(None, "PyTorch"), ("fp32", "its fp32 graph")])
def test_int8_that_is_too_coarse_is_left_out(
    roberta: Exported, tmp_path: Path, reference: str | None, named: str
) -> None:
    """fp32 is kept, and can be served; the command fails with a line that says why."""
    says = "out was written with fp32: int8 was left out because the int8 model differs"
    wrong = "layer.0.attention.self.query.weight_i"
    with pytest.raises(UserError, match=f"{says} too much from {named}"):
        _export_damaged(roberta, tmp_path / "out", "int8", wrong, reference=reference)
    assert list(Bundle.open(tmp_path / "out").manifest.variants) == ["fp32"]
    assert [path.name for path in (tmp_path / "out/onnx").iterdir()] == ["model.onnx"]


def test_fp32_is_the_reference_where_pytorch_is_not_installed(
    roberta: Exported,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Manifest and card say so; int8 is compared with fp32, and fp32 with nothing."""
    checkpoint = load_checkpoint(roberta.source)
    monkeypatch.setitem(sys.modules, "transformers", None)
    manifest = export(checkpoint, tmp_path / "out")
    assert manifest.reference == "fp32"
    assert manifest.variants["fp32"].parity is None
    parity = manifest.variants["int8"].parity
    assert parity is not None
    assert 0 < parity.max_abs_logit_diff < 0.5
    assert parity.samples > 30
    assert "## Parity with the fp32 graph" in (tmp_path / "out/README.md").read_text()
    assert "comparing int8 with its fp32 graph" in capsys.readouterr().out
    assert Bundle.open(roberta.bundle).manifest.reference == "pytorch"


def test_berts_family_needs_none_of_the_large_packages(roberta: Exported, tmp_path: Path) -> None:
    """Where none of them can be imported, the command writes a bundle with the same graphs."""
    code = """import sys
sys.modules |= dict.fromkeys(["torch", "transformers", "optimum", "onnx_ir"])
from sentiment_export.cli import main
sys.exit(main())"""
    command = [sys.executable, "-c", code, str(roberta.source), "--output", str(tmp_path / "out")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    alone, beside = (Bundle.open(path).manifest for path in (tmp_path / "out", roberta.bundle))
    assert {p: v.sha256 for p, v in alone.variants.items()} == {
        p: v.sha256 for p, v in beside.variants.items()
    }
    assert "torch" not in alone.created_with


def test_a_reference_that_nobody_asked_for_is_not_kept(roberta: Exported, tmp_path: Path) -> None:
    """int8 alone is compared with fp32 as well, whose file goes."""
    checkpoint = load_checkpoint(roberta.source)
    output = tmp_path / "out"
    manifest = export(checkpoint, output, precisions=["int8"], reference="fp32")
    assert [path.name for path in (output / "onnx").iterdir()] == ["model_int8.onnx"]
    assert manifest.variants["int8"].parity is not None


@pytest.mark.parametrize("asked", [{"reference": "pytorch"}, {"debug_parity": True}])
def test_a_comparison_with_pytorch_needs_it(
    roberta: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    """One line names the extra; nothing is written."""
    checkpoint = load_checkpoint(roberta.source)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="needs PyTorch and transformers, which the extra `torch`"):
        export(checkpoint, tmp_path / "out", **asked)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kilobytes", [3_000, 6_500])
def test_a_full_disk_is_named_and_nothing_stays_there(tmp_path: Path, kilobytes: int) -> None:
    """Whichever file does not fit: exit code 1, one line that names the disk, nothing left.

    The files are those of fp32 and of int8.
    """
    source = make_checkpoint(tmp_path / "source", "bert", vocab_size=30_000)  # 6 MB
    disk = tmp_path / "disk"
    code = "import sys; from sentiment_export.cli import main; sys.exit(main())"
    command: list[str | Path] = [sys.executable, "-c", code, source, "--output", "out"]
    run = run_on_small_disk(disk, kilobytes, *command)
    assert run.returncode == 1, run.stderr
    *_, line = run.stderr.splitlines()  # the first is about the vocabulary
    assert line.startswith(f"sentiment-export: there is too little room on the disk of {disk} (0.")
    assert run.stdout.splitlines()[-1] == "left behind: "


def test_weights_beyond_one_file_go_into_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above 2 GB, with the limit lowered: listed and checked, and the answers are the same.

    ONNX's checker takes the files.
    """
    precisions: tuple[Precision, ...] = ("fp32", "int8", "fp16")
    source = make_checkpoint(tmp_path / "source", "xlm-roberta")
    export(load_checkpoint(source), tmp_path / "small", precisions=precisions)
    monkeypatch.setattr(builder, "LARGEST_FILE", 1_000)
    export(load_checkpoint(source), tmp_path / "large", precisions=precisions)
    bundles = [Bundle.open(tmp_path / name) for name in ("small", "large")]
    for precision in precisions:
        data = bundles[1].manifest.variants[precision].data
        assert data is not None
        assert data.file == f"{ONNX_FILES[precision]}_data"
        assert data.sha256 == sha256(tmp_path / "large" / data.file)
        variant = bundles[1].manifest.variants[precision]
        size = f"{(variant.bytes + data.bytes) / 1e6:.1f}"
        assert f"| `{variant.file}` | {size} |" in (tmp_path / "large/README.md").read_text()
        found = []
        for bundle in bundles:
            model = load(bundle.path, precision)
            found.append(model.infer([model.tokenizer.encode("what a lovely afternoon")])[0])
        np.testing.assert_array_equal(found[0], found[1])
        onnx.checker.check_model(str(tmp_path / "large" / variant.file))
        assert not (tmp_path / "small" / data.file).exists()
    with (tmp_path / "large/onnx/model.onnx_data").open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(UserError, match=r"model\.onnx_data is damaged or was changed"):
        bundles[1].variant_path("fp32")


def _padded(checkpoint: Checkpoint, work: Path) -> Write:
    """Writes fp16 as earlier exports did for BERT's family, with padding."""

    def write(precision: Precision, target: Path) -> list[str]:
        graphs_of(checkpoint, work)("fp32", target)
        model = ir.load(target)
        to_half_precision(model)
        ir.save(model, target)
        return ["half precision"]

    return write


def test_an_fp16_variant_with_padding_is_served(
    roberta: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier exports wrote it for BERT's family, too. Its logits are those of the flat graph."""
    kinds = {"flat": graphs_of, "padded": _padded}
    found = {}
    for kind, graphs in kinds.items():
        output, checkpoint = tmp_path / kind, load_checkpoint(roberta.source)
        monkeypatch.setattr(export_module, "graphs_of", graphs)
        export(checkpoint, output, precisions=["fp16"])
        model = load(output, "fp16")
        encodings = [model.tokenizer.encode(text) for text in CORPUS]
        assert ("attention_mask" in model.feeds(encodings)) == (kind == "padded")
        assert model.flat == (kind == "flat")
        found[kind] = np.stack(
            [row for row in model.infer(encodings) if isinstance(row, np.ndarray)]
        )
    allowed = tolerance("fp16", found["flat"])
    np.testing.assert_allclose(found["padded"], found["flat"], rtol=0, atol=allowed)


@pytest.mark.parametrize("name", ["model.onnx", "model_int8.onnx"])
def test_others_load_the_bundle(made: Exported, name: str) -> None:
    """transformers and ONNX Runtime, with default options, give the answers we serve."""
    model = made.model("fp32" if name == "model.onnx" else "int8")
    _assert_others_agree(model, name, CORPUS[:4])


def test_others_load_the_embedded_bundle() -> None:
    """So they do with the model that is included in the service, whose emoji have tokens."""
    texts = ["I love this!", "worst service ever", "Finally home😍🎉 👍🏽 👨‍👩‍👧 🇩🇪 1️⃣"]
    _assert_others_agree(load(EMBEDDED_BUNDLE, "int8"), "model_int8.onnx", texts)


def _assert_others_agree(model: Model, name: str, texts: Sequence[str]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model.path)
    assert tokenizer.model_max_length == model.max_tokens
    plain = ort.InferenceSession(model.path / "onnx" / name)
    for text in texts:
        encoding = model.tokenizer.encode(text)
        assert encoding.ids == tokenizer(text)["input_ids"]
        assert tokenizer.unk_token_id not in encoding.ids
        (found,) = model.infer([encoding])
        assert not isinstance(found, InferenceFailed)
        np.testing.assert_allclose(found, plain.run(None, model.feeds([encoding]))[0][0], atol=1e-5)
