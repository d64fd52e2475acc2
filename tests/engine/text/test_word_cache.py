"""The cache of words gives exactly the ids that the tokenizer gives."""

import random
import threading

import pytest
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE
from sentiment_service.engine.text.text_tokenizer import ID_BYTES, MAX_WORD_CHARS, WordCache, packed
from tokenizers import Tokenizer, normalizers
from tokenizers.models import WordLevel
from tokenizers.normalizers import Replace, Strip
from tokenizers.pre_tokenizers import Metaspace, WhitespaceSplit

MAX_TOKENS = 128
UNKNOWN = "[UNK]"
WORDS = """
good Good GOOD day don't can't!! ... #tag @user http 3:30pm 50% café naïve Straße ΑΣ привет مرحبا
नमस्ते 日本語 日本 한국어 \uff46\uff55 \uff8a\uff9f — …
\u0301x x\u0301 \u093ex a\u0338 \u0338 <\u0338 \u00b4 \u00b4x
😀 👍🏽 🏽 ❤️ \ufe0f 👩\u200d👩\u200d👧 \u200d 🇫🇷 \u0600 \u0d4e \ufeff \xad \x01
[MASK] [mask] [ MASK ] [CLS] <s> </s> ▁ x▁ ##ing -
"""
PIECES = [*WORDS.split(), *("a" * MAX_WORD_CHARS, "b" * (MAX_WORD_CHARS + 1), "z" * 150, "\x85")]
SEPARATORS = [" "] * 8 + ["", "  ", "\n", "\t", "\r\n", "\xa0", "\u2028", "\x1c", "\u3000"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The embedded model's tokenizer, as the model sets it up."""
    tokenizer = Tokenizer.from_file(str(EMBEDDED_BUNDLE / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS, stride=31)
    return tokenizer


def _texts(count: int) -> list[str]:
    draw = random.Random(3)
    return [
        "".join(draw.choice(PIECES) + draw.choice(SEPARATORS) for _ in range(draw.randint(1, 40)))
        for _ in range(count)
    ]


def _reference(tokenizer: Tokenizer, texts: list[str]) -> list[bytes]:
    return [packed(encoding.ids) for encoding in tokenizer.encode_batch_fast(texts)]


def test_ids_equal_those_of_the_tokenizer(tokenizer: Tokenizer) -> None:
    """Ids from the cache equal the tokenizer's, whatever stands beside whatever, and most plain
    texts have them."""
    cache = WordCache(tokenizer, max_tokens=MAX_TOKENS)
    texts = _texts(4_000)
    found = [
        ids for start in range(0, len(texts), 5) for ids in cache.encode(texts[start : start + 5])
    ]
    expected = _reference(tokenizer, texts)
    wrong = [
        text
        for text, ids, reference in zip(texts, found, expected, strict=True)
        if ids is not None and ids != reference
    ]
    assert wrong == []
    assert sum(ids is not None for ids in found) > 480
    plain = [f"I saw {number} good films, and 1 bad one!" for number in range(100)]
    assert cache.encode(plain) == _reference(tokenizer, plain)


def test_a_text_that_is_too_long_is_left_to_the_tokenizer(tokenizer: Tokenizer) -> None:
    """Only the tokenizer truncates: a text of more than max_tokens tokens has no ids here."""
    cache = WordCache(tokenizer, max_tokens=MAX_TOKENS)
    fits, too_long = " ".join(["good"] * (MAX_TOKENS - 2)), " ".join(["good"] * (MAX_TOKENS - 1))
    ids, none = cache.encode([fits, too_long])
    assert ids is not None
    assert len(ids) == MAX_TOKENS * ID_BYTES
    assert none is None


def test_words_are_tokenised_once(tokenizer: Tokenizer) -> None:
    """A text of known words does not reach the tokenizer."""
    cache = WordCache(tokenizer, max_tokens=MAX_TOKENS)
    first = cache.encode(["one good day", "a day, good"])
    del cache._tokenizer  # none is asked from here on
    assert cache.encode(["one good day", "a day, good"]) == first


def test_memory_is_bounded(tokenizer: Tokenizer) -> None:
    """However many different words come, no more than max_words are kept, and long words are not
    kept at all; the ids stay right."""
    cache = WordCache(tokenizer, max_tokens=MAX_TOKENS, max_words=50)
    for number in range(200):
        texts = [f"w{number} \u0301m{number} good {'long' * number}"]
        (ids,) = cache.encode(texts)
        assert ids in (None, *_reference(tokenizer, texts))
        assert len(cache._ids) + len(cache._dependent) <= 50
        assert all(len(word) <= MAX_WORD_CHARS for word in cache._ids)


def test_many_threads_may_use_it(tokenizer: Tokenizer) -> None:
    """Threads that look up, learn and forget at the same time all get right ids."""
    cache = WordCache(tokenizer, max_tokens=MAX_TOKENS, max_words=60)
    texts = _texts(300)
    expected = _reference(tokenizer, texts)
    wrong: list[str] = []

    def work(seed: int) -> None:
        order = random.Random(seed).sample(range(len(texts)), len(texts))
        for index in order:
            (ids,) = cache.encode([texts[index]])
            if ids not in (None, expected[index]):
                wrong.append(texts[index])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_words_that_depend_on_their_neighbours_are_not_cached() -> None:
    """If a word changes the word before it, a text with this word is left to the tokenizer."""
    words = {"a": 0, "b": 1, "b\u0301": 2, "c": 3, UNKNOWN: 4}
    tokenizer = Tokenizer(WordLevel(words, UNKNOWN))
    tokenizer.normalizer = Replace(" \u0301", "\u0301")  # an accent joins the word before it
    tokenizer.pre_tokenizer = WhitespaceSplit()
    cache = WordCache(tokenizer, max_tokens=MAX_TOKENS)
    assert cache.encode(["a b c", "a b \u0301 c"]) == [packed([0, 1, 3]), None]
    assert _reference(tokenizer, ["a b \u0301 c"]) == [packed([0, 2, 3])]


def test_words_that_change_at_the_end_of_a_text_are_not_cached() -> None:
    """As DeBERTa's: a word without tokens leaves the space before it there, and not elsewhere."""
    tokenizer = Tokenizer(WordLevel({"▁a": 0, "▁": 1, UNKNOWN: 2}, UNKNOWN))
    steps = [Strip(), Replace("\u200f", ""), Replace("  ", " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = Metaspace()
    cache = WordCache(tokenizer, max_tokens=MAX_TOKENS)
    texts = ["a a", "a \u200f a", "a \u200f"]
    assert _reference(tokenizer, texts) == [packed([0, 0]), packed([0, 0]), packed([0, 1])]
    assert cache.encode(texts) == [packed([0, 0]), None, None]


def test_tokenizers_that_cut_in_an_unknown_way_are_not_cached() -> None:
    """Without a step that cuts a text into words, every text is left to the tokenizer."""
    tokenizer = Tokenizer(WordLevel({"a": 0, "a b": 1, UNKNOWN: 2}, UNKNOWN))
    assert WordCache(tokenizer, max_tokens=MAX_TOKENS).encode(["a", "a b"]) == [None, None]
