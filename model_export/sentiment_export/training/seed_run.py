"""Trains one model: one seed of a fine-tuning recipe."""

import html
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sentiment_service.atomic_files import write_atomically
from sentiment_service.engine.options import Preprocessing
from sentiment_service.engine.text.input_tokenizer import normaliser
from tqdm import tqdm
from transformers import AutoModelForSequenceClassification, get_linear_schedule_with_warmup

from sentiment_export.checkpoint.config import model_config, read_config
from sentiment_export.checkpoint.labels import SENTIMENTS, SINGLE_LABEL
from sentiment_export.quality.evaluation import batches
from sentiment_export.quality.labelled import Example
from sentiment_export.quality.scores import Scores, score
from sentiment_export.training.recipe import LABEL_SMOOTHING, WARMUP_SHARE, Recipe

# This many shuffled batches are sorted by length together. Batches then need nearly no
# padding, and their order still changes in every epoch.
BATCHES_PER_BUCKET = 50


@dataclass(frozen=True, slots=True)
class Tokenised:
    """Texts as unpadded token ids, and the label index of each text, in the same order."""

    ids: list[list[int]]
    labels: list[int]
    pad_token_id: int


def without_leaks(validation: list[Example], train: list[Example]) -> list[Example]:
    """The validation examples whose text is not in the training data.

    Published training and validation sets often share texts in different spellings. So the
    comparison ignores letter case, punctuation, HTML entities, ``\\u2019`` escapes, user names
    and links.
    """
    seen = {_fingerprint(example.text) for example in train}
    return [example for example in validation if _fingerprint(example.text) not in seen]


def _fingerprint(text: str) -> str:
    unescaped = re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), text)
    plain = html.unescape(html.unescape(unescaped)).lower()
    without_names = re.sub(r"@\w+|http\S*", "", plain)
    # A text without letters and digits, such as emoji, is compared unchanged.
    return "".join(filter(str.isalnum, without_names)) or text


def tokenise(
    examples: list[Example],
    labels: list[str],
    tokenizer: Any,
    preprocessing: Preprocessing,
    max_tokens: int,
) -> Tokenised:
    """Normalise and tokenise as the service does, with at most ``max_tokens`` per text."""
    normalise = normaliser(preprocessing)
    texts = [normalise(example.text) for example in examples]
    ids = tokenizer(texts, truncation=True, max_length=max_tokens)["input_ids"]
    indices = [labels.index(example.label) for example in examples]
    return Tokenised(ids, indices, tokenizer.pad_token_id)


def balanced_weights(labels: list[int]) -> torch.Tensor:
    """Class weights [classes] that give every class the same share of the loss.

    Macro recall weighs the classes in the same way.
    """
    counts = Counter(labels)
    return torch.tensor([len(labels) / (len(counts) * counts[i]) for i in range(len(counts))])


def bucketed_batches(
    ids: list[list[int]], batch_size: int, order: random.Random
) -> list[Sequence[int]]:
    """Batches of row numbers whose texts have similar lengths, shuffled by ``order``."""
    rows = list(range(len(ids)))
    order.shuffle(rows)
    sorted_batches: list[Sequence[int]] = []
    for bucket in batches(rows, batch_size * BATCHES_PER_BUCKET):
        sorted_batches += batches(sorted(bucket, key=lambda row: len(ids[row])), batch_size)
    order.shuffle(sorted_batches)
    return sorted_batches


def collate(data: Tokenised, rows: Sequence[int]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Padded ``input_ids`` and ``attention_mask`` [batch, longest], and labels [batch]."""
    longest = max(len(data.ids[row]) for row in rows)
    ids = torch.full((len(rows), longest), data.pad_token_id)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(data.ids[row])] = torch.tensor(data.ids[row])
        mask[index, : len(data.ids[row])] = 1
    labels = torch.tensor([data.labels[row] for row in rows])
    return {"input_ids": ids, "attention_mask": mask}, labels


def train_seed(
    recipe: Recipe,
    seed: int,
    train_set: Tokenised,
    validation_set: Tokenised,
    state_path: Path,
    say: Callable[[str], None],
) -> tuple[Any, list[dict[str, Any]]]:
    """Train with one seed; the model, and its validation scores after each epoch.

    Each epoch is saved to ``state_path``; what is there is resumed.
    """
    torch.manual_seed(seed)
    model = load_base(recipe.base)
    optimizer = torch.optim.AdamW(
        _parameter_groups(model, recipe.tokens_from), lr=recipe.learning_rate, fused=True
    )
    total = -(-len(train_set.ids) // recipe.batch_size) * recipe.epochs
    schedule = get_linear_schedule_with_warmup(optimizer, round(total * WARMUP_SHARE), total)
    weight = balanced_weights(train_set.labels)
    loss_of = torch.nn.CrossEntropyLoss(weight=weight, label_smoothing=LABEL_SMOOTHING)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    history: list[dict[str, Any]] = []
    if state_path.exists():
        state = torch.load(state_path, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        torch.set_rng_state(state["rng"])
        history = state["history"]
        say(f"seed {seed}: resuming after epoch {len(history)}")
    for epoch in range(len(history), recipe.epochs):
        model.train()
        order = random.Random(f"{seed}/{epoch}")
        epoch_batches = bucketed_batches(train_set.ids, recipe.batch_size, order)
        title = f"seed {seed}, epoch {epoch + 1}"
        bar = tqdm(epoch_batches, f"{title}/{recipe.epochs}", unit="batch", mininterval=1)
        for rows in bar:
            inputs, labels = collate(train_set, rows)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(**inputs).logits
            loss = loss_of(logits.float(), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
        scores = evaluate(model, validation_set, recipe.batch_size)
        history.append(scores.as_dict())
        state = {name: part.state_dict() for name, part in parts.items()}
        state |= {"history": history, "rng": torch.get_rng_state()}
        write_atomically(state_path, partial(torch.save, state))
        say(f"{title}\n{scores.table()}")
    return model, history


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
