"""How a checkpoint is read: from what the user says, the checkpoint, what is known, and names."""

from pathlib import Path
from typing import Any, get_args

import pytest
from sentiment_export.checkpoint.decisions import Decisions, decide, known_checkpoints, recognised
from sentiment_service.engine.options import Preprocessing
from sentiment_service.settings.settings import AS_IT_SAYS, CheckpointOptions

SENTIMENTS = ["negative", "neutral", "positive"]
STANCES = ["none", "against", "favor"]
MULTI_LABEL, SINGLE_LABEL = "multi_label_classification", "single_label_classification"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
# TweetEval's mapping.txt of each task, and the labels on the cards of the topic models.
TASKS: dict[str, list[str]] = {
    "twitter-roberta-base-sentiment": SENTIMENTS,
    "twitter-roberta-base-sentiment-latest": SENTIMENTS,
    "twitter-xlm-roberta-base-sentiment": SENTIMENTS,
    "twitter-xlm-roberta-base-sentiment-multilingual": SENTIMENTS,
    "twitter-roberta-base-dec2021-sentiment": SENTIMENTS,
    "twitter-roberta-base-emotion": ["anger", "joy", "optimism", "sadness"],
    "twitter-roberta-base-emotion-latest": ["anger", "joy", "optimism", "sadness"],
    "twitter-roberta-base-hate": ["not-hate", "hate"],
    "twitter-roberta-base-hate-latest": ["not-hate", "hate"],
    "twitter-roberta-base-irony": ["non_irony", "irony"],
    "twitter-roberta-base-offensive": ["not-offensive", "offensive"],
    "twitter-roberta-base-emoji": [*"❤😍😂💕🔥😊😎✨💙😘📷", "🇺🇸", *"☀💜😉💯😁🎄📸😜"],
    **{
        f"twitter-roberta-base-stance-{target}": STANCES
        for target in ("abortion", "atheism", "climate", "feminist", "hillary")
    },
}
SINGLE = ["arts_&_culture", "business_&_entrepreneurs", "pop_culture", "daily_life"]
SINGLE += ["sports_&_gaming", "science_&_technology"]
TOPICS = {
    "tweet-topic-19-single": 6,
    "tweet-topic-21-single": 6,
    "twitter-roberta-base-dec2021-tweet-topic-single-all": 6,
    "tweet-topic-19-multi": 19,
    "tweet-topic-21-multi": 19,
    "twitter-roberta-base-dec2021-tweet-topic-multi-all": 19,
}


def _entries(outputs: int, **more: Any) -> dict[str, Any]:
    """Those of a config.json whose outputs have no names."""
    return {"id2label": {str(n): f"LABEL_{n}" for n in range(outputs)}, **more}


def _of_hub(tmp_path: Path, name: str, organisation: str = "cardiffnlp") -> Path:
    path = tmp_path / f"models--{organisation}--{name}" / "snapshots" / COMMIT
    path.mkdir(parents=True)
    return path


