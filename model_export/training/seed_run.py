"""Trains one model: one seed of a fine-tuning recipe."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoModelForSequenceClassification, get_linear_schedule_with_warmup

from app.atomic_files import write_atomically
from model_export.checkpoint.config import model_config, read_config
from model_export.checkpoint.labels import SENTIMENTS, SINGLE_LABEL
from model_export.quality.evaluation import batches
from model_export.quality.scores import Scores, score
from model_export.training.recipe import LABEL_SMOOTHING, WARMUP_SHARE, Recipe
from model_export.training.training_data import (
    Tokenised,
    balanced_weights,
    bucketed_batches,
    collate,
)

STEPS_BETWEEN_SAVES = 500
# A save has the weights, and two moments of AdamW for each of them.
STATE_PER_WEIGHTS = 3


class SeedRun:
    """The training with one seed: saved every few hundred steps, resumed from the last save."""

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
        self._model = load_base(recipe.base)
        self._optimizer = torch.optim.AdamW(
            _parameter_groups(self._model, recipe.tokens_from), lr=recipe.learning_rate, fused=True
        )
        self._steps_per_epoch = -(-len(train_set.ids) // recipe.batch_size)
        total = self._steps_per_epoch * recipe.epochs
        self._schedule = get_linear_schedule_with_warmup(
            self._optimizer, round(total * WARMUP_SHARE), total
        )
        self._loss = torch.nn.CrossEntropyLoss(
            weight=balanced_weights(train_set.labels), label_smoothing=LABEL_SMOOTHING
        )
        parameters = sum(parameter.nbytes for parameter in self._model.parameters())
        say(
            f"seed {seed}: until the end of the training, {state_path} takes "
            f"{STATE_PER_WEIGHTS * parameters / 1e6:,.1f} MB"
        )
        self._step = 0
        self.history: list[dict[str, Any]] = []
        self._resume()

    def train(self) -> Any:
        """Train the remaining epochs and return the model."""
        for epoch in range(self._step // self._steps_per_epoch, self._recipe.epochs):
            self._train_epoch(epoch)
            scores = evaluate(self._model, self._validation_set, self._recipe.batch_size)
            self.history.append(scores.as_dict())
            self._save()
            self._say(f"seed {self._seed}, epoch {epoch + 1}\n{scores.table()}")
        return self._model

    def _train_epoch(self, epoch: int) -> None:
        self._model.train()
        order = random.Random(f"{self._seed}/{epoch}")
        epoch_batches = bucketed_batches(self._train_set.ids, self._recipe.batch_size, order)
        done = self._step - epoch * self._steps_per_epoch
        bar = tqdm(
            epoch_batches[done:],
            initial=done,
            total=len(epoch_batches),
            unit="batch",
            mininterval=1,
        )
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
            # The save at the end of an epoch waits for the epoch's scores.
            if self._step % STEPS_BETWEEN_SAVES == 0 and self._step % self._steps_per_epoch:
                self._save()
                bar.set_postfix(loss=f"{loss.item():.3f}")

    def _save(self) -> None:
        state = {
            "step": self._step,
            "history": self.history,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "rng": torch.get_rng_state(),
        }
        write_atomically(self._state_path, lambda partial: torch.save(state, partial))

    def _resume(self) -> None:
        if not self._state_path.exists():
            return
        state = torch.load(self._state_path, weights_only=True)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["rng"])
        self._step, self.history = state["step"], state["history"]
        self._say(f"seed {self._seed}: resuming after step {self._step}")


def load_base(base: Path) -> Any:
    """The pretrained encoder with a classifier for ``SENTIMENTS``."""
    config = model_config(read_config(base, str(base)))
    config.problem_type = SINGLE_LABEL
    config.id2label = dict(enumerate(SENTIMENTS))
    config.label2id = {label: index for index, label in enumerate(SENTIMENTS)}
    return AutoModelForSequenceClassification.from_pretrained(
        base,
        config=config,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,  # replaces a classifier for other labels
    )


def _parameter_groups(model: Any, tokens_from: int | None) -> list[dict[str, Any]]:
    """Apply weight decay to matrices only, not to biases and layer norms.

    With ``tokens_from``, everything but the word embeddings from there on stays as it is.
    """
    if tokens_from is not None:
        model.requires_grad_(False)
        embeddings = model.get_input_embeddings().weight.requires_grad_()
        trained = (torch.arange(len(embeddings)) >= tokens_from).unsqueeze(1)
        embeddings.register_hook(lambda gradient: gradient * trained)
        return [{"params": [embeddings], "weight_decay": 0.0}]
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]


@torch.inference_mode()
def evaluate(model: torch.nn.Module, data: Tokenised, batch_size: int) -> Scores:
    """Scores of the model on the tokenised texts."""
    model.eval()
    rows = sorted(range(len(data.ids)), key=lambda row: len(data.ids[row]))
    predicted = [("",)] * len(rows)
    for batch in batches(rows, batch_size):
        inputs, _ = collate(data, batch)
        for row, index in zip(batch, model(**inputs).logits.argmax(-1).tolist(), strict=True):
            predicted[row] = (SENTIMENTS[index],)
    return score([(SENTIMENTS[label],) for label in data.labels], predicted, SENTIMENTS)
