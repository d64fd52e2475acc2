"""Labelled texts as a fine-tuning run sees them: tokenised, bucketed by length, batched."""

import html
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from app.engine.preprocessing import normalise_tweet
from model_export.quality.labelled import Example

MAX_TOKENS = 96
# Batches are cut from runs of this many shuffled batches sorted by length: nearly no
# padding, and still a new order in every epoch.
BATCHES_PER_BUCKET = 50


@dataclass(frozen=True, slots=True)
class Tokenised:
    """Texts as token ids (unpadded) and label indices, index by index."""

    ids: list[list[int]]
    labels: list[int]
    pad_token_id: int


def without_leaks(validation: list[Example], train: list[Example]) -> list[Example]:
    """The validation examples whose text is not in the training data.

    Published splits overlap more often than not, in another spelling: letter case,
    punctuation, HTML entities, ``\\u2019`` escapes, user names and links are ignored.
    """
    seen = {_fingerprint(example.text) for example in train}
    return [example for example in validation if _fingerprint(example.text) not in seen]


def _fingerprint(text: str) -> str:
    unescaped = re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), text)
    plain = html.unescape(html.unescape(unescaped)).lower()
    without_names = re.sub(r"@\w+|http\S*", "", plain)
    # A text of nothing else, of emoji perhaps, is compared as it is.
    return "".join(filter(str.isalnum, without_names)) or text


def tokenise(examples: list[Example], labels: list[str], tokenizer: Any) -> Tokenised:
    """Normalise and tokenise as the service will, at most ``MAX_TOKENS`` a text."""
    texts = [normalise_tweet(example.text) for example in examples]
    ids = tokenizer(texts, truncation=True, max_length=MAX_TOKENS)["input_ids"]
    indices = [labels.index(example.label) for example in examples]
    return Tokenised(ids, indices, tokenizer.pad_token_id)


def balanced_weights(labels: list[int]) -> torch.Tensor:
    """Each class weighs the same in the loss, as it does in macro recall."""
    counts = Counter(labels)
    return torch.tensor([len(labels) / (len(counts) * counts[i]) for i in range(len(counts))])


def bucketed_batches(
    ids: list[list[int]], batch_size: int, order: random.Random
) -> Iterator[list[int]]:
    """Rows of ``ids`` in batches of like length, in an order that ``order`` draws."""
    rows = list(range(len(ids)))
    order.shuffle(rows)
    batches = []
    for start in range(0, len(rows), batch_size * BATCHES_PER_BUCKET):
        bucket = sorted(
            rows[start : start + batch_size * BATCHES_PER_BUCKET], key=lambda row: len(ids[row])
        )
        batches += [bucket[i : i + batch_size] for i in range(0, len(bucket), batch_size)]
    order.shuffle(batches)
    yield from batches


def collate(data: Tokenised, rows: list[int]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Padded ``input_ids`` and ``attention_mask`` [batch, longest] and labels [batch]."""
    longest = max(len(data.ids[row]) for row in rows)
    ids = torch.full((len(rows), longest), data.pad_token_id)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(data.ids[row])] = torch.tensor(data.ids[row])
        mask[index, : len(data.ids[row])] = 1
    labels = torch.tensor([data.labels[row] for row in rows])
    return {"input_ids": ids, "attention_mask": mask}, labels
