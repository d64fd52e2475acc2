"""Exports of checkpoints with the same files as popular models on the hub.

Each checkpoint holds the same tiny model in another layout, so its bundle must give the fp32
logits of the plain checkpoint.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.checkpoint.describe import describe
from sentiment_export.export import export
from sentiment_service.engine.model.model import Model
from sentiment_service.errors import UserError
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.support.checkpoints import (
    CORPUS,
    assert_like_transformers,
    make_checkpoint,
)
from tests.support.tiny_bundle import load


def _files(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}


def _exported(source: Path, output: Path) -> Model:
    export(load_checkpoint(source), output, precisions=["fp32"])
    return load(output)


@pytest.mark.parametrize(
    ("of_json", "said"),
    [
        (None, {"truncation_side": "left"}),
        (None, {"truncation_side": "right"}),
        ("left", {}),
        ("left", {"truncation_side": "right"}),
    ],
)
def test_long_texts_are_cut_at_the_side_that_the_checkpoint_names(
    tmp_path: Path, of_json: str | None, said: dict[str, str]
) -> None:
    """The service keeps the same tokens as transformers, and finds all of them in windows.

    Where tokenizer_config.json says nothing, the side is that of tokenizer.json, in which alone
    transformers saves it after a training that cut texts.
    """
    source = make_checkpoint(tmp_path / "made", "bert")
    if of_json:
        trained = AutoTokenizer.from_pretrained(source, truncation_side=of_json)
        trained("a b c d", truncation=True, max_length=4)
        trained.save_pretrained(source)
    (source / "tokenizer_config.json").write_text(json.dumps(said))
    model = _exported(source, tmp_path / "bundle")
    tokenizer = AutoTokenizer.from_pretrained(source)
    text = " ".join(CORPUS * 2)
    assert_like_transformers(model, source, [text])
    encoding = model.tokenizer.encode(text)
    assert encoding.truncated
    whole = tokenizer(text)["input_ids"]
    assert encoding.tokens == len(whole)
    inner = {tuple(window.ids[1:-1]) for window in encoding.windows}
    assert any(tuple(whole[1:-1][: len(ids)]) == ids for ids in inner)
    assert any(tuple(whole[1:-1][-len(ids) :]) == ids for ids in inner)


@pytest.mark.parametrize("safe", [True, False])
def test_sharded_weights(tmp_path: Path, safe: bool) -> None:
    """An index and its shards, safetensors or pickles, are one model; all their digests kept."""
    source = make_checkpoint(tmp_path / "whole", "bert")
    whole = load_checkpoint(source)
    (source / "model.safetensors").unlink()
    whole.model.save_pretrained(source, max_shard_size="50KB", safe_serialization=safe)
    assert len(_files(source)) > 4
    sharded = load_checkpoint(source)
    assert_like_transformers(_exported(source, tmp_path / "bundle"), source)
    kept = {name for name in sharded.files if "-of-" in name or name.endswith(".index.json")}
    assert kept == {name for name in _files(source) if "-of-" in name or "index" in name}


def _renamed(path: Path, rename: Callable[[str], str]) -> dict[str, torch.Tensor]:
    weights = load_file(path / "model.safetensors")
    return {rename(name): tensor for name, tensor in weights.items()}


def _old(name: str) -> str:
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"
    )


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
@pytest.mark.parametrize(
    "rename",
    [
        pytest.param(_old, id="gamma and beta"),
        pytest.param(lambda name: f"module.{name}", id="module."),
        pytest.param(lambda name: f"model.{name}", id="model."),
        pytest.param(lambda name: f"_orig_mod.{name}", id="_orig_mod."),
        pytest.param(lambda name: f"module._orig_mod.model.{_old(name)}", id="all of it"),
        pytest.param(
            lambda name: name.removeprefix("bert.").removeprefix("roberta."), id="no prefix"
        ),
    ],
)
def test_names_that_trainers_and_tensorflow_leave(
    tmp_path: Path, architecture: str, rename: Callable[[str], str]
) -> None:
    """Old names and prefixes, position ids and pre-training heads are no obstacle.

    Those of BERT are in safetensors, those of RoBERTa in a pickle.
    """
    source = make_checkpoint(tmp_path / "made", architecture)
    ids = [5, 17, 9, 30, 6]
    before = load_checkpoint(source).logits(ids)
    weights = _renamed(source, rename)
    weights[rename(f"{architecture}.embeddings.position_ids")] = torch.arange(66)[None]
    weights[rename("lm_head.bias")] = torch.zeros(3)
    (source / "model.safetensors").unlink()
    if architecture == "roberta":
        torch.save(weights, source / "pytorch_model.bin")
    else:
        save_file(weights, source / "model.safetensors")
    checkpoint = load_checkpoint(source)
    torch.testing.assert_close(checkpoint.logits(ids), before, rtol=0, atol=1e-5)


def _set(name: str, tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda weights: weights.update({name: tensor})


def _rename(weights: dict[str, torch.Tensor], rename: Callable[[str], str]) -> None:
    for name in list(weights):
        weights[rename(name)] = weights.pop(name)


def _drop(part: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def drop(weights: dict[str, torch.Tensor]) -> None:
        for name in [name for name in weights if part in name]:
            del weights[name]

    return drop


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        pytest.param(
            _set("roberta.embeddings.position_embeddings.weight", torch.zeros(514, 48)),
            r"position_embeddings\.weight is \[514, 48\] in model\.safetensors, but config\.json "
            r"asks for \[66, 48\]: it is probably from another checkpoint",
            id="more positions",
        ),
        pytest.param(
            _drop("classifier"), "lacks classifier.dense.weight, .*; fine-tune it", id="encoder"
        ),
        pytest.param(_drop("layer.1."), "lacks roberta.encoder.layer.1.*cut short", id="a layer"),
        *(
            pytest.param(_set(name, torch.zeros(3)), f"{name}, which ", id=f"a {name}")
            for name in (
                "roberta.encoder.layer.9.output.dense.bias",
                "roberta.encoder.layer.0.attention.self.rotary.weight",
                "roberta.embeddings.extra_embeddings.weight",
                "classifier.scale",
            )
        ),
        pytest.param(
            lambda weights: _rename(weights, lambda name: f"net.{name}"),
            r"it has net\.classifier\.dense\.bias, for example: save the state dict of",
            id="a prefix of one's own",
        ),
        pytest.param(
            lambda weights: _rename(
                weights, lambda name: name.replace("query.", "query.base_layer.")
            ),
            r"query\.base_layer\..*, a weight of an adapter .*merge the adapter first",
            id="LoRA, not merged",
        ),
        pytest.param(
            _set("roberta.encoder.layer.0.attention.self.query.lora_A.weight", torch.zeros(2, 48)),
            r"query\.lora_A\.weight, a weight of an adapter .*merge the adapter first",
            id="LoRA, in the older form",
        ),
    ],
)
def test_weights_that_do_not_fit_the_config(
    tmp_path: Path, harm: Callable[[dict[str, torch.Tensor]], None], says: str
) -> None:
    """The key, both shapes and the likely cause, in one line; nothing is filled in at random."""
    source = make_checkpoint(tmp_path / "made", "roberta")
    weights = load_file(source / "model.safetensors")
    harm(weights)
    save_file(weights, source / "model.safetensors")
    with pytest.raises(UserError, match=says) as caught:
        load_checkpoint(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["temperature", "class_weights", "bn.num_batches_tracked"])
def test_a_weight_that_is_not_read_says_how_to_drop_it(tmp_path: Path, name: str) -> None:
    """transformers' classifier has no such weight either, so what it saves is exported."""
    source = make_checkpoint(tmp_path / "made", "bert")
    before = load_checkpoint(source).logits([5, 6, 7])
    weights = load_file(source / "model.safetensors") | {name: torch.ones(1)}
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"{name}, .*; if no logit depends .* save it again"):
        load_checkpoint(source)
    AutoModelForSequenceClassification.from_pretrained(source).save_pretrained(source)
    assert torch.equal(load_checkpoint(source).logits([5, 6, 7]), before)


SHARD = "model-00001-of-00001.safetensors"


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([SHARD], rf"names {SHARD}, which is missing"),
        (["../../etc/passwd"], "not in its own directory"),
        (["/etc/passwd"], "not in its own directory"),
        ([], "names no shards"),
    ],
)
def test_what_an_index_names_wrongly_is_named(tmp_path: Path, names: list[str], says: str) -> None:
    """A copy that stopped half-way lacks a file, and a file elsewhere is never read."""
    source = make_checkpoint(tmp_path / "made", "bert")
    (source / "model.safetensors").unlink()
    index = {"weight_map": dict(zip("ab", names, strict=False))}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    for read in (load_checkpoint, describe):
        with pytest.raises(UserError, match=says):
            read(source)
