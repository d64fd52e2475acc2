"""A checkpoint directory: found complete, loaded safely, its meaning read from the config."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast

from app.bundle import sha256
from app.errors import UserError
from app.preprocessing import Preprocessing

WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
# Position ids of these start at padding_idx + 1, so that many rows of the table are no use.
OFFSET_POSITIONS = {"roberta", "xlm-roberta", "camembert", "xlm-roberta-xl"}
CANONICAL = ["negative", "neutral", "positive"]
SPELLINGS = {
    "negative": {"negative", "neg", "label_0"},
    "neutral": {"neutral", "neu", "label_1"},
    "positive": {"positive", "pos", "label_2"},
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A sequence classifier as PyTorch module (fp32, eager attention) and its tokenizer."""

    path: Path
    model: Any
    tokenizer: PreTrainedTokenizerFast
    labels: list[str]
    max_tokens: int
    preprocessing: Preprocessing
    files: dict[str, str]

    @property
    def architecture(self) -> str:
        """The model class."""
        return type(self.model).__name__

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> torch.Tensor:
        """Reference logits [labels] of one unpadded text."""
        logits: torch.Tensor = self.model(input_ids=torch.tensor([ids])).logits[0]
        return logits


def load_checkpoint(path: Path, preprocessing: Preprocessing | None = None) -> Checkpoint:
    """Load a local checkpoint; pickled weights are read as plain tensors, never run.

    Raises:
        UserError: a file is missing, the weights cannot be read safely or do not hold the
            whole classifier, or the model is not a sequence classifier.
    """
    weights = _weights_file(path)
    try:
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            path,
            local_files_only=True,
            trust_remote_code=False,
            weights_only=True,
            use_safetensors=not weights.endswith(".bin"),
            attn_implementation="eager",
            dtype=torch.float32,
            output_loading_info=True,
        )
        tokenizer = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False, use_fast=True
        )
    except Exception as error:  # whatever transformers, torch or safetensors meet in the files
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        if "pytorch_model.bin" in first_line:  # transformers guesses at TensorFlow here
            first_line = f"{weights} is damaged or holds more than plain tensors; use safetensors"
        raise UserError(f"cannot load the checkpoint {path}: {first_line}") from error
    if loading["missing_keys"]:
        missing = ", ".join(sorted(loading["missing_keys"])[:4])
        raise UserError(
            f"{path} is not a whole sequence classifier: {weights} lacks {missing}; "
            "fine-tune it first, or name the classifier's own directory"
        )
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(f"{path}: its tokenizer has no fast form, so no tokenizer.json can be made")
    config = model.config
    return Checkpoint(
        path=path,
        model=model.eval(),
        tokenizer=tokenizer,
        labels=canonical_labels([config.id2label[i] for i in range(config.num_labels)]),
        max_tokens=max_tokens(config),
        preprocessing=preprocessing or _trained_with(path),
        files=_digests(path),
    )


def canonical_labels(labels: list[str]) -> list[str]:
    """``negative``, ``neutral``, ``positive`` however the checkpoint spells them.

    Label sets that are not those three are kept as they are.
    """
    found = [
        next((name for name in CANONICAL if label.lower() in SPELLINGS[name]), label)
        for label in labels
    ]
    return found if sorted(found) == CANONICAL else labels


def max_tokens(config: Any) -> int:
    """How many tokens have a position, whatever the tokenizer says (514 rows are 512).

    Raises:
        UserError: the architecture has no table of positions.
    """
    if getattr(config, "max_position_embeddings", None) is None:
        raise UserError(f"unsupported architecture: {config.model_type} has no position table")
    rows = int(config.max_position_embeddings)
    if config.model_type in OFFSET_POSITIONS:
        return rows - int(config.pad_token_id) - 1
    return rows


def _weights_file(path: Path) -> str:
    if not path.is_dir():
        raise UserError(f"{path} is not a directory; give a local checkpoint directory")
    if not (path / "config.json").is_file():
        raise UserError(f"{path} has no config.json, so it is not a checkpoint")
    for name in WEIGHTS:
        if (path / name).is_file():
            return name
    raise UserError(f"{path} has no weights: one of {', '.join(WEIGHTS)} is needed")


def _trained_with(path: Path) -> Preprocessing:
    """``tweet`` for our own fine-tuned checkpoints and for cardiffnlp's twitter models."""
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    names = f"{path.resolve().name} {config.get('_name_or_path', '')}".lower()
    recorded = config.get("preprocessing", "tweet" if "twitter" in names else "none")
    return "tweet" if recorded == "tweet" else "none"


def _digests(path: Path) -> dict[str, str]:
    kept = {".json", ".txt", ".model", ".safetensors", ".bin"}
    return {file.name: sha256(file) for file in sorted(path.iterdir()) if file.suffix in kept}
