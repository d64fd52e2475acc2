"""Makes checkpoints of real shapes with random weights, and exports them."""

import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from sentiment_service.cli.load_generator import WORDS
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoConfig, AutoModelForSequenceClassification, RobertaTokenizerFast

# What all have in common: the config of RoBERTa-base and its relatives, with three labels.
COMMON = {"max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1, "num_labels": 3}


def random_checkpoint(path: Path, model_type: str, **config: Any) -> Path:
    """Write a checkpoint of this type, with a byte-level tokenizer that knows common words.

    ``config`` overrides ``COMMON`` and the defaults that transformers has for the type.

    The weights are scaled so that logits differ between texts.
    """
    path.mkdir()
    tokenizer = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    # What occurs twice is merged: most words become one token each, as in a real tokenizer.
    words, size = [WORDS, WORDS], config.get("vocab_size", 1_000)
    tokenizer.train_from_iterator(words, size, special_tokens=specials, show_progress=False)
    tokenizer.save_model(str(path))
    RobertaTokenizerFast.from_pretrained(path).save_pretrained(path)
    model = AutoModelForSequenceClassification.from_config(
        AutoConfig.for_model(model_type, **(COMMON | config))
    )
    generator = torch.Generator().manual_seed(0)
    for key, weights in model.named_parameters():
        if key.lower().endswith("norm.weight"):
            weights.data.fill_(1)
        elif weights.ndim == 1:
            weights.data.zero_()
        else:
            weights.data.normal_(generator=generator).div_(
                1 if "embed" in key else weights.shape[1] ** 0.5
            )
    model.save_pretrained(path)
    return path


def timed_export(source: Path, output: Path, *flags: str) -> tuple[float, float]:
    """Run ``sentiment-export``; returns its seconds and its peak resident memory in GB."""
    command = "import sys; from sentiment_export.cli import main; sys.exit(main())"
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", command, str(source), "--output", str(output), *flags],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return time.perf_counter() - started, peak_kib * 1024 / 1e9
