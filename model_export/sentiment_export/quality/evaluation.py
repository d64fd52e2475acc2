"""Classifies labelled texts, scores and calibrates what a model says, and compares it with others.

A variant is compared with fp32, and a distilled student with its teacher.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from sentiment_service.engine.model.bundle import (
    TEXT_TOKENS,
    BeforeAfter,
    Calibration,
    CalibrationLoss,
    Evaluation,
    Precision,
)
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.errors import ServiceError, UserError
from tqdm import tqdm

from sentiment_export.quality.labelled import Example, Labels
from sentiment_export.quality.scores import Scores, marks, score

# Calibration: Guo et al. 2017, "On Calibration of Modern Neural Networks" (arXiv:1706.04599). All
# logits of a text are divided by the same number, so its label stays the same. ``logits`` and
# ``gold`` are [texts, labels]; ``gold`` is how likely each label is: 1 for the right one, or a
# teacher's scores. For a multi-label model, each label of a text is a decision with two logits: see
# ``as_decisions``.

BINS = 15
FOLDS = 5
GOLDEN = (5**0.5 - 1) / 2  # the share that each step of the search leaves
PRECISION = 1e-6  # of a temperature, relative
TEMPERATURES = np.geomspace(0.01, 100, 41)  # tried first; the best is between two of them

Floats = NDArray[np.floating[Any]]
Figure = Callable[[Floats, Floats], float]


def calibrate(
    logits: Floats, gold: Floats, loss: CalibrationLoss, sha256: str, decisions: int = 1
) -> Calibration:
    """Fit a temperature; ``sha256`` is the digest of the labelled file.

    Each text has so many ``decisions``, one after the other; they are in one fold.
    """
    if (_right(logits, gold) == 1).all():
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


def best_temperature(logits: Floats, gold: Floats, loss: CalibrationLoss) -> float:
    """The temperature between 0.01 and 100 that minimises the loss."""

    def lost(temperature: float) -> float:
        return LOSSES[loss](logits / temperature, gold)

    near = int(np.argmin([lost(temperature) for temperature in TEMPERATURES]))
    low, *_, high = map(float, TEMPERATURES[max(near - 1, 0) : near + 2])
    while high - low > PRECISION * high:  # golden-section search
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, right) if lost(left) < lost(right) else (left, high)
    return (low + high) / 2


def expected_calibration_error(logits: Floats, gold: Floats) -> float:
    """The expected calibration error (ECE) of the softmax of the logits, in [0, 1].

    The texts are put into 15 bins of equal width by the score of their predicted label. The error
    is the mean, over texts, of the distance between the accuracy and the mean score of their bin
    (Naeini et al. 2015, as used by Guo et al. 2017).
    """
    scores = np.exp(_log_softmax(logits))
    confidence = scores.max(axis=1)
    right = _right(logits, gold)
    bins = np.ceil(confidence * BINS).astype(int)
    return float(np.abs(np.bincount(bins, weights=right - confidence)).sum() / len(gold))


def log_loss(logits: Floats, gold: Floats) -> float:
    """The mean negative logarithm of the gold labels' scores, in nats."""
    return -float((gold * _log_softmax(logits)).sum(axis=1).mean())


def brier_score(logits: Floats, gold: Floats) -> float:
    """The mean squared distance between the scores and 1 for the gold label, 0 for the others."""
    return float(((np.exp(_log_softmax(logits)) - gold) ** 2).sum(axis=1).mean())


def _right(logits: Floats, gold: Floats) -> Floats:
    """How likely each text's predicted label is."""
    return np.take_along_axis(gold, logits.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=1, keepdims=True)
    scores: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return scores


LOSSES: dict[CalibrationLoss, Figure] = {"log": log_loss, "brier": brier_score}


T = TypeVar("T")
TEXTS_PER_BATCH = 16


