"""Loads a checkpoint safely and reads its labels and limits from the config."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sentiment_service.engine.model.bundle import sha256
from sentiment_service.engine.text.encoding import Preprocessing
from sentiment_service.engine.text.pairs import TextPair
from sentiment_service.errors import UserError, first_line
from sentiment_service.settings.checkpoint_options import AS_IT_SAYS, CheckpointOptions
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification
from transformers.modeling_utils import no_init_weights

from sentiment_export.checkpoint.architectures import ARCHITECTURES
from sentiment_export.checkpoint.config import check_task, model_config, read_config
from sentiment_export.checkpoint.decisions import decide
from sentiment_export.checkpoint.labels import MULTI_LABEL
from sentiment_export.checkpoint.layout import choose_local_files, shards
from sentiment_export.checkpoint.tokenizer import CheckpointTokenizer, load_tokenizer
from sentiment_export.checkpoint.weights import load_weights

# The least that a text can be cut to: a few words, and up to four special tokens of a pair.
LEAST_TOKENS = 8
# Architectures whose exported graph has token types as an input.
_TYPED = ("albert", "bert", "deberta", "deberta-v2", "electra")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A sequence classifier as a PyTorch module (fp32, eager attention), and its tokenizer."""

    path: Path
    model: Any
    tokenizer: CheckpointTokenizer
    labels: list[str]
    max_tokens: int
    preprocessing: Preprocessing
    text_pairs: bool
    notes: list[str]  # what was decided without being asked, see ``Decisions``
    files: dict[str, str]

    @property
    def architecture(self) -> str:
        """Name of the model class."""
        return type(self.model).__name__

    @property
    def multi_label(self) -> bool:
        """Whether a text can have several labels, or none; scores are then sigmoids."""
        return bool(self.model.config.problem_type == MULTI_LABEL)

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> torch.Tensor:
        """Reference logits [labels] of one unpadded text."""
        logits: torch.Tensor = self.model(input_ids=torch.tensor([ids])).logits[0]
        return logits

    @torch.inference_mode()
    def pair_logits(self, pair: TextPair) -> torch.Tensor:
        """Reference logits [labels] of a pair, of which the longer text is cut."""
        cut = Tokenizer.from_str(self.tokenizer.tokenizer.to_str())
        cut.enable_truncation(self.max_tokens, strategy="longest_first")
        encoding = cut.encode(pair.text, pair.text_pair)
        inputs = {"input_ids": torch.tensor([encoding.ids])}
        if "token_type_ids" in self.tokenizer.settings["model_input_names"]:
            inputs["token_type_ids"] = torch.tensor([encoding.type_ids])
        logits: torch.Tensor = self.model(**inputs).logits[0]
        return logits


def load_checkpoint(path: Path, options: CheckpointOptions = AS_IT_SAYS) -> Checkpoint:
    """Load a local checkpoint. Pickled weights are read as plain tensors; their code never runs.

    ``options`` override what the checkpoint says, and what ``decide`` knows of it.

    Raises:
        UserError: a file is missing or damaged, the weights do not match config.json, the
            model is not a sequence classifier, an output has no usable label, or the model has
            fewer positions than ``options.max_tokens``.
    """
    side_files, weights = choose_local_files(path)
    entries = read_config(path, str(path))
    check_task(entries, str(path))
    decided = decide(path, entries, options)
    model = empty_classifier(path, decided.entries, outputs=len(decided.labels))
    limit, longest = max_tokens(model.config), options.max_tokens
    if longest and not LEAST_TOKENS <= longest <= limit:
        raise UserError(
            f"--max-tokens is {longest}; for {path} it must be from {LEAST_TOKENS} to {limit}, the "
            "number of tokens that have a position"
        )
    try:
        load_weights(model, path / weights)
    except UserError as error:
        raise UserError(f"cannot load the checkpoint {path}: {error}") from error
    _prepare_for_export(model)
    tokenizer = load_tokenizer(path, entries, model.config.vocab_size)
    _embed_added_rows(model, tokenizer)
    parts = shards(path / weights)
    return Checkpoint(
        path=path,
        model=model.eval(),
        tokenizer=tokenizer,
        labels=decided.labels,
        max_tokens=longest or limit,
        preprocessing=decided.preprocessing,
        text_pairs=options.text_pairs,
        notes=[*decided.notes, *tokenizer.notes],
        files={name: sha256(path / name) for name in sorted({*side_files, weights, *parts})},
    )


def empty_classifier(path: Path, entries: Mapping[str, Any], outputs: int | None = None) -> Any:
    """The model that config.json describes (eager attention, fp32), with undefined weights.

    ``entries`` are those of config.json, checked. ``outputs`` is the number of labels, if id2label
    is not to be trusted. Code in the checkpoint never runs.

    Raises:
        UserError: no model can be made from these entries together.
    """
    try:
        config = model_config(entries)
        config.num_labels = outputs or config.num_labels
        # These change how the model is run, not what it computes; tracing needs the defaults.
        config.torchscript, config.chunk_size_feed_forward = False, 0
        with no_init_weights():
            model = AutoModelForSequenceClassification.from_config(
                config, trust_remote_code=False, attn_implementation="eager", dtype=torch.float32
            )
    except Exception as error:  # a bad config can raise anything
        architecture = ARCHITECTURES[entries["model_type"]]
        raise UserError(
            f"cannot load the checkpoint {path}: no {architecture.name} classifier can be made "
            f"from its config.json ({first_line(error)}); compare it with that of "
            f"{architecture.example}"
        ) from error
    return model


def max_tokens(config: Any) -> int:
    """The number of tokens that have a position, regardless of the tokenizer's own limit.

    RoBERTa, for example, has 514 rows of positions for 512 tokens.

    Raises:
        UserError: there are too few positions for one token between two special ones.
    """
    tokens = ARCHITECTURES[config.model_type].max_tokens(config)
    if tokens < 3:
        raise UserError(
            f"max_position_embeddings in config.json is {config.max_position_embeddings}, which "
            f"leaves {tokens} tokens for a text with its two special tokens; it must be larger"
        )
    return tokens


def _prepare_for_export(model: Any) -> None:
    """Change what Optimum would export wrongly or not at all. The logits of a text stay."""
    config = model.config
    if config.model_type == "big_bird":
        # Its sparse attention chooses blocks at random and by the length of the traced text. Up to
        # ``architectures.full_attention``, it attends to all tokens itself.
        model.base_model.set_attention_type("original_full")
    if config.model_type in _TYPED and config.type_vocab_size == 1:
        # Optimum traces token types 0 and 1. The second row is for that alone.
        table = model.base_model.embeddings.token_type_embeddings
        table.weight = torch.nn.Parameter(table.weight.detach().repeat(2, 1))
        table.num_embeddings = config.type_vocab_size = 2


def _embed_added_rows(model: Any, tokenizer: CheckpointTokenizer) -> None:
    """Give the model the rows that the tokenizer adds: copies of that of the unknown token."""
    if not tokenizer.added_rows:
        return
    known = model.config.vocab_size
    model.resize_token_embeddings(known + tokenizer.added_rows, mean_resizing=False)
    rows = model.get_input_embeddings().weight
    with torch.no_grad():
        rows[known:] = rows[tokenizer.unknown_id].clone()
