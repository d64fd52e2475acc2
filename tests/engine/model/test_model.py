"""A loaded bundle: from text to encoding, to logits, and to scores, also of a calibrated model."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE, Bundle
from sentiment_service.engine.model.model import Model, Scored, outcomes_of
from sentiment_service.engine.options import DEFAULTS
from sentiment_service.engine.text.input_tokenizer import EncodedText, normalise_tweet
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.errors import EmptyText, InferenceFailed, ServiceError, UserError
from tokenizers import Tokenizer

from tests.support.tiny_bundle import (
    LABELS,
    MAX_TOKENS,
    calibrate,
    load,
    make_bundle,
    write_manifest,
)


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


def test_auto_takes_what_a_cpu_does_best(bundle: Path) -> None:
    """On a CPU, auto chooses int8 if the bundle has it, and fp32 otherwise."""
    both, one = load(EMBEDDED_BUNDLE, "auto"), load(bundle, "auto")
    assert (both.precision, one.precision) == ("int8", "fp32")
    assert both.provider == "CPUExecutionProvider"


# A temperature changes scores, and neither labels nor logits


LOGITS = st.lists(st.floats(-50, 50, width=32), min_size=3, max_size=3)


@pytest.fixture(scope="module")
def plain(bundle: Path) -> Model:
    """The tiny model, not calibrated."""
    return load(bundle)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[float, Model]:
    """The tiny model with each of four temperatures."""
    path = make_bundle(tmp_path_factory.mktemp("calibrated") / "tiny")
    return {value: load(calibrate(path, temperature=value)) for value in (0.05, 1.0, 2.0, 20.0)}


def test_scores_are_the_softmax_of_logits_divided_by_the_temperature(
    models: dict[float, Model],
) -> None:
    """With temperature 2, the scores are those of half the logits, for one text and for many."""
    logits = 2 * np.log(np.array([[1, 2, 5], [1, 1, 2]], np.float32))
    expected = [[0.125, 0.25, 0.625], [0.25, 0.25, 0.5]]
    np.testing.assert_allclose(models[2.0].scores(logits), expected, 1e-6)
    np.testing.assert_allclose(models[2.0].scores(logits[0]), expected[0], 1e-6)


@given(rows=st.lists(LOGITS, min_size=1, max_size=5))
def test_temperature_one_changes_no_bit(
    plain: Model, models: dict[float, Model], rows: list[list[float]]
) -> None:
    """The scores of temperature 1 are those of a model without calibration, byte for byte."""
    logits = np.array(rows, np.float32)
    assert models[1.0].scores(logits).tobytes() == plain.scores(logits).tobytes()


def _label(model: Model, logits: list[float]) -> str:
    scored: Scored = (logits, model.scores(np.array(logits, np.float32)).tolist())
    encoding = Encoding.of([1, 2])
    (prediction,) = outcomes_of(model, [EncodedText(encoding, DEFAULTS, [encoding])], [scored])
    assert not isinstance(prediction, ServiceError)
    assert sum(prediction["scores"].values()) == pytest.approx(1)
    assert prediction["score"] == prediction["scores"][prediction["label"]]
    return prediction["label"]


@given(logits=LOGITS, temperature=st.sampled_from([0.05, 1.0, 2.0, 20.0]))
def test_no_temperature_changes_a_label(
    models: dict[float, Model], logits: list[float], temperature: float
) -> None:
    """The label is the one with the highest logit, and the scores add up to 1."""
    assert _label(models[temperature], logits) == LABELS[logits.index(max(logits))]


def test_scores_that_round_to_the_same_number_do_not_change_the_label(
    models: dict[float, Model],
) -> None:
    """Where two scores are equal after rounding, the label is still that of the higher logit."""
    close = [0.0, 1.0, float(np.nextafter(np.float32(1), np.float32(2)))]
    scores = models[20.0].scores(np.array(close, np.float32))
    assert scores[1] == scores[2]
    assert _label(models[20.0], close) == LABELS[2]


def test_logits_stay_as_they_are(plain: Model, models: dict[float, Model]) -> None:
    """What the model computed is the same to the bit with and without a temperature."""
    encodings = [plain.tokenizer.encode(text) for text in ("love", "worst of all", "love it")]
    before, after = plain.compute(encodings), models[2.0].compute(encodings)
    for one, other in zip(before, after, strict=True):
        assert not isinstance(one, ServiceError)
        assert not isinstance(other, ServiceError)
        assert one[0] == other[0]
        assert one[1] != other[1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"temperature": 0}, "temperature: Input should be greater than or equal to 0.01"),
        ({"temperature": -1.5}, "temperature: Input should be greater than or equal to 0.01"),
        ({"temperature": "warm"}, "temperature: Input should be a valid number"),
        ({"temperature": float("inf")}, "temperature: Input should be less than or equal to 100"),
        ({"temperature": float("nan")}, "temperature: Input should be"),
        ({"method": "vector"}, "method: Input should be 'temperature'"),
    ],
)
def test_a_record_that_cannot_be_applied_is_refused(
    tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    """A bundle with an impossible temperature or another method is not served without it."""
    path = calibrate(make_bundle(tmp_path / "tiny"), **changes)
    with pytest.raises(UserError, match=f"variants.fp32.calibration.{says}"):
        Bundle.open(path)
