"""config.json is checked before anything is built from it; its wrong entries are named."""

import json
from pathlib import Path
from typing import Any

import pytest
from sentiment_export.checkpoint.architectures import ARCHITECTURES, REFUSED
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.checkpoint.config import read_config
from sentiment_export.checkpoint.describe import describe
from sentiment_export.cli import main
from sentiment_service.errors import UserError

from tests.support.checkpoints import make_checkpoint


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
    ("pad_token_id", None, "an id below vocab_size, which is "),
    ("pad_token_id", -1, "an id below vocab_size, which is "),
    ("pad_token_id", 10**6, "an id below vocab_size, which is "),
    ("is_decoder", True, "false, as in an encoder"),
    ("pruned_heads", {"0": [1]}, "{}, as in an encoder whose layers are all alike"),
    ("architectures", "BertForSequenceClassification", "a list of class names"),
]
# What transformers or PyTorch refuse, with their own words in ours.
IMPOSSIBLE = {
    "label2id": "much",
    "hidden_act": "no_such",
    "hidden_size": 50,
    "intermediate_size": "96",
    "max_position_embeddings": None,
    "num_hidden_layers": 2.0,
    "hidden_dropout_prob": "much",
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
    """One line names the architecture, what the libraries say, and a good example."""
    config = json.loads((sound / "config.json").read_text()) | {entry: IMPOSSIBLE[entry]}
    _config(tmp_path, json.dumps(config), sound)
    expected = "no BERT classifier can be made from its config.json .* compare it with that of nlp"
    for step in (load_checkpoint, describe):
        with pytest.raises(UserError, match=expected) as caught:
            step(tmp_path)
        assert "\n" not in str(caught.value)


def test_one_token_type_is_exported_like_two(tmp_path: Path) -> None:
    """A BERT with a table of one token type gives the logits of the table's only row."""
    one = load_checkpoint(make_checkpoint(tmp_path / "one", "bert", type_vocab_size=1))
    table = one.model.bert.embeddings.token_type_embeddings.weight
    assert table.shape == (2, table.shape[1])
    assert (table[0] == table[1]).all()
    assert one.model.config.type_vocab_size == 2


def test_a_byte_order_mark_does_no_harm(sound: Path, tmp_path: Path) -> None:
    """Editors on Windows write one; config.json is read as without it."""
    _config(tmp_path, "\ufeff" + (sound / "config.json").read_text(), sound)
    assert load_checkpoint(tmp_path).labels == load_checkpoint(sound).labels
    assert describe(tmp_path).problems == []


@pytest.mark.parametrize("spelled", ["BERT", "Bert"])
def test_a_model_type_in_capitals(sound: Path, tmp_path: Path, spelled: str) -> None:
    """transformers knows only small letters, so the error shows the right spelling."""
    config = json.loads((sound / "config.json").read_text()) | {"model_type": spelled}
    _config(tmp_path, json.dumps(config))
    with pytest.raises(UserError, match=f'model_type in config.json is "{spelled}".* "bert"'):
        read_config(tmp_path, "org/name")


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
