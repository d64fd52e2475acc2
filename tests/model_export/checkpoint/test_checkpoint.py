"""Loading checkpoints: complete ones load safely, others are refused with a one-line reason."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentiment_export.checkpoint.checkpoint import load_checkpoint, max_tokens
from sentiment_export.checkpoint.describe import describe
from sentiment_service.engine.model.bundle import sha256
from sentiment_service.errors import UserError
from sentiment_service.settings.settings import CheckpointOptions

from tests.support.checkpoints import MAX_TOKENS, configure, make_checkpoint


def test_what_a_checkpoint_is_loaded_as(tmp_path: Path) -> None:
    """Its labels, length, class and digests, in evaluation mode and fp32."""
    path = make_checkpoint(tmp_path / "made", "roberta")
    checkpoint = load_checkpoint(path)
    assert checkpoint.labels == ["negative", "neutral", "positive"]
    assert checkpoint.max_tokens == MAX_TOKENS
    assert checkpoint.architecture == "RobertaForSequenceClassification"
    assert checkpoint.preprocessing == "none"
    assert not checkpoint.model.training
    assert {weights.dtype for weights in checkpoint.model.parameters()} == {torch.float32}
    assert checkpoint.files == {
        name: sha256(path / name)
        for name in ("config.json", "merges.txt", "model.safetensors", "vocab.json")
    }


@pytest.mark.parametrize(
    "classes",
    [
        None,
        ["RobertaForMultiLabelClassification"],
        ["RobertaForSequenceClassificationModel"],
    ],
)
def test_how_the_model_was_run_is_no_obstacle(tmp_path: Path, classes: list[str] | None) -> None:
    """Entries for TorchScript, tuples or less memory, and a class of another name change no logit.

    Nor does one that asks for hidden states: PyTorch's graph has the logits as its only output.
    """
    path = make_checkpoint(tmp_path / "made", "roberta")
    before = load_checkpoint(path).logits([5, 6, 7])
    how = {"torchscript": True, "chunk_size_feed_forward": 2, "return_dict": False}
    configure(path, **how, architectures=classes, output_hidden_states=True, output_attentions=True)
    after = load_checkpoint(path)
    assert torch.equal(after.logits([5, 6, 7]), before)
    with torch.inference_mode():
        assert [*after.model(torch.tensor([[5, 6, 7]]))] == ["logits"]
    assert after.architecture == "RobertaForSequenceClassification"


@pytest.mark.parametrize(
    ("dtype", "packed"),
    [(torch.int8, True), (torch.float8_e4m3fn, False), (torch.complex64, False)],
)
def test_quantized_weights_are_refused(tmp_path: Path, dtype: torch.dtype, *, packed: bool) -> None:
    """They are not taken for the weights; export and description name the first in one line.

    Those of bitsandbytes have other shapes, and what they are computed with beside them.
    """
    path = make_checkpoint(tmp_path / "made", "bert")
    weights = load_file(path / "model.safetensors")
    name = "bert.encoder.layer.1.output.dense.weight"
    weights[name] = weights[name].to(dtype)
    if packed:
        weights[name] = weights[name].reshape(-1, 1)
        weights[f"{name}.absmax"] = torch.ones(3)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    says = f"{name} in model.safetensors is of type {str(dtype)[6:]}, probably quantized"
    with pytest.raises(UserError, match=says):
        load_checkpoint(path)
    (problem,) = describe(path).problems
    assert problem.startswith(says)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_a_weight_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    """Even that of a token which no text of the verification has."""
    path = make_checkpoint(tmp_path / "made", "bert")
    weights = load_file(path / "model.safetensors")
    name = "bert.embeddings.word_embeddings.weight"
    weights[name] = weights[name].double()
    weights[name][-1, 0] = value
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        UserError, match=rf"{name} in model\.safetensors holds values .* not finite"
    ):
        dict(load_checkpoint(path).weights)


def _truncate(name: str) -> Callable[[Path], None]:
    def truncate(path: Path) -> None:
        whole = (path / name).read_bytes()
        (path / name).write_bytes(whole[: len(whole) // 2])

    return truncate


def _adapter_only(path: Path) -> None:
    (path / "model.safetensors").rename(path / "adapter_model.safetensors")
    (path / "config.json").rename(path / "adapter_config.json")


def _of_a_trainer(path: Path) -> None:
    """The last of the checkpoints are named, and nothing without weights."""
    files = [path / name for name in ("config.json", "model.safetensors")]
    for steps in (1000, 12000, 1500, 500):
        for file in files:
            (path / f"checkpoint-{steps}").mkdir(exist_ok=True)
            shutil.copy(file, path / f"checkpoint-{steps}")
    (path / ("z" * 20)).mkdir()
    files[0].rename(path / ("z" * 20) / "config.json")


def _of_onnx_in_a_folder(path: Path) -> None:
    """All files are there, and none beside it."""
    (path / "onnx").mkdir()
    (path / "config.json").rename(path / "onnx" / "config.json")
    (path / "model.safetensors").rename(path / "onnx" / "model.onnx")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        pytest.param(lambda p: (p / "config.json").unlink(), "no config.json", id="no config"),
        pytest.param(
            _of_a_trainer,
            "there is one in checkpoint-1000, checkpoint-1500, checkpoint-12000:",
            id="a Trainer's directory",
        ),
        pytest.param(
            _of_onnx_in_a_folder, "has no config.json, .* there is one in onnx: give", id="ONNX"
        ),
        pytest.param(
            lambda p: (p / "model.safetensors").unlink(), "has no weights", id="no weights"
        ),
        pytest.param(
            lambda p: (p / "model.safetensors").rename(p / "manifest.json"),
            "is a bundle, which is what an export makes; serve it with --model",
            id="a bundle",
        ),
        pytest.param(_adapter_only, "holds an adapter of PEFT: merge it first", id="PEFT"),
        pytest.param(
            lambda p: (p / "adapter_config.json").write_text("{}"),
            "holds an adapter of PEFT: .* remove adapter_config.json",
            id="PEFT beside a model",
        ),
        pytest.param(
            lambda p: [(p / "model_head.pkl").touch(), configure(p, architectures=["BertModel"])],
            "holds model_head.pkl, so it is a model of SetFit, whose classifier is not in its wei",
            id="SetFit",
        ),
        pytest.param(
            lambda p: configure(p, hidden_size=96, quantization_config={"quant_method": "gptq"}),
            r"is quantized \(gptq\)",
            id="GPTQ",
        ),
        pytest.param(
            lambda p: configure(p, quantization_config={"load_in_8bit": True}),
            "is quantized",
            id="bitsandbytes of old",
        ),
        pytest.param(_truncate("model.safetensors"), "cannot load", id="half of the weights"),
        pytest.param(lambda p: configure(p, model_type="no such"), "no such", id="unknown type"),
        pytest.param(
            lambda p: configure(p, architectures=["BertForTokenClassification"]),
            "BertForTokenClassification, not a sequence classifier",
            id="another task",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, harm: Callable[[Path], object], says: str
) -> None:
    """The line names the checkpoint."""
    path = make_checkpoint(tmp_path / "harmed", "bert")
    harm(path)
    with pytest.raises(UserError, match=says) as caught:
        load_checkpoint(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [load_checkpoint, describe])
@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_a_source_that_is_no_directory(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    """A hub id or a file is not taken for a checkpoint, and no network is asked."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is not a directory"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("model_type", "rows", "pad", "tokens"),
    [
        ("roberta", 514, 1, 512),
        ("xlm-roberta", 514, 1, 512),
        ("camembert", 514, 1, 512),
        ("bert", 512, 0, 512),
        ("electra", 512, 0, 512),
    ],
)
def test_a_token_needs_a_position(model_type: str, rows: int, pad: int, tokens: int) -> None:
    """RoBERTa's first two rows are never anybody's position."""
    config = {"model_type": model_type, "max_position_embeddings": rows}
    assert max_tokens(config | {"pad_token_id": pad}) == max_tokens(config) == tokens