def evaluate(model: Model, examples: Sequence[Example]) -> tuple[Scores, list[Labels]]:
    """Classify every example as the service does; the scores, and the predicted labels."""
    logits = logits_of_examples(model, examples)
    predicted = _predicted(model, model.scores(logits) if model.multi_label else logits)
    gold, groups = [e.labels for e in examples], [e.group for e in examples]
    by = groups if any(groups) else ()
    scores = score(gold, predicted, model.labels, by, multi_label=model.multi_label)
    decisions, right = as_decisions(model, logits, marks(gold, model.labels))
    decisions = decisions / model.temperature
    encodings = [model.tokenizer.encode(example.text) for example in examples]
    tokens = [encoding.tokens for encoding in encodings]
    unknown = model.tokenizer.texts.unknown_tokens
    texts = np.bincount(np.searchsorted(TEXT_TOKENS, tokens), minlength=len(TEXT_TOKENS) + 1)
    scores = replace(
        scores,
        ece=expected_calibration_error(decisions, right),
        log_loss=log_loss(decisions, right),
        lengths=dict(zip(Evaluation().lengths, texts.tolist(), strict=True)),
        tokens=sum(tokens),
        unknown_tokens=sum(unknown([one], one.tokens) for one in encodings),
    )
    return scores, predicted


def _predicted(model: Model, scores: NDArray[np.float32]) -> list[Labels]:
    """Which labels each text gets; logits do as well where it gets one."""
    if model.multi_label:
        return [tuple(model.chosen(row)) for row in scores]
    return [(model.labels[index],) for index in scores.argmax(axis=1)]


def as_decisions(
    model: Model, logits: NDArray[np.float32], likely: Floats | NDArray[np.bool_]
) -> tuple[NDArray[np.float32], Floats]:
    """Logits [decisions, classes], and how likely each class is, from [texts, labels] of both.

    A text is one decision between the labels. For a multi-label model, each label of a text is one:
    its sigmoid is the softmax of the logits 0 (no) and its own (yes).
    """
    likely = likely.astype(np.float64)
    if not model.multi_label:
        return logits, likely
    yes, sure = logits.reshape(-1), likely.reshape(-1)
    return np.stack([np.zeros_like(yes), yes], axis=1), np.stack([1 - sure, sure], axis=1)


def logits_of_examples(model: Model, examples: Sequence[Example]) -> NDArray[np.float32]:
    """The logits [examples, labels] of the examples, in the same order."""
    encodings = []
    for row, example in enumerate(examples, start=1):
        try:
            encodings.append(model.tokenizer.encode(example.text))
        except ServiceError as error:
            raise UserError(f"labelled text {row}: {error.detail}") from error
    by_length = sorted(range(len(encodings)), key=lambda index: len(encodings[index]))
    logits = np.empty((len(examples), len(model.labels)), dtype=np.float32)
    with tqdm(total=len(examples), desc=model.precision, unit="text", disable=None) as progress:
        for rows in batches(by_length, TEXTS_PER_BATCH):
            answers = model.infer([encodings[row] for row in rows])
            for row, answer in zip(rows, answers, strict=True):
                if isinstance(answer, ServiceError):
                    raise UserError(f"labelled text {row + 1}: {answer.detail}")
                logits[row] = answer
            progress.update(len(rows))
    return logits


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """As ``itertools.batched``, which needs Python 3.12."""
    return (items[start : start + size] for start in range(0, len(items), size))


LEAST_AGREEMENT = 0.98
ROUNDING = 1e-9  # a loss of 0.55 - 0.54 is 0.01, but not for floating-point numbers


