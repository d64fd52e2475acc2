"""Pairs of texts: tokens, token types, truncation and logits are those of transformers."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sentiment_export.checkpoint.checkpoint import Checkpoint, load_checkpoint
from sentiment_export.export import export
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import Bundle, Precision
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.text.text_tokenizer import (
    Encoding,
    PairTokenizer,
    Text,
    TextPair,
    longest_first,
)
from sentiment_service.errors import EmptyText, InferenceFailed, InvalidRequest, UserError
from sentiment_service.settings.settings import CheckpointOptions
from tokenizers import Tokenizer
from tokenizers.processors import BertProcessing
from transformers import AutoTokenizer, pipeline

from tests.support.checkpoints import (
    CORPUS,
    MAX_TOKENS,
    PRECISIONS,
    exported,
    make_checkpoint,
)
from tests.support.model_export.published import make_published
from tests.support.tiny_bundle import load

# BERT has token types. DistilBERT and RoBERTa have none, and RoBERTa separates with two tokens.
ARCHITECTURES = ("bert", "distilbert", "roberta", "xlm-roberta")
WORDS = sorted({word for text in CORPUS for word in text.split()})
PAIRS = [
    TextPair("the soup is bad, the bread is worse", "soup"),
    TextPair("soup", "the soup is bad, the bread is worse"),
    TextPair(" ".join(CORPUS), "what a lovely lake"),
    TextPair(" ".join(CORPUS), " ".join(CORPUS[::-1])),
]


@cache
def _checkpoint(base: Path, architecture: str) -> Checkpoint:
    return load_checkpoint(exported(base, architecture).source)


@cache
def _model(base: Path, architecture: str, precision: Precision = "fp32") -> Model:
    """The exported model, as if it had been exported with --text-pairs."""
    bundle = Bundle.open(exported(base, architecture).bundle)
    bundle.manifest = bundle.manifest.model_copy(update={"text_pairs": True})
    return load_model(bundle, device="cpu", precision=precision, threads=1)


_texts = st.tuples(st.lists(st.sampled_from(WORDS), min_size=1, max_size=9), st.integers(1, 6)).map(
    lambda drawn: " ".join(drawn[0] * drawn[1])
)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@given(text=_texts, text_pair=_texts)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_ids_types_and_truncation_are_those_of_transformers(
    base: Path, architecture: str, text: str, text_pair: str
) -> None:
    """The ids of a pair of any two lengths are those of ``tokenizer(text, text_pair)``."""
    tokenizer = AutoTokenizer.from_pretrained(_checkpoint(base, architecture).path)
    cut = tokenizer(text, text_pair, truncation="longest_first", max_length=MAX_TOKENS)
    encoding = _model(base, architecture).tokenizer.encode(TextPair(text, text_pair))
    assert encoding.ids == cut["input_ids"]
    types = [0] * (len(encoding) - encoding.typed) + [1] * encoding.typed
    if architecture == "bert":  # the one of these whose model reads them
        assert types == cut["token_type_ids"]
    else:
        assert not encoding.typed
    assert encoding.tokens == len(tokenizer(text, text_pair)["input_ids"])
    assert encoding.truncated == (encoding.tokens > MAX_TOKENS)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_those_of_transformers(base: Path, architecture: str) -> None:
    """Pairs that are computed together, with a single text, have the logits of PyTorch."""
    checkpoint, model = _checkpoint(base, architecture), _model(base, architecture)
    single = model.tokenizer.encode(CORPUS[0])
    found = model.infer([single, *(model.tokenizer.encode(pair) for pair in PAIRS)])
    expected = [checkpoint.logits(single.ids), *map(checkpoint.pair_logits, PAIRS)]
    np.testing.assert_allclose(np.stack(_logits(found)), np.stack(expected), atol=1e-4)


ONLY_IDS = {"model_input_names": ["input_ids", "attention_mask"]}
WITH_TYPES = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bert", {"truncation_side": "left"}),
        ("bert", ONLY_IDS),
        ("bert", {"tokenizer_class": "BertTokenizerFast"}),
        ("bert", {"tokenizer_class": "ElectraTokenizer"}),
        ("bert", {"tokenizer_class": "PreTrainedTokenizerFast"}),
        ("bert", {"tokenizer_class": "PreTrainedTokenizerFast", **WITH_TYPES}),
        ("textattack/albert-base-v2-SST-2", {}),
        ("textattack/albert-base-v2-SST-2", WITH_TYPES),
    ],
)
def test_a_checkpoints_answers_to_pairs_are_those_of_its_pipeline(
    tmp_path: Path, name: str, said: dict[str, Any]
) -> None:
    """Where transformers sends no token types, both texts have the first; texts are cut at the side
    that tokenizer_config.json says."""
    path, source = tmp_path / "bundle", tmp_path / "source"
    if name == "bert":
        make_checkpoint(source, "bert")
        whole = AutoTokenizer.from_pretrained(source).backend_tokenizer
        whole.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        whole.save(str(source / "tokenizer.json"))
    else:
        make_published(source, name)
    (source / "tokenizer_config.json").write_text(json.dumps(said))
    checkpoint = load_checkpoint(source, CheckpointOptions(text_pairs=True))
    export(checkpoint, path, precisions=["fp32"])
    model = load(path)
    classify = pipeline("text-classification", str(source), device="cpu")
    for pair, logits in zip(
        PAIRS, _logits(model.infer([*map(model.tokenizer.encode, PAIRS)])), strict=True
    ):
        answers = classify(
            {"text": pair.text, "text_pair": pair.text_pair},
            top_k=None,
            function_to_apply="none",
            truncation=True,
            max_length=model.max_tokens,
        )
        scores = {answer["label"]: answer["score"] for answer in answers}
        assert dict(zip(model.labels, logits, strict=True)) == pytest.approx(scores, abs=1e-4)


def test_a_model_of_one_token_type_takes_no_pairs_with_two(tmp_path: Path) -> None:
    """A line says so, and what helps; transformers fails on each such pair."""
    source = make_checkpoint(tmp_path / "source", "bert", type_vocab_size=1)
    of_pairs = CheckpointOptions(text_pairs=True)
    with pytest.raises(UserError, match=r"type_vocab_size in config\.json is 1.*--text-pairs"):
        load_checkpoint(source, of_pairs)
    assert not load_checkpoint(source).text_pairs
    (source / "tokenizer_config.json").write_text(json.dumps(ONLY_IDS))
    assert len(load_checkpoint(source, of_pairs).pair_logits(PAIRS[0])) == 3


def test_a_model_whose_types_an_export_leaves_out_takes_no_pairs_with_two(tmp_path: Path) -> None:
    """A RoBERTa with BERT's tokenizer gets types from transformers, but none from its export."""
    source = make_checkpoint(tmp_path / "source", "roberta", type_vocab_size=2)
    bert = make_checkpoint(tmp_path / "bert", "bert")
    for name in ("vocab.json", "merges.txt", "tokenizer.json"):
        (source / name).unlink(missing_ok=True)
    shutil.copyfile(bert / "vocab.txt", source / "vocab.txt")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    with pytest.raises(UserError, match=r"an export of roberta computes with type 0 alone"):
        load_checkpoint(source, CheckpointOptions(text_pairs=True))
    assert load_checkpoint(source).labels


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_other_texts_of_the_batch_do_not_change_a_pair(
    base: Path, architecture: str, precision: Precision
) -> None:
    """The logits of pairs and of single texts are the same to the bit, alone and together."""
    model = _model(base, architecture, precision)
    texts: list[Text] = [*PAIRS, *CORPUS[:3]]
    batch = [model.tokenizer.encode(text) for text in texts]
    together = _logits(model.infer(batch))
    alone = [_logits(model.infer([encoding]))[0] for encoding in batch]
    assert [row.tobytes() for row in together] == [row.tobytes() for row in alone]


