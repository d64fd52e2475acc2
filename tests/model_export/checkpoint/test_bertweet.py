# ruff: noqa: RUF001 - signs of every kind are what is tested
"""BERTweet checkpoints: tokenizer, normalisation and export against transformers' own.

The package emoji 0.6.0 is installed for these tests: BertweetTokenizer takes the names of emoji
from it. All texts were written for these tests.
"""

import random
import shutil
from pathlib import Path
from typing import Any

import emoji
import numpy as np
import pytest
import torch
from sentiment_export.checkpoint.checkpoint import load_checkpoint
from sentiment_export.checkpoint.config import read_config
from sentiment_export.checkpoint.describe import describe
from sentiment_export.checkpoint.tokenizer import CheckpointTokenizer, load_tokenizer
from sentiment_export.export import export
from sentiment_service.engine.model.bundle import Precision
from sentiment_service.engine.text.text_tokenizer import WordCache, packed
from sentiment_service.engine.text.tweets import _CHARACTERS, normalise_bertweet
from sentiment_service.errors import UserError
from sentiment_service.settings.settings import CheckpointOptions
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.support.checkpoints import CORPUS
from tests.support.model_export.bertweet import make_bertweet
from tests.support.tiny_bundle import load

WORDS = """
hello don't can't cannot ain't I'm they're we've he'd I'll it’s isn't rock'n'roll 'tis x--y a_b
@bob @bob_1! @ #tag #a-b # a@b.co foo.com foo.co.uk/ab www.x.com http://t.co/abc https://x.org/(a)
https://x.org/w/A_(b_(c))_d (see http:/ http:a httpd HTTP www wWw. :-) :D <3 8) xD: d8 -> <-- ... …
&amp; &lt; &#39; &#x1f600; &#128; &#129; &bogus; &xe9; &xi; &#x; &#-5; &#99999999999; &rsquo;
555-123-4567 +1 (800) 555 1234 5551234567 3/4 1,000 10:30pm p.m. a.m.
!!!!! ---- 😀 ❤️ 👨‍👩‍👧 🇩🇪 👍🏽 1️⃣ “q” ’ é दिन 日本語 العربية ٣٤٥ ½ ™ ſ K İ
<br> <s> </s> <mask> <S> < > \u200d \ufe0f \ufe0e love bus soup bread lake sopa again
. / : ; = ( ) [ ] { } \\ | * ' " ~ - _ + % , ? ! & 8 0 12
"""
PIECES = [*WORDS.split(), *(" p . m .", " a . m ", "\u00a0", "\u3000", "\x1c", "\x85", "\n", " \t")]
TWEETS = (
    "@tram_news the 8:15 is late AGAIN... can't you tell us?? 😡 https://t.co/4kdPq #commute",
    "Isn't it lovely to wake up to snow? ❤️❤️ We've built a snowman &amp; he's huge",
    "RT @cook: 3/4 cup of flour, bake at 5 p.m. (see www.example.org/bread_(white)) :-)",
)


def _texts(count: int) -> list[str]:
    draw = random.Random(8)
    ends = ["", "", " ", "  ", "\n"]
    made = (
        "".join(draw.choice(PIECES) + draw.choice(ends) for _ in range(draw.randint(1, 9)))
        for _ in range(count)
    )
    return [*TWEETS, *CORPUS, *PIECES, *made]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint in the layout of finiteautomata/bertweet-base-sentiment-analysis."""
    return make_bertweet(tmp_path_factory.mktemp("bertweet") / "source")


@pytest.fixture(scope="module")
def bundle(source: Path) -> Path:
    """Its export in fp32 and int8."""
    export(load_checkpoint(source), source.with_name("bundle"))
    return source.with_name("bundle")


def _made(source: Path) -> CheckpointTokenizer:
    return load_tokenizer(source, read_config(source, str(source)))


def _slow(source: Path, *, normalization: bool) -> Any:
    return AutoTokenizer.from_pretrained(source, use_fast=False, normalization=normalization)


def test_normalisation_equals_that_of_transformers(source: Path) -> None:
    """The words of thousands of texts are equal. Texts with half a surrogate pair are left out."""
    slow = _slow(source, normalization=True)
    special = set(slow.added_tokens_encoder)
    for text in _texts(2_000):
        parts = slow.tokens_trie.split(text)
        words = [part if part in special else slow.normalizeTweet(part) for part in parts]
        assert normalise_bertweet(text) == " ".join(filter(None, words)), text


def test_emoji_have_the_names_of_the_package() -> None:
    """Every emoji of one character becomes what emoji 0.6.0 makes of it, and nothing else does."""
    single = {sign for sign in emoji.UNICODE_EMOJI if len(sign) == 1} | {"\ufe0f"}
    assert {sign: emoji.demojize(sign) for sign in single} == {
        sign: name for sign, name in _CHARACTERS.items() if sign not in "’…"
    }


@pytest.mark.parametrize("normalization", [False, True])
def test_ids_equal_those_of_the_slow_tokenizer(
    source: Path, tmp_path: Path, normalization: bool
) -> None:
    """The fast tokenizer, the tokenizer.json as served and the cache of words give the slow ids;
    an id after those of the slow tokenizer stands for a piece that it does not know."""
    slow = _slow(source, normalization=normalization)
    _made(source).write(tmp_path, 128)
    served = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    served.enable_truncation(128, stride=30)
    texts = _texts(1_000)
    read = [normalise_bertweet(text) for text in texts] if normalization else texts
    cached = WordCache(served, max_tokens=128).encode(read)
    new = 0
    for text, seen, known in zip(texts, read, cached, strict=True):
        expected = slow(text)["input_ids"]
        ids = served.encode(seen).ids
        assert known is None or known == packed(ids)
        if len(expected) <= 128:
            assert [i if i < len(slow) else slow.unk_token_id for i in ids] == expected, text
        new += sum(i >= len(slow) for i in ids)
    assert new > 100
    assert sum(ids is not None for ids in cached) > 250


def test_pairs_have_two_separators_between_them(source: Path) -> None:
    """``<s> A </s></s> B </s>``, as RoBERTa's, and no other token type."""
    pair = _made(source).tokenizer.encode("I love", "the bus")
    slow = _slow(source, normalization=False)
    assert pair.ids == slow("I love", "the bus")["input_ids"]
    assert set(pair.type_ids) == {0}