@pytest.mark.parametrize(("attention", "tokens"), [("block_sparse", 704), ("original_full", 4096)])
def test_big_bird_ends_where_its_random_attention_begins(attention: str, tokens: int) -> None:
    """With sparse attention, as many tokens as transformers lets attend to all others."""
    assert max_tokens({"model_type": "big_bird", "attention_type": attention}) == tokens


def test_too_few_positions_are_refused() -> None:
    """A text needs a token between the two special ones."""
    with pytest.raises(UserError, match=r"max_position_embeddings in config\.json is 4.* 2 tokens"):
        max_tokens({"model_type": "roberta", "max_position_embeddings": 4})
    with pytest.raises(UserError, match=r"config\.json is None; it must be a whole number"):
        max_tokens({"model_type": "roberta", "max_position_embeddings": None})


def test_code_that_a_checkpoint_brings_is_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config that needs a Python file of its own is refused; nobody is asked to agree."""
    monkeypatch.setattr("builtins.input", lambda prompt: "y")
    path = make_checkpoint(tmp_path / "made", "bert")
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')\nclass Evil: pass\n"
    (path / "evil.py").write_text(code)
    evil = "evil.Evil"
    code_map = {"AutoModelForSequenceClassification": evil, "AutoConfig": evil}
    configure(path, model_type="evil", auto_map=code_map)  # transformers has none of that type
    with pytest.raises(UserError):
        load_checkpoint(path)
    assert not ran.exists()


def test_a_classifier_with_code_of_its_own_is_exported_with_a_warning(tmp_path: Path) -> None:
    """The weights are those of a BERT, but what its own code makes of them is not known."""
    path = make_checkpoint(tmp_path / "made", "bert")
    code = {"AutoConfig": "mine.Config", "AutoModelForSequenceClassification": "mine.MeanPoolBert"}
    configure(path, architectures=["MeanPoolBertForSequenceClassification"], auto_map=code)
    (note,) = load_checkpoint(path).notes
    assert note.startswith("warning: the code 'mine.MeanPoolBert' (auto_map in config.json) is not")
    assert note in describe(path).changes


def test_a_shorter_maximum_length_can_be_asked_for(tmp_path: Path) -> None:
    """``max_tokens`` cuts texts earlier; more than there are positions for is refused."""
    path = make_checkpoint(tmp_path / "source")
    assert load_checkpoint(path, CheckpointOptions(max_tokens=16)).max_tokens == 16
    for longest in (1, 7, MAX_TOKENS + 1):
        with pytest.raises(UserError, match=f"--max-tokens is {longest}; .* from 8 to 64"):
            load_checkpoint(path, CheckpointOptions(max_tokens=longest))


@pytest.mark.parametrize("share", [1.0, 0.9])
def test_a_vocabulary_that_was_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, share: float
) -> None:
    """A line says so if a tenth of the embedding has no token; the checkpoint is loaded."""
    path = make_checkpoint(tmp_path / "made", "bert")
    lines = (path / "vocab.txt").read_text().splitlines(keepends=True)
    kept = int(len(lines) * share)
    (path / "vocab.txt").write_text("".join(lines[:kept]))
    load_checkpoint(path)
    says = f"{path}: the tokenizer knows {kept} tokens, but the model has an embedding for "
    assert [message.startswith(says) for message in caplog.messages] == [True] * (share < 1)
