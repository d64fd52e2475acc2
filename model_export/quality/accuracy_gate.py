"""Checks that a variant scores as well as fp32 on labelled texts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from app.engine.model.bundle import Precision
from app.engine.model.model import Model
from model_export.quality.evaluation import evaluate
from model_export.quality.labelled import Example, Labels
from model_export.quality.scores import Scores, marks

LEAST_AGREEMENT = 0.98
ROUNDING = 1e-9  # a loss of 0.55 - 0.54 is 0.01, but not for floating-point numbers


class AccuracyGate:
    """Scores variants on labelled ``examples`` and refuses those that score too low.

    Score fp32 first. A variant's accuracy (of a multi-label model, its micro F1) and macro recall
    may be lower than those of fp32 by ``max_loss``, and at least 98 % of its labels must be those
    of fp32.
    """

    def __init__(self, examples: Sequence[Example], max_loss: float) -> None:
        self._examples = examples
        self._max_loss = max_loss
        self._fp32_labels: list[Labels] = []
        self._fp32: Scores | None = None
        self.refused: dict[Precision, str] = {}

    def scored(self, model: Model, say: Callable[[str], None]) -> dict[str, Any] | None:
        """The variant's scores for the manifest; None without examples.

        Raises:
            UserError: a text cannot be classified.
        """
        if not self._examples:
            return None
        scores, labels = evaluate(model, self._examples)
        if self._fp32 is None:
            self._fp32, self._fp32_labels = scores, labels
        same = marks(labels, model.labels) == marks(self._fp32_labels, model.labels)
        agreeing = same if model.multi_label else same.all(axis=1)
        scores = replace(scores, agreement_with_fp32=float(agreeing.mean()))
        say(f"{model.precision}: {scores.table()}")
        self._judge(model.precision, self._fp32, scores)
        return scores.as_dict()

    def verdict(self) -> str:
        """The variants that were left out, with the reasons, in one line."""
        return "; ".join(f"{name} was left out because {why}" for name, why in self.refused.items())

    def _judge(self, precision: Precision, fp32: Scores, scores: Scores) -> None:
        agreement = scores.agreement_with_fp32 or 0.0
        if agreement < LEAST_AGREEMENT:
            self.refused[precision] = (
                f"it agrees with fp32 on {agreement:.2%} of the labels (at least "
                f"{LEAST_AGREEMENT:.0%} is required)"
            )
        for name in ("accuracy" if scores.micro_f1 is None else "micro_f1", "macro_recall"):
            loss = getattr(fp32, name) - getattr(scores, name)
            if not loss <= self._max_loss + ROUNDING:
                self.refused[precision] = (
                    f"it loses {loss:.4f} of fp32's {name.replace('_', ' ')} "
                    f"(--max-accuracy-loss {self._max_loss:g})"
                )
