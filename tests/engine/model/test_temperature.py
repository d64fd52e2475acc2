"""A calibrated model: its temperature changes scores, and neither labels nor logits."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentiment_service.engine.model.bundle import Bundle
from sentiment_service.engine.model.model import Model, Scored, outcomes_of
from sentiment_service.engine.options import DEFAULTS
from sentiment_service.engine.text.input_tokenizer import EncodedText
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.errors import ServiceError, UserError

from tests.support.tiny_bundle import LABELS, calibrate, load, make_bundle

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