def test_equal_ids_of_other_types_are_not_equal(base: Path) -> None:
    """A text that spells a separator has the ids of a pair, but neither its key nor its logits."""
    model = _model(base, "bert")
    pair = model.tokenizer.encode(TextPair("the soup is bad", "soup"))
    single = model.tokenizer.encode("the soup is bad [SEP] soup")
    assert pair.ids == single.ids
    assert pair.key != single.key
    one, other = _logits(model.infer([pair, single]))
    assert np.abs(one - other).max() > 1e-3


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (3, 4, (3, 4)),
        (5, 5, (5, 5)),
        (9, 3, (7, 3)),
        (3, 9, (3, 7)),
        (8, 7, (5, 5)),
        (90, 80, (5, 5)),
    ],
)
def test_tokens_are_taken_from_the_longer_text(
    first: int, second: int, kept: tuple[int, int]
) -> None:
    """The longer text is cut first; when both are equally long, both are cut."""
    assert longest_first(first, second, 10) == kept


@pytest.mark.parametrize("side", ["left", "right"])
def test_texts_are_cut_on_the_tokenizers_side(base: Path, side: str) -> None:
    """The ids and offsets are those that the tokenizer itself gives for a pair of few windows."""
    tokenizer = Tokenizer.from_file(str(exported(base, "bert").bundle / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(16, stride=3, direction=side)
    pairs = PairTokenizer(tokenizer, max_tokens=16, stride=3, has_types=True)
    for pair in PAIRS:
        whole = tokenizer.encode(pair.text, pair.text_pair)
        encoding = pairs.encode(pair)
        assert encoding.ids == whole.ids
        assert encoding.typed == sum(whole.type_ids)
        assert pairs.offsets(pair) == (whole.offsets, whole.sequence_ids)


@pytest.mark.parametrize(
    ("pair", "error", "says"),
    [
        (TextPair("soup", " "), EmptyText, "text_pair is empty"),
        (TextPair("", "soup"), EmptyText, "the text is empty"),
        (TextPair("soup", "a\0"), InvalidRequest, "text_pair holds a NUL"),
        (TextPair("\ud800", "x"), InvalidRequest, "the text holds half"),
    ],
)
def test_an_error_says_which_text_of_a_pair_is_bad(
    base: Path, pair: TextPair, error: type[Exception], says: str
) -> None:
    """A pair with a bad text fails alone, and its error calls the second text text_pair."""
    good, bad = _model(base, "bert").tokenizer.encode_batch(["soup", pair])
    assert isinstance(good, Encoding)
    assert isinstance(bad, error)
    assert str(bad).startswith(says)


def _logits(results: list[np.ndarray | InferenceFailed]) -> list[np.ndarray]:
    found = [row for row in results if not isinstance(row, InferenceFailed)]
    assert len(found) == len(results)
    return found
