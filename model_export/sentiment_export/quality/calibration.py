"""Fits a temperature, so that scores match how often they are right, and measures the effect.

Guo et al. 2017, "On Calibration of Modern Neural Networks" (arXiv:1706.04599). All logits of a text
are divided by the same number, so its label stays the same. ``logits`` have the shape [texts,
labels] in all functions, and ``gold`` has the index of each text's label. For a multi-label model,
each label of a text is a decision with two logits: see ``evaluation.as_decisions``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentiment_service.engine.model.bundle import BeforeAfter, Calibration, CalibrationLoss
from sentiment_service.errors import UserError

BINS = 15
FOLDS = 5
GOLDEN = (5**0.5 - 1) / 2  # the share that each step of the search leaves
PRECISION = 1e-6  # of a temperature, relative
TEMPERATURES = np.geomspace(0.01, 100, 41)  # tried first; the best is between two of them

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.integer[Any]]
Figure = Callable[[Floats, Indices], float]


def calibrate(
    logits: Floats, gold: Indices, loss: CalibrationLoss, sha256: str, decisions: int = 1
) -> Calibration:
    """Fit a temperature; ``sha256`` is the digest of the labelled file.

    Each text has so many ``decisions``, one after the other; they are in one fold.

    Raises:
        UserError: no temperature fits, or, cross-validated, the ECE or the log loss is worse.
    """
    if (logits.argmax(axis=1) == gold).all():
        raise UserError(
            "no temperature fits, because all predicted labels are right; calibrate on texts that "
            "the model was not trained on"
        )
    temperature = best_temperature(logits, gold, loss)
    # Near the largest one, all scores are alike, and a still larger one would fit better.
    lost = LOSSES[loss]
    best, flat = (lost(logits / divisor, gold) for divisor in (temperature, TEMPERATURES[-1]))
    if temperature > TEMPERATURES[-2] or best >= flat:
        raise UserError(
            "no temperature fits, because the scores say nothing about the labels of these texts; "
            "check the order of the model's labels"
        )
    held_out = np.empty_like(logits)
    for fold in range(FOLDS):
        inside = np.arange(len(gold)) // decisions % FOLDS == fold
        held_out[inside] = logits[inside] / best_temperature(logits[~inside], gold[~inside], loss)

    def compared(figure: Figure) -> BeforeAfter:
        return BeforeAfter(before=figure(logits, gold), after=figure(held_out, gold))

    fitted = Calibration(
        temperature=temperature,
        loss=loss,
        texts=len(gold) // decisions,
        sha256=sha256,
        folds=FOLDS,
        ece=compared(expected_calibration_error),
        log_loss=compared(log_loss),
    )
    if fitted.ece.after > fitted.ece.before or fitted.log_loss.after > fitted.log_loss.before:
        raise UserError(
            "no temperature makes the scores better on texts that it was not fitted on: "
            f"{fitted.line()}; leave the model as it is, or calibrate on more texts"
        )
    return fitted


def best_temperature(logits: Floats, gold: Indices, loss: CalibrationLoss) -> float:
    """The temperature between 0.01 and 100 that minimises the loss."""

    def lost(temperature: float) -> float:
        return LOSSES[loss](logits / temperature, gold)

    near = int(np.argmin([lost(temperature) for temperature in TEMPERATURES]))
    low, *_, high = map(float, TEMPERATURES[max(near - 1, 0) : near + 2])
    while high - low > PRECISION * high:  # golden-section search
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, right) if lost(left) < lost(right) else (left, high)
    return (low + high) / 2


def expected_calibration_error(logits: Floats, gold: Indices) -> float:
    """The expected calibration error (ECE) of the softmax of the logits, in [0, 1].

    The texts are put into 15 bins of equal width by the score of their predicted label. The error
    is the mean, over texts, of the distance between the accuracy and the mean score of their bin
    (Naeini et al. 2015, as used by Guo et al. 2017).
    """
    scores = np.exp(_log_softmax(logits))
    confidence = scores.max(axis=1)
    right = scores.argmax(axis=1) == gold
    bins = np.ceil(confidence * BINS).astype(int)
    return float(np.abs(np.bincount(bins, weights=right - confidence)).sum() / len(gold))


def log_loss(logits: Floats, gold: Indices) -> float:
    """The mean negative logarithm of the gold labels' scores, in nats."""
    return -float(np.take_along_axis(_log_softmax(logits), gold[:, None], axis=1).mean())


def brier_score(logits: Floats, gold: Indices) -> float:
    """The mean squared distance between the scores and 1 for the gold label, 0 for the others."""
    ideal = np.eye(logits.shape[1])[gold]
    return float(((np.exp(_log_softmax(logits)) - ideal) ** 2).sum(axis=1).mean())


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=1, keepdims=True)
    scores: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return scores


LOSSES: dict[CalibrationLoss, Figure] = {"log": log_loss, "brier": brier_score}
