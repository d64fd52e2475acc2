"""Fine-tune an encoder on labelled texts: ``sentiment-export finetune``.

One run per seed from the same pretrained weights, then the average of their weights
(Wortsman et al. 2022, "Model soups"), which costs nothing at serving time.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    get_linear_schedule_with_warmup,
)

from app.errors import UserError
from model_export.quality.labelled import read_examples
from model_export.quality.scores import Scores, score
from model_export.training.training_data import (
    MAX_TOKENS,
    Tokenised,
    balanced_weights,
    bucketed_batches,
    collate,
    tokenise,
    without_leaks,
)

LABELS = ["negative", "neutral", "positive"]
WARMUP_SHARE = 0.06
LABEL_SMOOTHING = 0.05
STEPS_BETWEEN_SAVES = 500


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a training run depends on."""

    base: Path
    train: tuple[Path, ...]
    validation: Path
    epochs: int = 2
    seeds: tuple[int, ...] = (0, 1)
    learning_rate: float = 1e-4
    batch_size: int = 32

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready copy with file names only, since it is published in the model card."""
        return {
            "base": self.base.name,
            "train": [path.name for path in self.train],
            "validation": self.validation.name,
            "epochs": self.epochs,
            "seeds": list(self.seeds),
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "warmup_share": WARMUP_SHARE,
            "label_smoothing": LABEL_SMOOTHING,
            "max_tokens": MAX_TOKENS,
            "class_weights": "balanced",
        }


def finetune(recipe: Recipe, output: Path, say: Callable[[str], None] = print) -> Scores:
    """Train, average over the seeds and write a Hugging Face checkpoint to ``output``.

    Interrupted at any moment, the same call goes on from the last save and gives the
    same weights as an uninterrupted run.

    Returns:
        The averaged model's scores on the validation texts that are not in the training data.

    Raises:
        UserError: ``base`` is no directory, a labelled file cannot be read, a label has no text
            to train on, or nothing is left to validate with.
    """
    if not recipe.base.is_dir():
        raise UserError(f"{recipe.base} is not a directory; give a local checkpoint directory")
    tokenizer = AutoTokenizer.from_pretrained(recipe.base, trust_remote_code=False)
    train = [example for path in recipe.train for example in read_examples(path, LABELS)]
    rows = read_examples(recipe.validation, LABELS)
    validation = without_leaks(rows, train)
    for label in LABELS:
        if not any(example.label == label for example in train):
            raise UserError(f"no text to train on is labelled {label}")
    if not validation:
        raise UserError(f"every text of {recipe.validation} is in the training data as well")
    say(
        f"{len(train)} texts to train on, {len(validation)} to validate with; "
        f"{len(rows) - len(validation)} validation texts left out: they are in the training data"
    )
    train_set = tokenise(train, LABELS, tokenizer)
    validation_set = tokenise(validation, LABELS, tokenizer)
    work = output.with_name(output.name + ".training")
    work.mkdir(parents=True, exist_ok=True)

    averaged: dict[str, torch.Tensor] = {}
    history = []
    for seed in recipe.seeds:
        run = _Run(recipe, seed, train_set, validation_set, work / f"seed-{seed}.pt", say)
        model = run.train()
        history.append({"seed": seed, "epochs": run.history})
        for name, tensor in model.state_dict().items():
            share = tensor.double() / len(recipe.seeds)
            averaged[name] = averaged[name] + share if name in averaged else share
    model = _load_base(recipe.base)
    model.load_state_dict({name: tensor.float() for name, tensor in averaged.items()})
    scores = _evaluate(model, validation_set, recipe.batch_size)
    say(f"average of {len(recipe.seeds)} seeds\n{scores.table()}")

    model.config.preprocessing = "tweet"
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    record = {
        "recipe": recipe.as_dict(),
        "train_texts": len(train),
        "validation_texts": len(validation),
        "runs": history,
        "averaged": scores.as_dict(),
    }
    (output / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return scores


class _Run:
    """One seed's training, saved every few hundred steps and resumed where it stood."""

    def __init__(
        self,
        recipe: Recipe,
        seed: int,
        train_set: Tokenised,
        validation_set: Tokenised,
        state_path: Path,
        say: Callable[[str], None],
    ) -> None:
        torch.manual_seed(seed)
        self._recipe, self._seed, self._say = recipe, seed, say
        self._train_set, self._validation_set = train_set, validation_set
        self._state_path = state_path
        self._model = _load_base(recipe.base)
        self._optimizer = torch.optim.AdamW(_parameter_groups(self._model), lr=recipe.learning_rate)
        self._steps_per_epoch = -(-len(train_set.ids) // recipe.batch_size)
        total = self._steps_per_epoch * recipe.epochs
        self._schedule = get_linear_schedule_with_warmup(
            self._optimizer, round(total * WARMUP_SHARE), total
        )
        self._loss = torch.nn.CrossEntropyLoss(
            weight=balanced_weights(train_set.labels), label_smoothing=LABEL_SMOOTHING
        )
        self._step = 0
        self.history: list[dict[str, Any]] = []
        self._resume()

    def train(self) -> Any:
        """Run the remaining epochs; returns the trained model."""
        for epoch in range(self._step // self._steps_per_epoch, self._recipe.epochs):
            self._train_epoch(epoch)
            scores = _evaluate(self._model, self._validation_set, self._recipe.batch_size)
            self.history.append(scores.as_dict())
            self._save()
            self._say(f"seed {self._seed}, epoch {epoch + 1}\n{scores.table()}")
        return self._model

    def _train_epoch(self, epoch: int) -> None:
        self._model.train()
        order = random.Random(f"{self._seed}/{epoch}")
        batches = list(bucketed_batches(self._train_set.ids, self._recipe.batch_size, order))
        done = self._step - epoch * self._steps_per_epoch
        bar = tqdm(batches[done:], initial=done, total=len(batches), unit="batch", mininterval=1)
        bar.set_description(f"seed {self._seed}, epoch {epoch + 1}/{self._recipe.epochs}")
        for rows in bar:
            inputs, labels = collate(self._train_set, rows)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self._model(**inputs).logits
            loss = self._loss(logits.float(), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
            self._optimizer.step()
            self._schedule.step()
            self._optimizer.zero_grad(set_to_none=True)
            self._step += 1
            # The end of an epoch is saved together with its scores.
            if self._step % STEPS_BETWEEN_SAVES == 0 and self._step % self._steps_per_epoch:
                self._save()
                bar.set_postfix(loss=f"{loss.item():.3f}")

    def _save(self) -> None:
        state = {
            "recipe": self._fixed(),
            "step": self._step,
            "history": self.history,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "rng": torch.get_rng_state(),
        }
        partial = self._state_path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self._state_path)

    def _fixed(self) -> dict[str, Any]:
        """What must not change between a save and its resumption: all but the other seeds."""
        return {**self._recipe.as_dict(), "seeds": [self._seed]}

    def _resume(self) -> None:
        if not self._state_path.exists():
            return
        state = torch.load(self._state_path, weights_only=True)
        if state["recipe"] != self._fixed():
            self._say(f"{self._state_path.name} is of another recipe: starting afresh")
            return
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["rng"])
        self._step, self.history = state["step"], state["history"]
        self._say(f"seed {self._seed}: going on after step {self._step}")


def _load_base(base: Path) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(
        base,
        trust_remote_code=False,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
        ignore_mismatched_sizes=True,  # a classifier of other labels gives way to a new one
    )


def _parameter_groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Weight decay on matrices only: none on biases and layer norms."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]


@torch.inference_mode()
def _evaluate(model: torch.nn.Module, data: Tokenised, batch_size: int) -> Scores:
    model.eval()
    rows = sorted(range(len(data.ids)), key=lambda row: len(data.ids[row]))
    predicted = [""] * len(rows)
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        inputs, _ = collate(data, batch)
        for row, index in zip(batch, model(**inputs).logits.argmax(-1).tolist(), strict=True):
            predicted[row] = LABELS[index]
    return score([LABELS[label] for label in data.labels], predicted, LABELS)
