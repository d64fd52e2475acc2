"""The model that every Python peer serves: the checkpoint in torch.

Two variables configure it: ``CHECKPOINT`` is the directory; ``PRECISION`` is float32, bfloat16 or
int8 (torch's dynamic quantization of the linear layers).
"""

import os
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def load_model() -> Any:
    torch.set_num_threads(2)
    precision = os.environ.get("PRECISION", "float32")
    model = AutoModelForSequenceClassification.from_pretrained(os.environ["CHECKPOINT"]).eval()
    if precision == "int8":
        return torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
            model, {torch.nn.Linear}, dtype=torch.qint8
        )
    return model.to(getattr(torch, precision))


class Classifier:
    def __init__(self) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(os.environ["CHECKPOINT"])
        self._model = load_model()

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        encoded = self._tokenizer(
            list(texts), padding=True, truncation=True, max_length=512, return_tensors="pt"
        )
        rows: list[list[float]] = self._model(**encoded).logits.tolist()
        return rows