def test_unknown_pieces_are_embedded_as_the_unknown_token(source: Path) -> None:
    """Their rows of the embedding equal that of <unk>; the other rows are the checkpoint's."""
    checkpoint = load_checkpoint(source)
    known = len(_slow(source, normalization=True))
    plain = AutoModelForSequenceClassification.from_pretrained(source).get_input_embeddings().weight
    rows = checkpoint.model.get_input_embeddings().weight
    assert len(rows) == known + checkpoint.tokenizer.added_rows > known == len(plain)
    assert torch.equal(rows[:known], plain)
    assert (rows[known:] == plain[checkpoint.tokenizer.unknown_id]).all()


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("int8", 0.5)])
def test_served_logits_equal_those_of_transformers(
    source: Path, bundle: Path, precision: Precision, tolerance: float
) -> None:
    """Raw tweets through the bundle and through transformers' own tokenizer and model; with other
    texts in the batch, the logits are the same to the bit."""
    model = load(bundle, precision)
    assert model.labels == ["negative", "neutral", "positive"]
    assert (model.max_tokens, model.preprocessing) == (128, "bertweet")
    slow = _slow(source, normalization=True)
    reference = AutoModelForSequenceClassification.from_pretrained(source).eval()
    encodings = [model.tokenizer.encode(text) for text in (*TWEETS, *CORPUS)]
    together = [np.asarray(logits) for logits in model.infer(encodings)]
    for text, encoding, found in zip((*TWEETS, *CORPUS), encodings, together, strict=True):
        with torch.inference_mode():
            logits = reference(**slow(text, return_tensors="pt")).logits[0].numpy()
        np.testing.assert_allclose(found, logits, atol=tolerance)
        assert np.array_equal(found, np.asarray(model.infer([encoding])[0]))


def test_the_normalisation_is_the_tokenizers_choice(source: Path, tmp_path: Path) -> None:
    """Without ``normalization`` in tokenizer_config.json, texts stay as they are, unless asked."""
    plain = make_bertweet(tmp_path / "plain", normalization=False)
    assert load_checkpoint(source).preprocessing == "bertweet"
    assert load_checkpoint(source, CheckpointOptions(preprocessing="none")).preprocessing == "none"
    assert load_checkpoint(plain).preprocessing == "none"
    assert (
        load_checkpoint(plain, CheckpointOptions(preprocessing="bertweet")).preprocessing
        == "bertweet"
    )


def test_describe_names_tokenizer_and_normalisation(source: Path) -> None:
    """Byte pair encoding from two files, 128 tokens, and what becomes of a text."""
    told = describe(source)
    assert told.problems == []
    assert told.tokenizer == "byte pair encoding (fastBPE)"
    assert told.max_tokens == 128
    assert "tokenizer.json is made from vocab.txt and bpe.codes" in told.changes
    assert "texts are normalised: preprocessing bertweet" in told.changes


def test_a_tokenizer_json_beside_the_codes_is_not_read(source: Path, tmp_path: Path) -> None:
    """transformers reads the codes, too: a BertweetTokenizer has no fast form there."""
    path = Path(shutil.copytree(source, tmp_path, dirs_exist_ok=True))
    Tokenizer(WordLevel({"<unk>": 0})).save(str(path / "tokenizer.json"))
    assert _made(path).tokenizer.to_str() == _made(source).tokenizer.to_str()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("bpe.codes", "", r"bpe\.codes is damaged: it is empty"),
        ("bpe.codes", "a b 3\na\n", r"bpe\.codes is damaged: line 2 is not two parts and a count"),
        ("bpe.codes", "<!DOCTYPE>\n", r"bpe\.codes is damaged: line 1 is not"),
        ("bpe.codes", "a b\nc d\n", r"bpe\.codes has no counts, as transformers 5 saves it"),
        ("vocab.txt", "a@@ 3\nb 3\nb 2\nc 1\n", r"vocab\.txt is damaged: it holds a piece twice"),
        ("vocab.txt", "<html>\n", r"vocab\.txt is damaged: line 1 is not a piece and a count"),
    ],
)
def test_a_damaged_file_is_named(
    source: Path, tmp_path: Path, name: str, content: str, says: str
) -> None:
    """One line says which file it is and what is wrong with it."""
    path = Path(shutil.copytree(source, tmp_path, dirs_exist_ok=True))
    (path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=says) as caught:
        _made(path)
    assert "\n" not in str(caught.value)
