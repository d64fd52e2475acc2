"""A loaded bundle: from text to encoding, from encoding to logits, from logits to scores."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.text.input_tokenizer import normalise_tweet
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.errors import EmptyText, InferenceFailed
from tokenizers import Tokenizer

from tests.support.checkpoints import exported
from tests.support.tiny_bundle import MAX_TOKENS, load, make_bundle, write_manifest


@pytest.fixture(scope="module")
def tiny(bundle: Path) -> Model:
    """A model with one token per word, plus <s> and </s>; 16 tokens fit."""
    return load(bundle)


@pytest.fixture(scope="module")
def embedded() -> Model:
    """The model that is served by default."""
    return load(EMBEDDED_BUNDLE, "int8")


@given(words=st.integers(1, 200))
def test_tokens_are_counted_with_special_ones_before_truncation(tiny: Model, words: int) -> None:
    """``tokens`` counts all tokens, ``ids`` has those that fit, ``truncated`` compares both."""
    encoding = tiny.tokenizer.encode(" ".join(["love"] * words))
    assert encoding.tokens == words + 2
    assert len(encoding) == len(encoding.ids) == min(words + 2, MAX_TOKENS)
    assert encoding.truncated == (words + 2 > MAX_TOKENS)


def test_a_truncated_text_keeps_its_beginning_and_its_end_token(tiny: Model) -> None:
    """Truncation removes the end of the text, but keeps </s>."""
    assert tiny.tokenizer.encode("love " * 20 + "worst").ids == [1] + [4] * 14 + [2]


@given(
    words=st.lists(
        st.sampled_from(["good", "Unglaublichkeiten", "@anna", "http://x.y/z", "😀", "ok.", "يوم"]),
        min_size=1,
        max_size=60,
    ),
    repeated=st.sampled_from([1, 7, 60]),
)
@settings(max_examples=30, deadline=None)
def test_the_count_equals_that_of_a_tokenizer_that_truncates_nothing(
    embedded: Model, words: list[str], repeated: int
) -> None:
    """No token is counted twice or forgotten, however many pieces the text overflows by."""
    text = " ".join(words * repeated)
    whole = Tokenizer.from_file(str(EMBEDDED_BUNDLE / "tokenizer.json"))
    whole.no_truncation()
    whole.no_padding()
    ids = whole.encode(normalise_tweet(text)).ids
    encoding = embedded.tokenizer.encode(text)
    assert encoding.tokens == len(ids)
    assert len(encoding) == min(len(ids), embedded.max_tokens)
    assert encoding.ids[:-1] == ids[: len(encoding) - 1]


def test_the_normalisation_of_the_manifest_is_applied(tmp_path: Path) -> None:
    """``tweet`` makes one token of any user name; ``none`` leaves the text unchanged."""
    tweet, none = _with_and_without(tmp_path)
    assert tweet.tokenizer.encode("@anna love").ids == tweet.tokenizer.encode("@bob love").ids
    assert none.tokenizer.encode("@anna love").ids != none.tokenizer.encode("@user love").ids


def _with_and_without(directory: Path) -> tuple[Model, Model]:
    """One tokenizer that distinguishes ``@anna`` from ``@user``, with and without normalisation."""
    models = []
    for preprocessing in ("tweet", "none"):
        path = make_bundle(directory / preprocessing)
        tokenizer = json.loads((path / "tokenizer.json").read_text())
        tokenizer["model"]["vocab"] |= {"@anna": 7, "@user": 8}
        (path / "tokenizer.json").write_text(json.dumps(tokenizer))
        write_manifest(path, preprocessing=preprocessing)
        models.append(load(path))
    return models[0], models[1]


@pytest.mark.parametrize("text", ["\u200b", "\u200d\u200c", "\x01\x02", "\ufeff \u200b", "\u00ad"])
def test_a_text_of_invisible_characters_is_empty(embedded: Model, tiny: Model, text: str) -> None:
    """A text of invisible characters is empty, whatever a tokenizer would do with them."""
    for model in (embedded, tiny):
        with pytest.raises(EmptyText, match="empty or blank"):
            model.tokenizer.encode(text)


@pytest.mark.parametrize("text", ["\uf8ff", "\U000e1000\ue000", "\ufffd"])
def test_characters_that_the_tokenizer_drops_are_one_unknown_token(
    embedded: Model, text: str
) -> None:
    """Private and unassigned characters, such as a font's own icons, count as text."""
    assert embedded.tokenizer.encode(text) == embedded.tokenizer.encode("[UNK]")
    assert embedded.tokenizer.encode(text).tokens == 3


def test_logits_come_one_array_a_text_in_order(tiny: Model) -> None:
    """Each text gets an array of shape [labels], whatever its padding; one without finite logits
    fails alone."""
    texts = ["love", "nan", "worst worst", "the meeting is at three"]
    first, failed, *others = tiny.infer([tiny.tokenizer.encode(text) for text in texts])
    assert isinstance(failed, InferenceFailed)
    expected = [[-1, 0, 4], [8, 0, -2], [0, 2.5, 0]]
    for result, logits in zip([first, *others], expected, strict=True):
        assert not isinstance(result, InferenceFailed)
        assert list(result) == logits


def test_scores_of_extreme_logits_are_finite(tiny: Model) -> None:
    """Extreme logits give neither overflow nor a warning."""
    logits = np.array([[1e4, -1e4, 0], [-3e38, -3e38, -3e38]], np.float32)
    expected = np.array([[1, 0, 0], [1 / 3, 1 / 3, 1 / 3]])
    np.testing.assert_allclose(tiny.scores(logits), expected, 1e-6)


def test_scores_of_a_multi_label_model_are_sigmoids(tmp_path: Path) -> None:
    """Each label has its own sigmoid score; logits of any size give no warning."""
    model = load(make_bundle(tmp_path / "multi", problem_type="multi_label_classification"))
    assert model.multi_label
    logits = np.array([0, 200, -200, 1e30, -1e30, np.log(3)], np.float32)
    scores = model.scores(logits)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, [0.5, 1, 0, 1, 0, 0.75], atol=1e-6)


def test_auto_takes_what_a_cpu_does_best(bundle: Path, base: Path) -> None:
    """On a CPU, auto chooses int8 if the bundle has it, and fp32 otherwise."""
    both, one = load(exported(base, "bert").bundle, "auto"), load(bundle, "auto")
    assert (both.precision, one.precision) == ("int8", "fp32")
    assert both.provider == "CPUExecutionProvider"


def test_a_failing_batch_writes_nothing_past_the_log(
    tiny: Model, capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime does not write to standard error, whose reader may have stopped."""
    with pytest.raises(Exception, match="out of data bounds"):
        tiny.infer([Encoding.of([1, 99_999, 2])])
    assert capfd.readouterr().err == ""