def _saved_as(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.mkdir()
    return path


def _linked(path: Path) -> Path:
    link = path.with_name("link")
    link.symlink_to(path)
    return link


@pytest.mark.parametrize(("name", "labels"), TASKS.items())
def test_the_names_of_known_repositories(tmp_path: Path, name: str, labels: list[str]) -> None:
    """By the hub id, the directory's name or what config.json says it was saved from.

    So a renamed directory is read as before, and a link. What is renamed is said, with who says so.
    """
    entries = _entries(len(labels))
    saved = {**entries, "_name_or_path": f"cardiffnlp/{name}/"}
    read = [
        decide(_of_hub(tmp_path, name), entries, AS_IT_SAYS),
        decide(_linked(_of_hub(tmp_path / "linked", name)), entries, AS_IT_SAYS),
        decide(_saved_as(tmp_path, name), entries, AS_IT_SAYS),
        decide(_saved_as(tmp_path, "renamed"), saved, AS_IT_SAYS),
    ]
    for decided in read:
        assert decided.labels == labels
        assert decided.preprocessing == "tweet"
        (note,) = decided.notes
        assert note.startswith("labels LABEL_0, LABEL_1")
        assert note.endswith("/mapping.txt")


@pytest.mark.parametrize(("name", "outputs"), TOPICS.items())
def test_topics(tmp_path: Path, name: str, outputs: int) -> None:
    """tweetnlp's normalisation; the multi-label ones get sigmoids, unless config.json decides."""
    path = _of_hub(tmp_path, name)
    decided = decide(path, _entries(outputs), AS_IT_SAYS)
    assert len({*decided.labels}) == outputs
    assert outputs != 6 or decided.labels == SINGLE
    assert decided.preprocessing == "tweet_topic"
    assert decided.entries.get("problem_type") == (MULTI_LABEL if outputs == 19 else None)
    assert not any(note.startswith("warning") for note in decided.notes)
    said = decide(path, _entries(outputs, problem_type=SINGLE_LABEL), AS_IT_SAYS)
    assert said.entries["problem_type"] == SINGLE_LABEL


@pytest.mark.parametrize(
    ("name", "saved_from"),
    [
        ("my-nli", None),
        ("my-nli", "roberta-base"),
        ("twitter-roberta-base-sentiment-5", None),  # as many outputs as no known checkpoint
        # Somebody's own, with a name like those of the published ones.
        ("twitter-financial-news-sentiment", None),
        ("twitter-roberta-base-sentiment-of-news", None),
        ("stocks", "someone/twitter-roberta-base-sentiment"),
    ],
)
def test_outputs_without_names_keep_none(tmp_path: Path, name: str, saved_from: str | None) -> None:
    """Stance, NLI or a user's own: LABEL_n is not taken for sentiments, and a line says what helps.

    Names that config.json has stay, also in a known repository.
    """
    path = _saved_as(tmp_path, name)
    outputs = 5 if name.endswith("5") else 3
    decided = decide(path, _entries(outputs, _name_or_path=saved_from), AS_IT_SAYS)
    assert decided.labels == [f"LABEL_{n}" for n in range(outputs)]
    note, *guess = decided.notes
    assert note.startswith("warning: the outputs have no names but LABEL_0, LABEL_1, LABEL_2")
    assert note.endswith("name them in logit order with --labels")
    assert all("the preprocessing tweet is a guess from the name" in more for more in guess)
    named = decide(path, _entries(outputs), CheckpointOptions(labels=tuple("abcde"[:outputs])))
    assert named.labels == [*"abcde"[:outputs]]
    assert named.notes == guess[: "twitter" in name]
    own = {"id2label": {"0": "yes", "1": "no", "2": "maybe"}}
    stance = decide(_of_hub(tmp_path, "twitter-roberta-base-stance-climate"), own, AS_IT_SAYS)
    assert (stance.labels, stance.notes) == (["yes", "no", "maybe"], [])


@pytest.mark.parametrize(
    "name", ["nli", "twitter-stock-sentiment", "twitter-roberta-base-sentiment"]
)
def test_a_model_that_somebody_made_of_a_known_one(tmp_path: Path, name: str) -> None:
    """On the hub, it has the base's normalisation, which is a guess, but not its labels; and so has
    one that only has a name like a known one's."""
    path = _of_hub(tmp_path, name, "acme")
    entries = _entries(3, _name_or_path="cardiffnlp/twitter-roberta-base-sentiment")
    decided = decide(path, entries, AS_IT_SAYS)
    assert decided.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert decided.preprocessing == "tweet"
    assert len([note for note in decided.notes if "is a guess from the name" in note]) == 1


@pytest.mark.parametrize(
    ("name", "saved_from", "preprocessing", "guessed"),
    [
        ("my-twitter-model", "", "tweet", True),
        ("mine", "/home/me/tweeteval_new/thing/", "tweet", True),
        ("mine", "acme/tweet-topic-50", "tweet_topic", True),
        ("mine", "Twitter/twhin-bert-base", "none", False),  # no name of the model, but its owner's
        ("mine", "/home/me/twitter_project/checkpoint-500", "none", False),
        ("mine", "acme/twitter-bert", "tweet", True),
        ("robertuito-sentiment-analysis", "", "robertuito", False),
        ("mine", "pysentimiento/robertuito-irony", "robertuito", False),
        ("my-robertuito", "", "robertuito", True),
        ("bertweet-base-emotion", "", "none", False),  # its tokenizer would say so
        ("mine", "roberta-base", "none", False),
    ],
)
def test_a_guess_is_said(
    tmp_path: Path, name: str, saved_from: str, preprocessing: Preprocessing, guessed: bool
) -> None:
    """In one line that names the flag; with the flag, nothing is guessed."""
    path = _saved_as(tmp_path, name)
    entries: dict[str, Any] = {"id2label": {"0": "a", "1": "b"}, "_name_or_path": saved_from}
    decided = decide(path, entries, AS_IT_SAYS)
    assert decided.preprocessing == preprocessing
    assert len(decided.notes) == guessed
    assert all("give --preprocessing to decide" in note for note in decided.notes)
    entries["preprocessing"] = "tweet"  # as ``finetune`` records it
    assert decide(path, entries, AS_IT_SAYS).preprocessing == "tweet"
    assert decide(path, {**entries, "preprocessing": "none"}, AS_IT_SAYS).preprocessing == "none"
    for asked in get_args(Preprocessing):
        told = decide(path, entries, CheckpointOptions(preprocessing=asked))
        assert (told.preprocessing, told.notes) == (asked, [])


@pytest.mark.parametrize(
    ("name", "several"),
    [
        ("my-multi", True),
        ("multilabel_emotions", True),
        ("news-multi-label-v2", True),
        ("bert-multilingual", False),
        ("bert-multi-lingual", False),
        ("multi-class", False),
        ("multitude", False),
    ],
)
def test_a_name_that_promises_several_labels(tmp_path: Path, name: str, several: bool) -> None:
    """A line asks for a flag where config.json says nothing; a flag overrides config.json."""
    path = _saved_as(tmp_path, name)
    entries: dict[str, Any] = {"id2label": {"0": "a", "1": "b"}}

    def read(**options: Any) -> Decisions:
        return decide(path, entries, CheckpointOptions(**options))

    assert [n for n in read().notes if "--multi-label or --single-label" in n] == read().notes
    assert len(read().notes) == several
    assert read(multi_label=True).entries["problem_type"] == MULTI_LABEL
    assert read(multi_label=False).entries["problem_type"] == SINGLE_LABEL
    assert read(multi_label=True).notes == read(multi_label=False).notes == []
    entries["problem_type"] = MULTI_LABEL
    assert read(multi_label=False).entries["problem_type"] == SINGLE_LABEL


def test_a_class_that_promises_several_labels(tmp_path: Path) -> None:
    """The class in which somebody trained the classifier says it where no entry does."""
    entries: dict[str, Any] = {"id2label": {"0": "joy", "1": "fear"}}
    entries["architectures"] = ["BertForMultiLabelClassification"]
    (note,) = decide(_saved_as(tmp_path, "goemotions"), entries, AS_IT_SAYS).notes
    assert "give --multi-label or --single-label" in note


@pytest.mark.parametrize(
    ("name", "languages"),
    [
        ("twitter-xlm-roberta-base-sentiment", ["ar", "en", "fr", "de", "hi", "it", "es", "pt"]),
        ("twitter-roberta-base-sentiment-latest", ["en"]),
        ("robertuito-sentiment-analysis", ["es"]),
        ("my-model", []),
    ],
)
def test_languages(tmp_path: Path, name: str, languages: list[str]) -> None:
    """Those of the flag, then of config.json, then of the published checkpoint's card."""
    organisation = "pysentimiento" if "robertuito" in name else "cardiffnlp"
    path, entries = _of_hub(tmp_path, name, organisation), _entries(3)
    assert decide(path, entries, AS_IT_SAYS).languages == languages
    entries["language"] = "nl"
    assert decide(path, entries, AS_IT_SAYS).languages == ["nl"]
    told = CheckpointOptions.model_validate({"languages": "de, zh-Hant"})
    assert decide(path, entries, told).languages == ["de", "zh-Hant"]
    with pytest.raises(ValueError, match="must be language tags, such as en or pt-BR"):
        CheckpointOptions(languages=("en", "english"))


def test_each_fact_has_its_source() -> None:
    """The table names who says so, a known normalisation, and labels that all differ."""
    for known in known_checkpoints():
        assert known.source
        assert known.preprocessing in get_args(Preprocessing)
        assert len({*known.labels}) == len(known.labels)
    assert recognised("roberta-base") is None
