"""Makes checkpoints of real shapes with random weights, and exports them."""

import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoConfig, AutoModelForSequenceClassification, RobertaTokenizerFast
from transformers.modeling_utils import no_init_weights

# Model type and size of the vocabulary; all else is the same.
SHAPES = {"RoBERTa-base": ("roberta", 50_265), "XLM-RoBERTa-base": ("xlm-roberta", 250_002)}


def random_checkpoint(path: Path, name: str, layers: int) -> Path:
    """Write a checkpoint of the shape ``name``, with a byte-level tokenizer without merges.

    The weights are scaled so that logits differ between texts.
    """
    path.mkdir()
    tokenizer = ByteLevelBPETokenizer()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer.train_from_iterator([], vocab_size=300, special_tokens=specials)
    tokenizer.save_model(str(path))
    RobertaTokenizerFast.from_pretrained(path).save_pretrained(path)
    model_type, vocabulary = SHAPES[name]
    config = AutoConfig.for_model(
        model_type,
        vocab_size=vocabulary,
        max_position_embeddings=514,
        type_vocab_size=1,
        num_labels=3,
        num_hidden_layers=layers,
    )
    with no_init_weights():
        model = AutoModelForSequenceClassification.from_config(config)
    generator = torch.Generator().manual_seed(0)
    for key, weights in model.named_parameters():
        if "LayerNorm.weight" in key:
            weights.data.fill_(1)
        elif weights.ndim == 1:
            weights.data.zero_()
        else:
            weights.data.normal_(generator=generator).div_(
                1 if "embeddings" in key else weights.shape[1] ** 0.5
            )
    model.save_pretrained(path)
    return path


def timed_export(source: Path, output: Path) -> tuple[float, float]:
    """Run ``sentiment-export``; returns its seconds and its peak resident memory in GB."""
    command = "import sys; from model_export.cli import main; sys.exit(main())"
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", command, str(source), "--output", str(output)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return time.perf_counter() - started, peak_kib * 1024 / 1e9