@dataclass(slots=True)
class AccuracyGate:
    """Scores variants on labelled ``examples``, fp32 first, and refuses those far below fp32."""

    examples: Sequence[Example]
    max_loss: float
    refused: dict[Precision, str] = field(default_factory=dict)
    _fp32: tuple[Scores, list[Labels]] | None = None

    def scored(self, model: Model) -> dict[str, Any] | None:
        """The variant's scores for the manifest; None without examples."""
        if not self.examples:
            return None
        scores, labels = evaluate(model, self.examples)
        self._fp32 = self._fp32 or (scores, labels)
        fp32, expected = self._fp32
        same = marks(labels, model.labels) == marks(expected, model.labels)
        agreement = float((same if model.multi_label else same.all(axis=1)).mean())
        scores = replace(scores, agreement_with_fp32=agreement)
        print(f"{model.precision}: {scores.table()}")
        if agreement < LEAST_AGREEMENT:
            self.refused[model.precision] = (
                f"it agrees with fp32 on {agreement:.2%} of the labels (at least "
                f"{LEAST_AGREEMENT:.0%} is required)"
            )
        for name in ("accuracy" if scores.micro_f1 is None else "micro_f1", "macro_recall"):
            loss = getattr(fp32, name) - getattr(scores, name)
            if not loss <= self.max_loss + ROUNDING:
                self.refused[model.precision] = (
                    f"it loses {loss:.4f} of fp32's {name.replace('_', ' ')} "
                    f"(--max-accuracy-loss {self.max_loss:g})"
                )
        return scores.as_dict()

    def verdict(self) -> str:
        """The variants that were left out, with the reasons, in one line."""
        return "; ".join(f"{name} was left out because {why}" for name, why in self.refused.items())


TIMED_TEXTS, ROUNDS = 256, 7  # of the comparison of speed


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Texts that the student has not learnt from, with the teacher's scores [texts, labels]."""

    examples: Sequence[Example]
    encodings: Sequence[Encoding]
    scores: NDArray[np.float32]


def compared(
    teacher: Model, student: Model, held_out: HeldOut, labelled: Sequence[Example]
) -> dict[str, Any]:
    """How often the student gives the teacher's labels, how near its scores are, and both models'
    scores on ``labelled`` texts. The two have the same thresholds.
    """
    scores = student.scores(logits_of_examples(student, held_out.examples))
    ours, theirs = (
        marks(_predicted(student, given), student.labels) for given in (scores, held_out.scores)
    )
    record: dict[str, Any] = {
        "agreement": float((ours == theirs).all(axis=1).mean()),
        "agreement_by_label": {
            label: float(ours[has, index].mean())
            for index, label in enumerate(student.labels)
            if (has := theirs[:, index]).any()
        },
        "score_difference": float(np.abs(scores - held_out.scores).mean()),
    }
    if labelled:
        record["labelled"] = {
            name: evaluate(model, labelled)[0].as_dict()
            for name, model in (("teacher", teacher), ("student", student))
        }
    return record


def speed(teacher: Model, student: Model, held_out: HeldOut) -> str:
    encodings = held_out.encodings[:TIMED_TEXTS]
    spent: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for model, seconds in zip((teacher, student), spent, strict=True):
            started = time.perf_counter()
            for batch in batches(encodings, 8):
                model.infer(batch)
            seconds.append(time.perf_counter() - started)
    slow, fast = (len(encodings) / median(seconds) for seconds in spent)
    times = median(one / other for one, other in zip(*spent, strict=True))
    return (
        f"Where it was made, in batches of 8 texts, in turns: the teacher ({teacher.precision}) "
        f"{slow:.0f} texts/s, the student ({student.precision}) {fast:.0f}, {times:.2f} times as "
        "many."
    )


def too_bad(record: Mapping[str, Any], least_agreement: float, most_loss: float | None) -> str:
    """Why the student is refused, or ""."""
    if (share := record["agreement"]) < least_agreement:
        return (
            f"the student gives {share:.2%} of the held-out texts the teacher's label "
            f"(--least-agreement {least_agreement:g})"
        )
    if most_loss is None:
        return ""
    teacher, student = (record["labelled"][one] for one in ("teacher", "student"))
    for name in ("micro_f1" if "micro_f1" in teacher else "accuracy", "macro_recall"):
        if not (lost := teacher[name] - student[name]) <= most_loss + ROUNDING:
            return (
                f"the student's {name.replace('_', ' ')} is {student[name]:.4f}, {lost:.4f} below "
                f"the teacher's {teacher[name]:.4f} (--most-loss {most_loss:g})"
            )
    return ""
