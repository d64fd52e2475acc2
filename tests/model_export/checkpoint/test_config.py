"""config.json is checked before anything is built from it; its wrong entries are named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from sentiment_export.checkpoint.architectures import ARCHITECTURES, REFUSED
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.checkpoint.config import read_config
from sentiment_export.checkpoint.describe import describe
from sentiment_export.cli import main
from sentiment_service.errors import UserError
from transformers import AutoConfig

from tests.support.checkpoints import configure, make_checkpoint, random_model, save_model
from tests.support.model_export.published import modernbert


def _config(path: Path, text: str, beside: Path | None = None) -> Path:
    """A directory with this config.json and the other files of a checkpoint, which are links."""
    for file in beside.iterdir() if beside else ():
        if file.name != "config.json":
            (path / file.name).symlink_to(file)
    (path / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [(one, why) for why, types in REFUSED.items() for one in types.split()],
)
def test_a_refusal_names_the_architecture_the_reason_and_what_is_taken(
    tmp_path: Path, model_type: str, reason: str
) -> None:
    """In one line, before a model is built."""
    path = _config(tmp_path, json.dumps({"model_type": model_type}))
    with pytest.raises(UserError) as caught:
        read_config(path, "org/name")
    message = str(caught.value)
    assert message.startswith(
        f"org/name is of the unsupported architecture {model_type}: {reason}; "
    )
    assert all(known.name in message for known in ARCHITECTURES.values())
    assert "\n" not in message


WRONG: list[tuple[str, Any, str]] = [
    ("pad_token_id", -1, "an id below vocab_size, which is "),
    ("pad_token_id", 10**6, "an id below vocab_size, which is "),
    ("is_decoder", True, "false, as in an encoder"),
    ("pruned_heads", {"0": [1]}, "{}, as in an encoder whose layers are all alike"),
]
# What no model can be made with.
IMPOSSIBLE = {
    "hidden_act": "no_such",
    "hidden_size": 50,
    "intermediate_size": "96",
    "num_hidden_layers": 2.0,
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT that loads."""
    return make_checkpoint(tmp_path_factory.mktemp("sound") / "made", "bert")


@pytest.mark.parametrize(("entry", "value", "accepted"), WRONG)
def test_a_wrong_entry_is_named_with_what_is_accepted(
    sound: Path, tmp_path: Path, entry: str, value: object, accepted: str
) -> None:
    """Export and description refuse it in the same line, which also shows the value."""
    config = json.loads((sound / "config.json").read_text()) | {entry: value}
    _config(tmp_path, json.dumps(config), sound)
    with pytest.raises(UserError) as loading:
        load_checkpoint(tmp_path)
    shown = json.dumps(value)
    expected = f"{tmp_path}: {entry} in config.json is {shown}; it must be {accepted}"
    assert str(loading.value).startswith(expected)
    if entry != "architectures":  # a problem that a description lists
        with pytest.raises(UserError) as describing:
            describe(tmp_path)
        assert str(describing.value) == str(loading.value)


