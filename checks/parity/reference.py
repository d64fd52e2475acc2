"""What one version of transformers writes and computes. It imports nothing of ours."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

TEXTS = (
    "bad",
    "the soup was cold and the bus was late again",
    "a lovely afternoon by the lake , nothing else",
    " ".join(["good", "bad", "late", "soup", "again"] * 9),
)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 66,
    "pad_token_id": 0,
    "num_labels": 3,
}
# What differs from ``SIZES``, and what the published checkpoints compute with.
OF_TYPE: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 32},
    "big_bird": {"block_size": 16},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0},
    "deberta-v2": {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "type_vocab_size": 0,
        "position_buckets": 16,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
    },
    "distilbert": {"dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 96},
    "electra": {"embedding_size": 32},
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2}
    | dict.fromkeys(("bos_token_id", "cls_token_id"), 2)
    | dict.fromkeys(("eos_token_id", "sep_token_id"), 3),
}


def write(directory: Path, model_type: str) -> None:
    """A checkpoint with random weights, and ``logits.json`` with those of the texts."""
    words = [*SPECIAL, *sorted({word for text in TEXTS for word in text.split()})]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    tokens = dict(zip(roles, SPECIAL, strict=True))
    inputs = ["input_ids", "attention_mask"]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=inputs, **tokens)
    fast.save_pretrained(directory)
    settings = SIZES | {"vocab_size": len(words)} | OF_TYPE.get(model_type, {})
    config = AutoConfig.for_model(model_type, **settings)
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(0)
    for name, weights in model.named_parameters():
        noise = torch.randn(weights.shape, generator=generator)
        if weights.ndim == 1:
            weights.data = 0.1 * noise + float(name.lower().endswith("norm.weight"))
        else:
            weights.data = noise if "embed" in name else 1.5 * noise / weights.shape[1] ** 0.5
    model.save_pretrained(directory)
    logits = [_logits(model.eval(), AutoTokenizer.from_pretrained(directory), t) for t in TEXTS]
    (directory / "logits.json").write_text(json.dumps(logits))


def load_with_optimum(bundle: Path) -> dict[str, list[list[float]]]:
    """The logits of the texts that Optimum computes with each file of a bundle."""
    from optimum.onnxruntime import ORTModelForSequenceClassification

    load = partial(ORTModelForSequenceClassification.from_pretrained, bundle, subfolder="onnx")
    tokenizer = AutoTokenizer.from_pretrained(bundle)
    models = {file.name: load(file_name=file.name) for file in (bundle / "onnx").glob("*.onnx")}
    return {name: [_logits(m, tokenizer, text) for text in TEXTS] for name, m in models.items()}


@torch.inference_mode()
def _logits(model: Any, tokenizer: Any, text: str) -> list[float]:
    inputs = tokenizer(text, return_tensors="pt")
    return list(model(**inputs).logits[0].tolist())


if __name__ == "__main__":
    kind, *names = sys.argv[1:]
    if kind == "write":
        for given in map(Path, names):
            write(given, given.name)
        print(transformers.__version__)
    else:
        print(json.dumps([load_with_optimum(Path(name)) for name in names]))
