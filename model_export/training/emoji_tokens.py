"""Gives a tokenizer of BERT's kind, and its model, a token for each emoji.

A WordPiece vocabulary from before emoji makes one unknown token of ``home😍🎉``. The new tokens are
in ``tokenizer.json`` itself, so that every library reads emoji.
"""

import csv
import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from app.engine.text.bertweet import EMOJI_NAMES
from app.errors import UserError
from model_export.checkpoint.labels import SENTIMENTS

# How often an emoji occurred in tweets of each of SENTIMENTS.
Counts = Mapping[str, Sequence[float]]

# The plane of the emoji since 2019, some of them newer than EMOJI_NAMES.
_NEWEST = range(0x1FA70, 0x1FB00)
_PARTS = (*range(0x1F1E6, 0x1F200), 0x20E3)  # of flags, and of a key such as 1️⃣
_SKIN_TONES = "[\U0001f3fb-\U0001f3ff]"
FIRST_SYMBOL = 0x2600  # the ranking has dashes and letters, too


def read_counts(path: Path) -> Counts:
    """The ranking's table: a CSV file with the columns Emoji, Negative, Neutral and Positive.

    Raises:
        UserError: the file cannot be read, or is another table.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return {
                row["Emoji"]: [float(row[label.capitalize()]) for label in SENTIMENTS]
                for row in csv.DictReader(file)
                if len(row["Emoji"]) == 1
            }
    except (OSError, UnicodeDecodeError, KeyError, ValueError, csv.Error) as error:
        raise UserError(f"cannot read {path} as an Emoji Sentiment Ranking: {error!r}") from error


def emoji_names(counts: Counts) -> dict[str, str]:
    """All emoji of one code point, skin tones left out, with names in plain words."""
    symbols = [symbol for symbol in counts if ord(symbol) >= FIRST_SYMBOL]
    newer = map(chr, (*_NEWEST, *_PARTS, *map(ord, symbols)))
    names = {symbol: unicodedata.name(symbol, "") for symbol in newer}
    named = {symbol: name for symbol, name in (names | EMOJI_NAMES).items() if name}
    return {symbol: name.lower().replace("_", " ") for symbol, name in named.items()}


def add_emoji(
    model: Any, tokenizer: PreTrainedTokenizerFast, names: Mapping[str, str]
) -> PreTrainedTokenizerFast:
    """Give each emoji a token, and the model a word embedding for each new token.

    Words are cut before and after an emoji. A skin tone is left out; the tokenizer's own
    normalisation leaves out variation selectors and joiners. A new embedding is the mean of those
    of the name's tokens.

    Returns:
        The new tokenizer.

    Raises:
        UserError: the tokenizer is of another kind.
    """
    form = json.loads(tokenizer.backend_tokenizer.to_str())
    kind = (form["pre_tokenizer"] or {}).get("type")
    if form["model"]["type"] != "WordPiece" or kind != "BertPreTokenizer":
        raise UserError("emoji can be added to a WordPiece tokenizer of BERT's kind only")
    vocabulary: dict[str, int] = form["model"]["vocab"]
    added = [symbol for symbol in names if symbol not in vocabulary]
    embeddings: torch.Tensor = model.get_input_embeddings().weight.detach()
    means = [
        embeddings[tokenizer(names[symbol], add_special_tokens=False)["input_ids"]].mean(0)
        for symbol in added
    ]
    model.resize_token_embeddings(len(embeddings) + len(added), mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[len(embeddings) :] = torch.stack(means)
    vocabulary.update((symbol, len(embeddings) + row) for row, symbol in enumerate(added))
    form["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            form["pre_tokenizer"],
            _split(_SKIN_TONES, "Removed"),
            _split(f"[{''.join(sorted(names))}]", "Isolated"),
        ],
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(form)),
        model_max_length=tokenizer.model_max_length,
        **tokenizer.special_tokens_map,
    )


def _split(pattern: str, behavior: str) -> dict[str, Any]:
    regex = {"Regex": pattern}
    return {"type": "Split", "pattern": regex, "behavior": behavior, "invert": False}
