"""A tiny checkpoint with the files of finiteautomata/bertweet-base-sentiment-analysis."""

import json
from pathlib import Path
from typing import Any

from sentiment_service.engine.text.tweets import normalise_bertweet
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import BpeTrainer

from tests.support.checkpoints import CORPUS, random_model, save_model

LABELS = {0: "NEG", 1: "NEU", 2: "POS"}
ROLES = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
ROLES |= {"cls": "<s>", "sep": "</s>"}
# BERTweet's position table: 128 tokens, and the rows up to the padding id.
POSITIONS = 130
# One of so many merged pieces is in the codes only.
LEFT_OUT = 5


def make_bertweet(path: Path, *, normalization: bool = True, **config: Any) -> Path:
    """Write the checkpoint directory; ``config`` overrides entries of its config.json."""
    path.mkdir(parents=True)
    mask = write_codes(path)
    roles = {f"{role}_token": token for role, token in ROLES.items()}
    files: dict[str, dict[str, Any]] = {
        "added_tokens.json": {"<mask>": mask},
        "special_tokens_map.json": roles,
        "tokenizer_config.json": {
            "normalization": normalization,
            **roles,
            "model_max_length": 128,
            "tokenizer_class": "BertweetTokenizer",
        },
    }
    for name, held in files.items():
        (path / name).write_text(json.dumps(held), encoding="utf-8")
    settings = {
        "max_position_embeddings": POSITIONS,
        "tokenizer_class": "BertweetTokenizer",
        "id2label": LABELS,
        "label2id": {label: index for index, label in LABELS.items()},
    }
    save_model(path, random_model("roberta", mask + 1, **settings | config), pickled=True)
    return path


def write_codes(path: Path) -> int:
    """Write ``bpe.codes`` and ``vocab.txt``; returns the id that follows, the one of ``<mask>``."""
    learner = Tokenizer(BPE(end_of_word_suffix="</w>"))
    learner.pre_tokenizer = WhitespaceSplit()
    learner.train_from_iterator(
        map(normalise_bertweet, CORPUS * 3),
        BpeTrainer(vocab_size=400, end_of_word_suffix="</w>", show_progress=False),
    )
    learned = json.loads(learner.to_str())["model"]
    codes = "".join(f"{left} {right} 3\n" for left, right in learned["merges"])
    (path / "bpe.codes").write_text(codes, encoding="utf-8")
    symbols = sorted(learned["vocab"])
    merged = sorted(left + right for left, right in learned["merges"])
    kept = [symbol for symbol in symbols if symbol not in merged[::LEFT_OUT]]
    pieces = [s.removesuffix("</w>") if s.endswith("</w>") else f"{s}@@" for s in kept]
    (path / "vocab.txt").write_text("".join(f"{p} 3\n" for p in pieces), encoding="utf-8")
    return 4 + len(pieces)  # <s>, <pad>, </s> and <unk> come first
