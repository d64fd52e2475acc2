"""Fine-tuning: it learns, resumes after an interruption, and averages the seeds."""

import dataclasses
import gzip
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentiment_export import training
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.cli import main
from sentiment_export.finetune import (
    Recipe,
    finetune,
    load_base,
    tokenise,
    training_preprocessing,
    without_leaks,
)
from sentiment_export.quality.labelled import Example
from sentiment_service.engine.text.tweets import normalise_bertweet
from sentiment_service.errors import UserError

from tests.support.checkpoints import CORPUS, configure, make_checkpoint
from tests.support.machines.small_disk import run_on_small_disk
from tests.support.model_export.bertweet import make_bertweet
from tests.support.model_export.interrupts import interrupted_in_step

Weights = dict[str, torch.Tensor]
WORDS = {"negative": ["bad", "worse", "late"], "neutral": ["bus", "desk", "soup"]}
WORDS["positive"] = ["love", "lovely", "lago"]
FILLERS = ["the", "on", "my", "by", "again", "and", "le", "der", "что", "8"]


def _examples(count: int, offset: int) -> list[Example]:
    """Texts whose label a single word gives away, none like another."""
    examples = []
    for index in range(count):
        label = list(WORDS)[index % 3]
        number = index + offset
        fillers = [FILLERS[number % 10], FILLERS[number // 10 % 10], FILLERS[number // 7 % 10]]
        word = WORDS[label][number // 3 % 3]
        examples.append(Example("en", (label,), " ".join([*fillers, word, str(number)])))
    return examples


def _write(path: Path, examples: list[Example]) -> Path:
    rows = [f"{example.group}\t{example.label}\t{example.text}\n" for example in examples]
    path.write_text("".join(rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """60 texts, two epochs, one seed; the base is a classifier of something else."""
    directory = tmp_path_factory.mktemp("finetune")
    return Recipe(
        base=make_checkpoint(directory / "base", "bert", id2label={0: "x"}, label2id={"x": 0}),
        train=(_write(directory / "train.tsv", _examples(60, 0)),),
        validation=_write(directory / "validation.tsv", _examples(30, 600)),
        epochs=2,
        seeds=(0,),
        learning_rate=3e-3,
        batch_size=8,
    )


@pytest.fixture(scope="module")
def trained(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an uninterrupted run writes."""
    output = tmp_path_factory.mktemp("trained") / "checkpoint"
    finetune(recipe, output)
    return output


def _weights(checkpoint: Path) -> Weights:
    return load_file(checkpoint / "model.safetensors")


def _assert_equal(found: Path, expected: Path) -> None:
    one, other = _weights(found), _weights(expected)
    assert one.keys() == other.keys()
    assert not [name for name in one if not torch.equal(one[name], other[name])]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_base_in_half_precision_is_trained_in_float32(
    recipe: Recipe, tmp_path: Path, dtype: torch.dtype
) -> None:
    """Its own precision would lose small steps, and fail in float16."""
    base = shutil.copytree(recipe.base, tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    halved = {name: tensor.to(dtype) for name, tensor in weights.items()}
    save_file(halved, base / "model.safetensors", {"format": "pt"})
    assert {tensor.dtype for tensor in load_base(base).state_dict().values()} <= {
        torch.float32,
        torch.int64,  # the positions
    }


LAYER = "bert.encoder.layer.1.output.dense.weight"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (lambda held: held.pop(LAYER), f"lacks {LAYER}: the file is cut short"),
        (lambda held: [held.pop(n) for n in [*held] if n != "classifier.bias"], "lacks bert"),
        (lambda held: held.update({LAYER: held[LAYER][:, 1:]}), rf"{LAYER} is \[48, 95\]"),
        (
            lambda held: held.update({LAYER.replace("1", "2"): held[LAYER] + 1}),
            "layer.2.* not have",
        ),
        (lambda held: held[LAYER].fill_(torch.nan), f"{LAYER} .* not finite"),
    ],
    ids=["missing", "all missing", "another shape", "another layer", "NaN"],
)
def test_a_base_whose_encoder_is_not_whole_is_refused(
    copied: Recipe, tmp_path: Path, changed: Callable[[Weights], object], says: str
) -> None:
    """The weight is named, as by an export, and nothing is trained from random numbers."""
    file = copied.base / "model.safetensors"
    weights = load_file(file)
    changed(weights)
    save_file({n: t.contiguous() for n, t in weights.items()}, file, {"format": "pt"})
    with pytest.raises(UserError, match=says):
        finetune(copied, tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("prefix", ["", "bert.", "module.bert."])
def test_a_base_may_have_no_classifier_or_other_heads(
    recipe: Recipe, tmp_path: Path, prefix: str
) -> None:
    """Its encoder is trained from as it is, under whatever prefix its weights lie."""
    base = shutil.copytree(recipe.base, tmp_path / "base")
    held = {n: tensor for n, tensor in _weights(base).items() if "embeddings" in n or "layer" in n}
    heads = {"cls.predictions.bias": torch.zeros(7), "lm_head.dense.bias": torch.zeros(7)}
    bare = {prefix + name.removeprefix("bert."): tensor for name, tensor in held.items()} | heads
    save_file(bare, base / "model.safetensors", {"format": "pt"})
    loaded = load_base(base).state_dict()
    assert len(held) == len(loaded) - 4  # without the pooler and the classifier
    assert not [name for name in held if not torch.equal(held[name], loaded[name])]


def test_it_learns_what_can_be_learnt(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A label that one word gives away is found on texts never seen; the record says so."""
    longer = dataclasses.replace(recipe, epochs=20)
    scores = finetune(longer, tmp_path / "out")
    assert scores.samples == 30
    assert scores.macro_recall > 0.85
    record = json.loads((tmp_path / "out/training.json").read_text())
    assert record["averaged"] == scores.as_dict()
    assert record["train_texts"] == 60
    assert [len(run["epochs"]) for run in record["runs"]] == [20]
    assert record["recipe"]["train"] == ["train.tsv"]
    tables = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("macro recall")
    ]
    assert len(tables) == 21  # each epoch, and the average


def test_what_it_writes_is_a_checkpoint_to_export(recipe: Recipe, trained: Path) -> None:
    """Three labels in canonical order, tweet normalisation on, a tokenizer beside."""
    checkpoint = load_checkpoint(trained)
    assert checkpoint.labels == ["negative", "neutral", "positive"]
    assert checkpoint.preprocessing == "tweet"
    base = load_file(recipe.base / "model.safetensors")
    assert not torch.equal(
        checkpoint.model.bert.embeddings.word_embeddings.weight,
        base["bert.embeddings.word_embeddings.weight"],
    )


def test_files_of_another_encoding(recipe: Recipe, trained: Path, tmp_path: Path) -> None:
    """Compressed or not, they give the weights of the same texts in UTF-8."""
    texts = [
        path.read_text("utf-8").encode("cp1251") for path in (*recipe.train, recipe.validation)
    ]
    assert texts[0] != recipe.train[0].read_bytes()
    train, validation, output = tmp_path / "train.tsv.gz", tmp_path / "val.tsv", tmp_path / "out"
    train.write_bytes(gzip.compress(texts[0]))
    validation.write_bytes(texts[1])
    words = f"--epochs 2 --seeds 0 --learning-rate {recipe.learning_rate} --batch-size 8".split()
    words += ["--train", str(train), "--validation", str(validation), "--output", str(output)]
    assert main(["finetune", str(recipe.base), *words, "--encoding", "cp1251"]) == 0
    _assert_equal(output, trained)


def test_tables_with_names_of_their_own(recipe: Recipe, trained: Path, tmp_path: Path) -> None:
    """They give the weights of the same texts in TSV."""
    for path in (*recipe.train, recipe.validation):
        rows = [line.split("\t")[1:] for line in path.read_text("utf-8").splitlines()]
        table = "".join(f"{label},{text}\n" for label, text in [("mood", "tweet"), *rows])
        (tmp_path / f"{path.stem}.csv").write_text(table, "utf-8")
    words = f"--epochs 2 --seeds 0 --learning-rate {recipe.learning_rate} --batch-size 8".split()
    words += ["--train", str(tmp_path / "train.csv"), "--output", str(tmp_path / "out")]
    words += ["--validation", str(tmp_path / "validation.csv")]
    named = ["--column", "tweet", "--label-column", "mood"]
    assert main(["finetune", str(recipe.base), *words, *named]) == 0
    _assert_equal(tmp_path / "out", trained)


def test_only_tokens_from_an_id_on_are_trained(recipe: Recipe, tmp_path: Path) -> None:
    """All other weights stay the same to the last bit, and those of tokens that occur change."""
    base = make_checkpoint(tmp_path / "base", "bert")
    embeddings = "bert.embeddings.word_embeddings.weight"
    tokenizer = load_checkpoint(base).tokenizer.tokenizer
    tokens = tokenizer.encode("love bad bus", add_special_tokens=False).ids
    finetune(dataclasses.replace(recipe, base=base, tokens_from=min(tokens)), tmp_path / "out")
    before, after = _weights(base), _weights(tmp_path / "out")
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == [embeddings]
    rows = (before[embeddings] != after[embeddings]).any(1).nonzero().flatten().tolist()
    assert set(tokens) <= set(rows)
    assert min(rows) == min(tokens)


def test_a_bertweet_learns_texts_as_bertweet_reads_them(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base decides the normalisation; training, export and service tokenise the same way.

    A piece that the vocabulary lacks is unknown, as its row of the exported embedding says.
    """
    base = make_bertweet(tmp_path / "base", normalization=False)
    short = dataclasses.replace(recipe, base=base, epochs=1)
    finetune(short, tmp_path / "out")
    assert "preprocessing bertweet" in capsys.readouterr().out.splitlines()
    checkpoint = load_checkpoint(tmp_path / "out")
    assert checkpoint.preprocessing == "bertweet"
    tokenizer, rows = checkpoint.tokenizer, checkpoint.config["vocab_size"]
    trained_rows = rows - tokenizer.added_rows
    examples = [Example("en", ("neutral",), text) for text in CORPUS]
    config = SimpleNamespace(vocab_size=trained_rows, pad_token_id=1)
    learnt = tokenise(examples, tokenizer, config, "bertweet", 64).ids
    served = [tokenizer.tokenizer.encode(normalise_bertweet(text)).ids for text in CORPUS]
    known = [[i if i < trained_rows else tokenizer.unknown_id for i in ids] for ids in served]
    assert learnt == known != served


def test_the_tokenizer_of_the_result_is_that_of_the_base(recipe: Recipe, tmp_path: Path) -> None:
    """Its files are copied: saved by transformers 5, BERTweet's codes could not be read again.

    A normalisation that was asked for is that of the export, too, whatever these files say.
    """
    base = make_bertweet(tmp_path / "base")
    short = dataclasses.replace(recipe, base=base, epochs=1, preprocessing="tweet")
    finetune(short, tmp_path / "out")
    for name in ("bpe.codes", "vocab.txt", "added_tokens.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (base / name).read_bytes()
    assert load_checkpoint(tmp_path / "out").preprocessing == "tweet"


@pytest.mark.parametrize(
    ("base", "entries", "flag", "says"),
    [
        ("mine", {}, "auto", "tweet"),
        ("mine", {"preprocessing": "none"}, "auto", "none"),
        ("mine", {"preprocessing": "bertweet"}, "auto", "bertweet"),
        ("mine", {"_name_or_path": "cardiffnlp/tweet-topic-21-multi"}, "auto", "tweet_topic"),
        ("robertuito-base-uncased", {}, "auto", "robertuito"),
        ("robertuito-base-uncased", {}, "none", "none"),
        ("mine", {"num_labels": 5}, "auto", "tweet"),
        ("my-robertuito", {}, "auto", "robertuito; a guess from the name my-robertuito"),
    ],
)
def test_the_normalisation_is_that_of_an_export_of_the_base(
    recipe: Recipe,
    tmp_path: Path,
    base: str,
    entries: dict[str, Any],
    flag: Any,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Recorded, known, or guessed, which is said; of a base that tells nothing, TweetEval's."""
    (tmp_path / base).mkdir()
    asked = dataclasses.replace(recipe, base=tmp_path / base, preprocessing=flag)
    word, _, guess = says.partition("; ")
    entries = {"model_type": "roberta", **entries}
    assert training_preprocessing(asked, entries, []) == word
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"preprocessing {word}"
    assert bool(guess) == (len(said) > 1)
    assert guess in said[-1]


def test_a_multi_label_base_learns_one_label_a_text(recipe: Recipe, tmp_path: Path) -> None:
    """The head is new, so neither its problem_type nor what is known of its name stays."""
    base = make_checkpoint(
        tmp_path / "tweet-topic-21-multi", "bert", problem_type="multi_label_classification"
    )
    short = dataclasses.replace(recipe, base=base, epochs=1)
    finetune(short, tmp_path / "out")
    checkpoint = load_checkpoint(tmp_path / "out")
    assert not checkpoint.multi_label
    assert checkpoint.preprocessing == "tweet_topic"


@pytest.mark.parametrize("steps", [(2,), (12, 3, 8)])
def test_interrupted_and_resumed_gives_the_same_weights(
    recipe: Recipe,
    trained: Path,
    tmp_path: Path,
    steps: tuple[int, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the first of two epochs of eight steps, or often, in the second too: equal to the bit."""
    output = tmp_path / "checkpoint"
    saves = tmp_path / "checkpoint.training"
    for step in steps:
        with interrupted_in_step(step):
            finetune(recipe, output)
        (saves / f"seed-0.pt.{step}.tmp").write_text("half a save, left by a kill")
    assert not output.exists()
    capsys.readouterr()
    finetune(recipe, output)
    assert not saves.exists()
    assert ("seed 0: resuming after step 8 of 16" in capsys.readouterr().out.splitlines()) == (
        steps != (2,)
    )
    _assert_equal(output, trained)
    assert json.loads((output / "training.json").read_text()) == json.loads(
        (trained / "training.json").read_text()
    )


def test_the_weights_are_the_average_of_the_seeds(
    recipe: Recipe, trained: Path, tmp_path: Path
) -> None:
    """Each seed trains as if it were alone; their mean is what is written."""
    finetune(dataclasses.replace(recipe, seeds=(1,)), tmp_path / "one")
    finetune(dataclasses.replace(recipe, seeds=(0, 1)), tmp_path / "both")
    zero, one, both = map(_weights, (trained, tmp_path / "one", tmp_path / "both"))
    assert not torch.equal(zero["classifier.weight"], one["classifier.weight"])
    for name in both:
        torch.testing.assert_close(both[name], (zero[name] + one[name]) / 2, rtol=0, atol=1e-6)


def test_a_diverged_training_is_refused_and_a_lower_rate_starts_anew(
    recipe: Recipe, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is named, and neither a model nor a save of weights that are no numbers is left."""
    monkeypatch.setattr(training, "SAVE_EVERY_S", 0)
    fast = dataclasses.replace(recipe, learning_rate=1e30)
    with pytest.raises(UserError, match=r"seed 0: .* step 3 of 16: .*-rate below 1e\+30"):
        finetune(fast, tmp_path / "out")
    assert [*tmp_path.iterdir()] == []
    finetune(recipe, tmp_path / "out")
    _assert_equal(tmp_path / "out", trained)


def _copied(recipe: Recipe, directory: Path) -> Recipe:
    """The recipe with files of its own in the directory."""
    return dataclasses.replace(
        recipe,
        base=Path(shutil.copytree(recipe.base, directory / "base")),
        train=(Path(shutil.copy(recipe.train[0], directory)),),
        validation=Path(shutil.copy(recipe.validation, directory)),
    )


@pytest.fixture
def copied(recipe: Recipe, tmp_path: Path) -> Recipe:
    """The recipe with files of its own, which the test may change."""
    return _copied(recipe, tmp_path)


@pytest.fixture(scope="module")
def begun(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The saves of a training that was interrupted in its second epoch."""
    directory = tmp_path_factory.mktemp("begun")
    with interrupted_in_step(9):
        finetune(_copied(recipe, directory), directory / "checkpoint")
    return directory / "checkpoint.training"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ("train", "the content of --train was sha256"),
        ("validation", "the content of --validation was sha256"),
        ("base", "the content of the base was sha256"),
        ("rate", "learning_rate was 0.003 then and is 0.001 now; .* remove the directory"),
        ("record", "the base was not recorded then and is sha256"),
    ],
)
def test_the_saves_of_another_training_are_not_resumed(
    copied: Recipe, begun: Path, tmp_path: Path, changed: str, says: str
) -> None:
    """Other data, another base or other settings are refused, and the saves stay as they are."""
    output = tmp_path / "checkpoint"
    saves = Path(shutil.copytree(begun, tmp_path / "checkpoint.training"))
    if changed == "record":
        (saves / "training.json").unlink()
    before = {path.name: path.read_bytes() for path in saves.iterdir()}
    if changed == "rate":
        copied = dataclasses.replace(copied, learning_rate=1e-3)
    elif changed != "record":
        base = copied.base / "config.json"
        files = {"train": copied.train[0], "validation": copied.validation, "base": base}
        files[changed].write_text(files[changed].read_text() + "\n")
    with pytest.raises(UserError, match=says):
        finetune(copied, output)
    assert {path.name: path.read_bytes() for path in saves.iterdir()} == before
    assert not output.exists()


def test_two_runs_do_not_train_into_one_output(recipe: Recipe, tmp_path: Path) -> None:
    """The second is refused while the first trains, and the first loses none of its saves."""
    output = tmp_path / "out"
    with training.resumable(output, recipe.identity()) as work:
        (work / "seed-0.pt.1.tmp").touch()
        with pytest.raises(UserError, match=r"another process is training into .*out; .* --output"):
            finetune(recipe, output)
        assert (work / "seed-0.pt.1.tmp").exists()
    assert [*tmp_path.iterdir()] == []


# The disk is full when the first save is written, and later, when it is larger, before the result.
ON_SMALL_DISKS = """
import os, subprocess, sys
from sentiment_export.cli import main
assert main() == 1
assert os.listdir() == ["out.training"]
subprocess.run(["mount", "-o", "remount,size=22000k", os.getcwd()], check=True)
sys.exit(main())
"""


def test_a_full_disk_is_named_and_the_saves_are_kept(recipe: Recipe, tmp_path: Path) -> None:
    """One line that names the disk; no half file is left, neither of a save nor of the result."""
    base = make_checkpoint(tmp_path / "base", "bert", vocab_size=30_000)  # 6 MB
    disk = tmp_path / "disk"
    command: list[str | Path] = [sys.executable, "-c", ON_SMALL_DISKS, "finetune", base]
    command += ["--train", *recipe.train, "--validation", recipe.validation]
    command += ["--output", "out", "--seeds", "0", "--epochs", "1"]
    run = run_on_small_disk(disk, 10_000, *command)
    assert run.returncode == 1, run.stdout + run.stderr
    says = f"sentiment-export: there is too little room on the disk of {disk} ("
    assert [line.startswith(says) for line in run.stderr.splitlines()].count(True) == 2
    assert run.stdout.splitlines()[-1] == "left behind: out.training"


@pytest.mark.parametrize("what", ["the base", "a checkpoint", "a file"])
def test_nothing_is_overwritten(copied: Recipe, tmp_path: Path, what: str) -> None:
    """The output may be an empty directory; a checkpoint there, such as the base, is refused."""
    output = copied.base if what == "the base" else tmp_path / "out"
    if what == "a checkpoint":
        shutil.copytree(copied.base, output)
    elif what == "a file":
        output.touch()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="exists and is not replaced; choose another --output"):
        finetune(copied, output)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


TRAIN_TEXT = "@anna It\u2019s GREAT &amp; new: look http://t.co/1"


@pytest.mark.parametrize(
    ("text", "leak"),
    [
        (TRAIN_TEXT, True),
        ("@anna it\u2019s great &amp; new: look http://t.co/1", True),
        ("its great  new... look!!!", True),
        ("@user It's great &amp; new - look http", True),
        ("@bob @carl It\\u2019s great &amp;amp; new look https://example.org/x", True),
        ("It\\u2019s great \\u0026 new, LOOK", True),
        ("😀", True),
        ("It's great and new: look", False),
        ("its great new lock", False),
        ("great", False),
        ("😢", False),
    ],
)
def test_a_validation_text_in_other_spelling_is_a_leak(text: str, leak: bool) -> None:
    """Case, punctuation, entities, escapes, user names and links do not make it new; other words
    or, in a text without letters, other emoji do."""
    train = [Example("en", ("positive",), seen) for seen in (TRAIN_TEXT, "😀", "@anna")]
    example = Example("en", ("positive",), text)
    assert without_leaks([example], train) == ([] if leak else [example])


def test_what_is_left_out_or_cut_is_said(
    recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores are of texts that were not trained on. Here the base has 64 positions."""
    own, foreign = _examples(57, 0), _examples(30, 600)[:9]
    long = [Example("en", ("neutral",), f"{text} " + "bus " * 200) for text in ("a", "b", "c")]
    train = _write(tmp_path / "train.tsv", own + long)
    validation = _write(tmp_path / "leaky.tsv", own[:6] + foreign)
    leaky = dataclasses.replace(recipe, train=(train,), validation=validation, epochs=1)
    assert finetune(leaky, tmp_path / "out").samples == 9
    said = capsys.readouterr().out.splitlines()
    assert "left out 6 validation texts" in said[0]
    assert "texts are cut to 64 tokens; 3 training texts are that long or longer" in said


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"train": ["two-labels.tsv"]}, "no training text has the label neutral"),
        ({"validation": "train.tsv"}, "every text of .* is also in the training data"),
        ({"base": "nowhere"}, "nowhere is not a directory"),
        ({"base": "gpt"}, "unsupported architecture gpt2"),
        ({"base": "packed"}, r"packed is quantized \(bitsandbytes\), .* give the checkpoint that"),
        ({"train": ["none.tsv"]}, r"there is no file .*none\.tsv"),
        ({"tokens_from": 10**6}, "base has no token 1000000 or above"),
    ],
)
def test_what_cannot_work_is_refused_before_training(
    copied: Recipe, tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    """One line says why, and nothing is written."""
    kept = [example for example in _examples(60, 0) if example.label != "neutral"]
    _write(tmp_path / "two-labels.tsv", kept)
    shutil.copytree(copied.base, tmp_path / "gpt")
    (tmp_path / "gpt" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    packed = shutil.copytree(copied.base, tmp_path / "packed")
    configure(packed, quantization_config={"quant_method": "bitsandbytes"})
    changes: dict[str, Any] = {
        name: [tmp_path / one for one in value]
        if name == "train"
        else (tmp_path / value if isinstance(value, str) else value)
        for name, value in changed.items()
    }
    output = tmp_path / "new" / "out"
    with pytest.raises(UserError, match=says):
        finetune(dataclasses.replace(copied, **changes), output)
    assert not output.parent.exists()
