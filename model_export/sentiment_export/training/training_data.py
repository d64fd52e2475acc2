"""Prepares labelled texts for training: removes leaks, tokenises, sorts by length, batches."""

import html
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sentiment_service.engine.text.input_tokenizer import normaliser
from sentiment_service.engine.text.options import Preprocessing

from sentiment_export.quality.evaluation import batches
from sentiment_export.quality.labelled import Example

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