@pytest.mark.parametrize("text", ["3", "[]", "null", '"bert"', "", "{", "\udcff", "[" * 100_000])
def test_a_config_that_is_no_object(
    sound: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both commands end with code 1 and one line that names the file."""
    _config(tmp_path, text, sound)
    for words in ([str(tmp_path), "--output", str(tmp_path / "out")], ["describe", str(tmp_path)]):
        assert main(words) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"sentiment-export: cannot read {tmp_path / 'config.json'}: ")


@pytest.mark.parametrize("entry", IMPOSSIBLE)
def test_an_entry_of_which_no_model_can_be_made(sound: Path, tmp_path: Path, entry: str) -> None:
    """One line names the architecture, what is wrong, and a good example."""
    config = json.loads((sound / "config.json").read_text()) | {entry: IMPOSSIBLE[entry]}
    _config(tmp_path, json.dumps(config), sound)
    expected = "no BERT classifier can be made from its config.json .* compare it with that of nlp"
    for step in (load_checkpoint, describe):
        with pytest.raises(UserError, match=expected) as caught:
            step(tmp_path)
        assert "\n" not in str(caught.value)


FULL, SLIDING = "full_attention", "sliding_attention"
THETAS = {FULL: {"rope_type": "default", "rope_theta": 80.0}, SLIDING: {"rope_theta": 20.0}}
LAYERS = [FULL, SLIDING, SLIDING, FULL]


@pytest.fixture(scope="module")
def modern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ModernBERT of four layers, as transformers 4 describes it."""
    path = tmp_path_factory.mktemp("modernbert")
    modernbert(path)
    rotated = {"global_rope_theta": 80.0, "local_rope_theta": 20.0, "local_attention": 4}
    layers = {"num_hidden_layers": 4, "global_attn_every_n_layers": 3}
    save_model(path, random_model("modernbert", 400, **rotated, **layers))
    return path


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("layer_types", "full_attention"),
        ("layer_types", [FULL]),
        ("layer_types", [FULL, "chunked_attention", FULL, "chunked_attention"]),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 160_000.0}),
        ("rope_parameters", {SLIDING: {"rope_theta": "much"}}),
        ("sliding_window", "wide"),
    ],
)
def test_what_modernbert_cannot_be_made_with(
    modern: Path, tmp_path: Path, entry: str, value: object
) -> None:
    """One line says that no model is described, whichever spelling is wrong."""
    config = json.loads((modern / "config.json").read_text()) | {entry: value}
    _config(tmp_path, json.dumps(config), modern)
    with pytest.raises(UserError, match="no ModernBERT classifier can be made") as caught:
        load_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("rope_theta", 80.0),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}),
        ("rope_parameters", {FULL: {"rope_type": "dynamic", "rope_theta": 80.0, "factor": 2.0}}),
        ("rope_parameters", {SLIDING: {"rope_type": "longrope"}}),
    ],
)
def test_a_rotation_that_the_export_would_not_follow_is_refused_by_name(
    tmp_path: Path, entry: str, value: object
) -> None:
    """Before any weight is read: what transformers ignores, and what depends on a text's length.

    A traced graph would have one rotation for all lengths.
    """
    entries = {"model_type": "modernbert", "transformers_version": "5.24.0", entry: value}
    _config(tmp_path, json.dumps(entries))
    with pytest.raises(UserError, match=entry) as caught:
        read_config(tmp_path, "org/name")
    assert "\n" not in str(caught.value)


def test_the_spelling_of_transformers_5_computes_the_same(modern: Path, tmp_path: Path) -> None:
    """Logits are those of the same weights with the entries and token lists of transformers 4."""
    newer = Path(shutil.copytree(modern, tmp_path / "newer"))
    configure(newer, global_rope_theta=None, local_rope_theta=None, global_attn_every_n_layers=None)
    configure(newer, transformers_version="5.24.0", layer_types=LAYERS, rope_parameters=THETAS)
    said = {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["[CLS]", "[SEP]"]}
    (newer / "tokenizer_config.json").write_text(json.dumps({"backend": "tokenizers", **said}))
    before, after = load_checkpoint(modern), load_checkpoint(newer)
    ids = before.tokenizer.tokenizer.encode("the bus was late again and nobody said why").ids
    assert after.tokenizer.tokenizer.encode("the bus was late again and nobody said why").ids == ids
    assert torch.equal(before.logits(ids), after.logits(ids))
    configure(newer, layer_types=[FULL] * 4)
    assert not torch.equal(before.logits(ids), load_checkpoint(newer).logits(ids))
    configure(newer, layer_types=LAYERS, rope_parameters=THETAS | {FULL: {"rope_theta": 7.0}})
    assert not torch.equal(before.logits(ids), load_checkpoint(newer).logits(ids))


@pytest.mark.parametrize("version", ["5.24.0", "4.58.0", "6.0.0.dev0", "next"])
def test_unknown_entries_are_refused_by_name(tmp_path: Path, version: str) -> None:
    """What a library that may know them has written may change the logits; null changes nothing.

    All are named at once, with what helps also where the source is a hub id.
    """
    entries = {"model_type": "bert", "transformers_version": version, "_note": 1}
    _config(tmp_path, json.dumps({**entries, "attention_scale": None}))
    assert read_config(tmp_path, "org/name")["model_type"] == "bert"
    _config(tmp_path, json.dumps({**entries, "attention_scale": 2, "my_note": "from March"}))
    says = r"know attention_scale, my_note in config\.json.* a copy of the model's files"
    with pytest.raises(UserError, match=says):
        read_config(tmp_path, "org/name")


