"""How good a distilled student is: its answers beside those of its teacher, and its speed."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.text.text_tokenizer import Encoding

from sentiment_export.quality.evaluation import ROUNDING, batches, evaluate, logits_of_examples
from sentiment_export.quality.labelled import Example

TIMED_TEXTS, ROUNDS = 256, 7


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
    ours, theirs = _given(student, scores), _given(student, held_out.scores)
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


def _given(model: Model, scores: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which labels each text gets."""
    if model.multi_label:
        return np.asarray(scores >= np.array([*model.thresholds.values()]), np.bool_)
    best = scores.argmax(axis=1)[:, np.newaxis]
    return np.asarray(best == np.arange(len(model.labels)), np.bool_)


def speed(teacher: Model, student: Model, held_out: HeldOut) -> str:
    """How fast the two are here, in turns."""
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
