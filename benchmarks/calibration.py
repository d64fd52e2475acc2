"""Compares ways to calibrate a bundle's scores on labelled texts, cross-validated.

Every method maps logits to logits, and is fitted on four of five folds and measured on the fifth.
The expected calibration error is also measured with the texts of each label weighted, so that the
labels are mixed otherwise than in the file: in 36 mixes, with at least a tenth of each of three
labels. The figures are means over five divisions into folds.

    python -m benchmarks.calibration BUNDLE FILE.tsv
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.metrics import recall_score

from app.engine.model.bundle import Bundle
from app.engine.model.load import load_model
from model_export.quality.calibration import BINS, FOLDS, Indices, brier_score, log_loss
from model_export.quality.evaluation import infer
from model_export.quality.labelled import read_examples

DIVISIONS = 5
Array = NDArray[np.float64]
Loss = Callable[[Array, Indices], float]


@dataclass(frozen=True, slots=True)
class Method:
    """``apply`` gets parameters, logits [texts, labels] and lengths in tokens [texts]."""

    name: str
    parameters: int
    apply: Callable[[Array, Array, Array], Array]
    loss: Loss = log_loss

    def fitted(self, logits: Array, tokens: Array, gold: Indices) -> Array:
        """The parameters that minimise the loss; all zero means: logits stay as they are."""
        start = np.zeros(self.parameters)
        if not self.parameters:
            return start
        found = minimize(
            lambda values: self.loss(self.apply(values, logits, tokens), gold),
            start,
            method="Nelder-Mead",
            options={"xatol": 1e-4, "fatol": 1e-7, "maxiter": 2_000},
        )
        return np.asarray(found.x, dtype=np.float64)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        "benchmarks.calibration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("bundle", type=Path, help="bundle with three labels")
    parser.add_argument("file", type=Path, help="labelled texts that it was not trained on")
    options = parser.parse_args()

    bundle = Bundle.open(options.bundle)
    model = load_model(bundle, device="cpu", precision="auto", threads=0)
    examples = read_examples(options.file, model.labels)
    logits = infer(model, examples).astype(np.float64)
    tokens = np.array(
        [model.tokenizer.encode(example.text).tokens for example in examples], dtype=np.float64
    )
    gold = np.array([model.labels.index(example.label) for example in examples])

    print(
        "| method | parameters | ECE | ECE, mean of mixes | worst mix | log loss | Brier score ",
        end="",
    )
    print("| labels changed | macro recall |\n|" + " --- |" * 9)
    for method in _methods(len(model.labels)):
        found = [_held_out(method, logits, tokens, gold, seed) for seed in range(DIVISIONS)]
        rows = [_figures(calibrated, logits, gold) for calibrated in found]
        figures = [fmean(column) for column in zip(*rows, strict=True)]
        *middle, changed, recall = figures
        cells = [*(f"{value:.4f}" for value in middle), f"{changed:.0f}", f"{recall:.3f}"]
        print(f"| {method.name} | {method.parameters} | {' | '.join(cells)} |")


def _methods(labels: int) -> list[Method]:
    def temperature(values: Array, logits: Array, tokens: Array) -> Array:
        return logits / np.exp(values[:1])

    def by_length(values: Array, logits: Array, tokens: Array) -> Array:
        return logits / np.exp(values[:1] + values[1:] * np.log(tokens / 30))[:, None]

    def by_entropy(values: Array, logits: Array, tokens: Array) -> Array:
        entropy: Array = -(softmax(logits, axis=1) * log_softmax(logits, axis=1)).sum(axis=1)
        return logits / np.exp(values[:1] + values[1:] * np.log(entropy))[:, None]

    def with_bias(values: Array, logits: Array, tokens: Array) -> Array:
        return logits / np.exp(values[:1]) + np.pad(values[1:], (0, 1))

    def vector(values: Array, logits: Array, tokens: Array) -> Array:
        return logits * np.exp(values[:labels]) + np.pad(values[labels:], (0, 1))

    def of_worst_label(logits: Array, gold: Indices) -> float:
        return max(log_loss(logits[gold == one], gold[gold == one]) for one in np.unique(gold))

    return [
        Method("none", 0, lambda values, logits, tokens: logits),
        Method("temperature, log loss", 1, temperature),
        Method("temperature, Brier score", 1, temperature, brier_score),
        Method("temperature, log loss of the worst label", 1, temperature, of_worst_label),
        Method("temperature by length", 2, by_length),
        Method("temperature by entropy", 2, by_entropy),
        Method("temperature and bias", labels, with_bias),
        Method("vector scaling", 2 * labels - 1, vector),
    ]


def _held_out(method: Method, logits: Array, tokens: Array, gold: Indices, seed: int) -> Array:
    """The calibrated logits of every text, fitted without the text's fold."""
    fold = np.random.default_rng(seed).permutation(len(gold)) % FOLDS
    found = np.empty_like(logits)
    for one in range(FOLDS):
        inside, outside = fold == one, fold != one
        values = method.fitted(logits[outside], tokens[outside], gold[outside])
        found[inside] = method.apply(values, logits[inside], tokens[inside])
    return found


def _figures(calibrated: Array, logits: Array, gold: Indices) -> list[float]:
    counts = np.bincount(gold)
    tenths = [mix for mix in product(range(1, 9), repeat=3) if sum(mix) == 10]
    mixed = [_error(calibrated, gold, (np.array(mix) / counts)[gold]) for mix in tenths]
    predicted = calibrated.argmax(axis=1)
    return [
        _error(calibrated, gold, np.ones(len(gold))),
        fmean(mixed),
        max(mixed),
        log_loss(calibrated, gold),
        brier_score(calibrated, gold),
        float((predicted != logits.argmax(axis=1)).sum()),
        float(recall_score(gold, predicted, average="macro")),
    ]


def _error(logits: Array, gold: Indices, weights: Array) -> float:
    """The expected calibration error of weighted texts."""
    scores = softmax(logits, axis=1)
    confidence = scores.max(axis=1)
    gaps = weights * ((scores.argmax(axis=1) == gold) - confidence)
    bins = np.ceil(confidence * BINS).astype(int)
    return float(np.abs(np.bincount(bins, weights=gaps)).sum() / weights.sum())


if __name__ == "__main__":
    main()