@pytest.mark.parametrize("version", ["4.57.6", None])
def test_an_entry_that_its_library_did_not_know_is_ignored(
    tmp_path: Path, version: str | None
) -> None:
    """Up to transformers 4.57, every entry with a meaning is known; notes of trainers stay.

    Newer versions always write their number, so a config without one is old, or written by hand.
    """
    entries = {"model_type": "bert", "transformers_version": version, "my_note": "from March"}
    _config(tmp_path, json.dumps(entries))
    assert read_config(tmp_path, "org/name")["my_note"] == "from March"


def test_what_old_versions_wrote_beside_the_model_is_known(tmp_path: Path) -> None:
    """They did not write their number: 2.4 its text generation, those up to 3.4 if on a TPU."""
    _config(tmp_path, json.dumps({"model_type": "bert", "eos_token_ids": 0, "xla_device": True}))
    assert read_config(tmp_path, "org/name")["model_type"] == "bert"


def test_every_entry_that_transformers_writes_is_known(tmp_path: Path) -> None:
    """All entries of each architecture's config pass, as if a newer library had written them."""
    for model_type in ARCHITECTURES:
        entries = AutoConfig.for_model(model_type).to_dict() | {"transformers_version": "5.24.0"}
        _config(tmp_path, json.dumps(entries))
        assert read_config(tmp_path, "org/name")["model_type"] == model_type
    older = {"reference_compile": None, "repad_logits_with_grad": False, "decoder_bias": True}
    _config(tmp_path, json.dumps({"model_type": "modernbert", **older}))
    assert read_config(tmp_path, "org/name")["decoder_bias"]


@pytest.mark.parametrize("architecture", ["bert", "distilbert"])
def test_no_padding_id_is_no_obstacle(tmp_path: Path, architecture: str) -> None:
    """Nothing is computed from it where positions are counted from the first token."""
    source = make_checkpoint(tmp_path / "made", architecture)
    before = load_checkpoint(source).logits([5, 6, 7])
    entries = json.loads((source / "config.json").read_text()) | {"pad_token_id": None}
    (source / "config.json").write_text(json.dumps(entries))
    assert torch.equal(load_checkpoint(source).logits([5, 6, 7]), before)


def test_no_padding_id_is_refused_where_positions_are_counted_from_it(tmp_path: Path) -> None:
    """RoBERTa's positions begin after it, and the line says which one is usual."""
    entries = {"model_type": "roberta", "vocab_size": 400, "pad_token_id": None}
    _config(tmp_path, json.dumps(entries))
    with pytest.raises(UserError, match=r"pad_token_id .* null; .* positions .* it is 1"):
        read_config(tmp_path, "org/name")


def test_a_byte_order_mark_does_no_harm(sound: Path, tmp_path: Path) -> None:
    """Editors on Windows write one; config.json is read as without it."""
    _config(tmp_path, "\ufeff" + (sound / "config.json").read_text(), sound)
    assert load_checkpoint(tmp_path).labels == load_checkpoint(sound).labels
    assert describe(tmp_path).problems == []


@pytest.mark.parametrize("name", ["config.json", "vocab.txt", "model.safetensors"])
def test_a_pointer_of_git_lfs_is_named(sound: Path, tmp_path: Path, name: str) -> None:
    """Export and description say what a clone needs that has pointers instead of files."""
    _config(tmp_path, (sound / "config.json").read_text(), sound)
    (tmp_path / name).unlink()
    (tmp_path / name).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 267832558\n"
    )
    for read in (load_checkpoint, describe):
        with pytest.raises(UserError) as caught:
            read(tmp_path)
        assert str(caught.value) == (
            f"{tmp_path} holds pointers of Git LFS instead of files ({name}): run "
            "`git lfs pull` there"
        )
