"""Descriptions of checkpoints: their facts and what the export would change, without loading."""

import json
import struct
import subprocess
import sys
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.checkpoint.describe import Description, describe
from sentiment_service.errors import UserError
from torch.serialization import skip_data
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification

from tests.support.checkpoints import LAYERS, make_checkpoint

ROOT = Path(__file__).parents[3]
# The published base models: rows of the vocabulary, parameters with a head of three labels.
PUBLISHED = {"roberta": (50_265, 124_647_939), "xlm-roberta": (250_002, 278_045_955)}
# Of one encoder layer: four square matrices, two of four times the size, their biases, two norms.
LAYER_PARAMETERS = 4 * 768 * 769 + 2 * 4 * 768 * 768 + 5 * 768 + 4 * 768
KINDS = {"roberta": "byte-level BPE", "xlm-roberta": "Unigram", "bert": "WordPiece"}
# Prints by how many MB describing needed more memory than its imports.
MEASURE = """
import sys
from pathlib import Path
from sentiment_export.checkpoint.describe import describe

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024

before = peak()
describe(Path(sys.argv[1]))
print(peak() - before)
"""


def _published(path: Path, architecture: str, *, pickled: bool = False) -> Path:
    """The published structure; its weights are a hole in a file, which takes no disk."""
    path.mkdir()
    config = {
        "model_type": architecture,
        "vocab_size": PUBLISHED[architecture][0],
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "id2label": {str(i): f"LABEL_{i}" for i in range(3)},
        "label2id": {f"LABEL_{i}": i for i in range(3)},
    }
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer_config.json").write_text('{"model_max_length": 1e30, "mask_token": "<m>"}')
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(path))
    shapes = {name: list(weight.shape) for name, weight in model.state_dict().items()}
    if pickled:
        with skip_data():
            weights = {name: torch.empty(shape) for name, shape in shapes.items()}
            torch.save(weights, path / "pytorch_model.bin")
        return path
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return path


@pytest.mark.parametrize("architecture", PUBLISHED)
def test_the_published_base_models(tmp_path: Path, architecture: str) -> None:
    """Parameters as published, 12 alike layers told once, and 512 tokens of 514 positions."""
    told = describe(_published(tmp_path / "twitter-base", architecture))
    rows, total = PUBLISHED[architecture]
    assert told.parameters == total
    stack = "roberta.encoder.layer.0-11."
    layer = {
        name.removeprefix(stack): shape for name, shape in told.layers.items() if stack in name
    }
    assert layer["intermediate.dense.weight"] == [3072, 768]
    assert sum(map(prod, layer.values())) == LAYER_PARAMETERS
    assert told.layers["roberta.embeddings.word_embeddings.weight"] == [rows, 768]
    assert told.max_tokens == 512
    unnamed, guess, normalised = told.changes[1:]
    assert unnamed.startswith("warning: the outputs have no names but LABEL_0, LABEL_1, LABEL_2: ")
    assert guess.startswith("warning: the preprocessing tweet is a guess from the name twitter-bas")
    assert normalised == "texts are normalised: preprocessing tweet"
    assert len(told.problems) == 1
    assert "lacks its tokenizer" in told.problems[0]


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "pickle"])
def test_half_a_gigabyte_is_described_in_little_memory(tmp_path: Path, pickled: bool) -> None:
    """Neither form's contents are read, and the model's own structure holds none."""
    path = _published(tmp_path / "made", "roberta", pickled=pickled)
    assert sum(file.stat().st_size for file in path.iterdir()) > 490_000_000
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 150


def _shard(path: Path, weights: dict[str, torch.Tensor]) -> None:
    """Write the weights as two pickles and their index."""
    names = sorted(weights)
    files = {name: f"pytorch_model-{i % 2 + 1}.bin" for i, name in enumerate(names)}
    for file in set(files.values()):
        torch.save({n: t for n, t in weights.items() if files[n] == file}, path / file)
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))


def test_pickled_shards_with_the_names_of_old(tmp_path: Path) -> None:
    """Renamed weights, entries that are not read, half precision and pickles are told."""
    path = make_checkpoint(tmp_path / "made", "roberta", id2label={0: "neg", 1: "neu", 2: "pos"})
    weights = {
        f"module.{name}".replace("LayerNorm.weight", "LayerNorm.gamma"): tensor.half()
        for name, tensor in load_file(path / "model.safetensors").items()
    }
    (path / "model.safetensors").rename(path / "tf_model.h5")
    old = ["roberta.embeddings.position_ids", "roberta.pooler.dense.bias"]
    _shard(path, weights | {old[0]: torch.arange(66)[None], old[1]: torch.zeros(48)})
    told = describe(path)
    assert not told.problems
    entry = next(weight for weight in told.weights if "0.output.LayerNorm.gamma" in weight["name"])
    assert (entry["shape"], entry["dtype"]) == ([48], "float16")
    assert told.files == {file.name: file.stat().st_size for file in path.iterdir()}
    _, labels, renamed, *rest = told.changes
    assert labels == "labels neg, neu, pos become negative, neutral, positive"
    assert renamed.startswith(f"{len(weights)} weights are renamed, such as module.")
    assert rest == [
        f"2 weights are not read: {', '.join(old)}",
        f"{len(weights)} weights in float16 become float32",
        "tokenizer.json is made from vocab.json and merges.txt",
    ]


@pytest.mark.parametrize(("architecture", "kind"), KINDS.items())
def test_text_and_json_tell_the_same(tmp_path: Path, architecture: str, kind: str) -> None:
    """JSON survives a round trip and holds all; the text has its facts, long lists cut."""
    told = describe(make_checkpoint(tmp_path / "made", architecture))
    held = asdict(told)
    assert json.loads(json.dumps(held)) == held
    assert Description(**held) == told
    text = told.text()
    assert told.tokenizer == kind
    for fact in (kind, told.architecture, f"{told.parameters:,}", *told.changes):
        assert fact in text
    layer = f"{architecture.removeprefix('xlm-')}.encoder.layer.0-{LAYERS - 1}."
    assert f"  {layer}attention.self.query.weight [48, 48]\n" in text
    assert len(told.weights) == 41
    assert "weights in the files: 41, of which the first\n" in text
    assert all(f"{name}  {size:,} bytes" in text for name, size in told.files.items())


def test_several_labels_a_text_are_told(tmp_path: Path) -> None:
    """So that who serves it need not read config.json; of one label a text, nothing is said."""
    path = make_checkpoint(tmp_path / "made", "roberta")
    says = "  the scores: a sigmoid for each label; a text may get several, or none"
    assert says not in describe(path).text()
    config = json.loads((path / "config.json").read_text())
    config["problem_type"] = "multi_label_classification"
    (path / "config.json").write_text(json.dumps(config))
    assert says in describe(path).text()


def test_what_the_export_refuses_is_listed(tmp_path: Path) -> None:
    """A config of other shapes and a bare language model are described, with the reason."""
    path = make_checkpoint(tmp_path / "made", "roberta")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"vocab_size": 9}))
    told = describe(path)
    assert len(told.problems) == 1
    assert "config.json asks for [9, 48]" in told.problems[0]
    assert f"why an export would fail\n  {told.problems[0]}" in told.text()

    bare = AutoModelForMaskedLM.from_config(AutoConfig.for_model(**config))
    (path / "config.json").write_text(json.dumps(config | {"architectures": [type(bare).__name__]}))
    weights = {k: v for k, v in bare.state_dict().items() if k != "lm_head.decoder.weight"}
    save_file({k: v.clone() for k, v in weights.items()}, path / "model.safetensors")
    told = describe(path)
    assert any("not a sequence classifier" in problem for problem in told.problems)


@pytest.mark.parametrize(
    ("name", "held", "says"),
    [
        ("vocab.txt", "", "vocab.txt is damaged: it is empty"),
        ("tokenizer.json", '{"model": {', "tokenizer.json is damaged"),
        ("added_tokens.json", '{"[MORE]": 3000}', "[MORE] has the id 3000"),
    ],
)
def test_a_tokenizer_that_does_not_load_is_listed(
    tmp_path: Path, name: str, held: str, says: str
) -> None:
    """The description gives the line with which the export ends."""
    path = make_checkpoint(tmp_path / "made", "bert")
    (path / name).write_text(held)
    (problem,) = describe(path).problems
    assert says in problem
    with pytest.raises(UserError) as caught:
        load_checkpoint(path)
    assert str(caught.value) == problem


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "pytorch_model.bin"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    """One line says which; half a file is no checkpoint to describe."""
    path = make_checkpoint(tmp_path / "made", "xlm-roberta", pickled=name.endswith(".bin"))
    whole = (path / name).read_bytes()
    (path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=name) as caught:
        describe(path)
    assert len(str(caught.value).splitlines()) == 1
