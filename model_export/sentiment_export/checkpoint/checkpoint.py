"""Finds a checkpoint, and loads it: config, labels, weights, tokenizer, and the module of PyTorch.

Nothing here needs PyTorch but ``Checkpoint.model`` and, outside BERT's family, the names of the
weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sentiment_service.engine.model.bundle import CACHED, sha256
from sentiment_service.engine.options import Preprocessing
from sentiment_service.engine.text.text_tokenizer import TextPair
from sentiment_service.errors import UserError, first_line
from sentiment_service.settings.settings import AS_IT_SAYS, CheckpointOptions
from tokenizers import Tokenizer

from sentiment_export.checkpoint.architectures import ARCHITECTURES, NotRecognised
from sentiment_export.checkpoint.config import (
    MULTI_LABEL,
    check_not_quantized,
    check_task,
    model_config,
    read_config,
)
from sentiment_export.checkpoint.decisions import decide
from sentiment_export.checkpoint.family import KNOWN_UNUSED, Encoder, Shape
from sentiment_export.checkpoint.graph_file import GraphFile
from sentiment_export.checkpoint.layout import (
    DEFAULT_REVISION,
    GRAPH,
    check_revision,
    choose_local_files,
    of_cache,
    weight_files,
)
from sentiment_export.checkpoint.tokenizer import CheckpointTokenizer, load_tokenizer
from sentiment_export.checkpoint.weights import (
    ANYTHING,
    Tensor,
    Weights,
    check_fit,
    fit,
    read_tensors,
)

# The least that a text can be cut to: a few words, and up to four special tokens of a pair.
LEAST_TOKENS = 8


@dataclass(frozen=True)
class Checkpoint:
    """A sequence classifier: what its files say, and its weights, which are read when needed.

    ``graph`` is set if an ONNX graph takes the place of weights. ``encoder`` describes the graph if
    the architecture is one of BERT's family; ``weights`` are under its names then, and under those
    of the PyTorch module otherwise. ``config`` has the entries of config.json, with the labels and
    the head that were decided.
    """

    path: Path
    config: Mapping[str, Any]
    encoder: Encoder | None
    weights: Weights
    graph: GraphFile | None
    tokenizer: CheckpointTokenizer
    labels: list[str]
    max_tokens: int
    preprocessing: Preprocessing
    languages: list[str]
    text_pairs: bool
    notes: list[str]  # what was decided without being asked, see ``Decisions``
    files: dict[str, str]

    @property
    def architecture(self) -> str:
        return ARCHITECTURES[self.config["model_type"]].class_name

    @property
    def multi_label(self) -> bool:
        """Whether a text can have several labels, or none; scores are then sigmoids."""
        return bool(self.config.get("problem_type") == MULTI_LABEL)

    @cached_property
    def model(self) -> Any:
        """The PyTorch module in fp32 with eager attention, as the reference. Needs PyTorch."""
        import torch

        model = empty_classifier(self.path, self.config)
        files = self.weights
        names = fit(shapes(model), model.base_model_prefix, files.tensors)
        # Copies, because what is mapped from a file cannot be written.
        named = replace(files, names=names)
        state = {name: torch.from_numpy(np.array(values)) for name, values in named.items()}
        model.load_state_dict(state, assign=True)
        if model.config.model_type == "big_bird":
            # Its sparse attention chooses blocks at random. Up to ``architectures.full_attention``,
            # it attends to all tokens itself.
            model.base_model.set_attention_type("original_full")
        return model.eval()

    def logits(self, ids: list[int]) -> Any:
        """Reference logits [labels] of one unpadded text, a tensor of PyTorch."""
        return self._compute(input_ids=ids)

    def pair_logits(self, pair: TextPair) -> Any:
        """Reference logits [labels] of a pair, of which the longer text is cut."""
        cut = Tokenizer.from_str(self.tokenizer.tokenizer.to_str())
        side = self.tokenizer.truncation_side
        cut.enable_truncation(self.max_tokens, strategy="longest_first", direction=side)
        encoding = cut.encode(pair.text, pair.text_pair)
        types = {"token_type_ids": encoding.type_ids} if self.tokenizer.types_pairs else {}
        return self._compute(input_ids=encoding.ids, **types)

    def _compute(self, **inputs: list[int]) -> Any:
        import torch

        tensors = {name: torch.tensor([numbers]) for name, numbers in inputs.items()}
        with torch.inference_mode():
            return self.model(**tensors).logits[0]


def find_checkpoint(source: str, revision: str | None = None, onnx: str | None = None) -> Path:
    """The directory that holds a checkpoint's files; downloads the files that are missing.

    ``source`` is a checkpoint directory, a model's directory in a hub cache, or a hub id. ``onnx``
    is the graph to download in the place of weights; see ``choose_files``.
    """
    check_revision(revision)
    path = Path(source)
    if source and path.is_dir():
        model = path.resolve()
        if model.name.startswith(CACHED) and (model / "snapshots").is_dir():
            return of_cache(model, revision or DEFAULT_REVISION)
        if revision is not None:
            raise UserError(
                f"{source} is a local directory, which has no revision {revision}: leave that out, "
                "or move the directory away"
            )
        return path
    if path.is_file():
        raise UserError(f"{source} is a file; give the checkpoint directory that holds it")
    from sentiment_export.checkpoint.hub import fetch_checkpoint

    return fetch_checkpoint(source, revision or DEFAULT_REVISION, onnx)


def load_checkpoint(path: Path, options: CheckpointOptions = AS_IT_SAYS) -> Checkpoint:
    """Load a local checkpoint; ``options`` override what it says, and what ``decide`` knows.

    Pickled weights are read as plain tensors; their code never runs.
    """
    side_files, weights = choose_local_files(path, options.onnx)
    entries = read_config(path, str(path), of_graph=weights.endswith(GRAPH))
    check_task(entries, str(path))
    graph = graph_of(path, weights, entries)
    decided = decide(path, entries, options)
    config = {
        **decided.entries,
        "id2label": {str(index): label for index, label in enumerate(decided.labels)},
        "label2id": {label: index for index, label in enumerate(decided.labels)},
    }
    config.pop("num_labels", None)  # the names say it
    limit, longest = max_tokens(config), options.max_tokens
    if longest and not LEAST_TOKENS <= longest <= limit:
        raise UserError(
            f"--max-tokens is {longest}; for {path} it must be from {LEAST_TOKENS} to {limit}, the "
            "number of tokens that have a position"
        )
    encoder, held = None, Weights({}, {}, weights)
    if graph is not None:
        tokenizer = load_tokenizer(path, entries, graph.rows)
        if tokenizer.added_rows:
            raise UserError(
                f"{path}: its tokenizer has tokens for which the weights get rows, which a graph "
                "cannot: give the checkpoint that it was made from"
            )
    else:
        described = Described.of(path, config, len(decided.labels))
        try:
            tensors = read_tensors(path / weights)
            names = described.fit(tensors, weights)
        except UserError as error:
            raise UserError(f"cannot load the checkpoint {path}: {error}") from error
        rows = described.rows
        tokenizer = load_tokenizer(path, entries, rows)
        encoder, added = described.encoder, tokenizer.added_rows
        config["vocab_size"] = rows + added
        if encoder is not None:
            config["pad_token_id"] = encoder.padding_id
            encoder = replace(encoder, vocabulary=rows + added)
        copies = {described.word_embedding: (tokenizer.unknown_id, added)} if added else {}
        held = Weights(tensors, names, weights, copies)
    if options.text_pairs:
        _check_types(path, config, tokenizer)
    return Checkpoint(
        path=path,
        config=config,
        encoder=encoder,
        weights=held,
        graph=graph,
        tokenizer=tokenizer,
        labels=decided.labels,
        max_tokens=longest or limit,
        preprocessing=decided.preprocessing,
        languages=decided.languages,
        text_pairs=options.text_pairs,
        notes=[*decided.notes, *tokenizer.notes],
        files={
            name: sha256(path / name)
            for name in sorted({*side_files, *weight_files(path, weights)})
        },
    )


def graph_of(path: Path, weights: str, entries: dict[str, Any]) -> GraphFile | None:
    """The graph that stands in the place of weights; labels that it has not named get numbers."""
    graph = GraphFile.read(path / weights) if weights.endswith(GRAPH) else None
    if graph and graph.labels and not entries.get("id2label"):
        entries["id2label"] = {index: f"LABEL_{index}" for index in range(graph.labels)}
    return graph


def _check_types(path: Path, config: Mapping[str, Any], tokenizer: CheckpointTokenizer) -> None:
    """Check that the model has the token type that the second text of a pair gets."""
    types = config.get("type_vocab_size", 2)
    if tokenizer.loses_types and types != 1:
        reason = f"an export of {config['model_type']} computes with type 0 alone"
    elif tokenizer.types_pairs and types == 1:
        reason = "type_vocab_size in config.json is 1"
    else:
        return
    raise UserError(
        f"{path}: {reason}, but the tokenizer gives the second text of a pair the token type 1: "
        "leave out --text-pairs, or if the model was trained without types, write "
        '"model_input_names": ["input_ids", "attention_mask"] in tokenizer_config.json'
    )


@dataclass(frozen=True, slots=True)
class Described:
    """The model that config.json describes: its encoder if known, and its weights."""

    encoder: Encoder | None
    weights: Mapping[str, Shape]
    prefix: str

    @classmethod
    def of(cls, path: Path, config: Mapping[str, Any], labels: int) -> "Described":
        """The model of the checkpoint in ``path``; outside BERT's family, PyTorch describes it."""
        try:
            encoder = Encoder.of(config, labels)
        except NotRecognised:
            import torch

            with torch.device("meta"):  # its weights use no memory
                model = empty_classifier(path, {**config, "num_labels": labels})
            return cls(None, shapes(model), model.base_model_prefix)
        except UserError as error:
            raise _no_model(path, config, error) from error
        return cls(encoder, encoder.weights, encoder.family.prefix)

    @property
    def word_embedding(self) -> str:
        """The name of the table that has a row for each token."""
        return next(
            n
            for n in self.weights
            if n.endswith(("word_embeddings.weight", "tok_embeddings.weight"))
        )

    @property
    def rows(self) -> int:
        return self.weights[self.word_embedding][0]

    def fit(self, tensors: Mapping[str, Tensor], where: str) -> dict[str, str]:
        names = fit(self.weights, self.prefix, tensors)
        unused = KNOWN_UNUSED if self.encoder else ANYTHING
        check_fit(names, self.weights, tensors, where, unused)
        return names


def empty_classifier(path: Path, config: Mapping[str, Any]) -> Any:
    """The PyTorch module that config.json describes (eager attention, fp32), without weights.

    Code in the checkpoint never runs.
    """
    import torch
    from transformers import AutoModelForSequenceClassification
    from transformers.initialization import no_init_weights

    try:
        made = model_config(config)
        # These change how the model is run, not what it computes; tracing needs the defaults.
        made.torchscript, made.chunk_size_feed_forward = False, 0
        with no_init_weights():
            return AutoModelForSequenceClassification.from_config(
                made, trust_remote_code=False, attn_implementation="eager", dtype=torch.float32
            )
    except Exception as error:  # a bad config can raise anything
        raise _no_model(path, config, error) from error


def pretrained_weights(path: Path, entries: Mapping[str, Any]) -> Weights:
    """What a new classifier starts from: the encoder, and what there is of head and pooler."""
    _, weights = choose_local_files(path)
    check_not_quantized(entries, str(path))
    described = Described.of(path, entries, entries["num_labels"])
    expected, prefix = described.weights, f"{described.prefix}."
    encoder = {n: s for n, s in expected.items() if n.startswith(prefix) and "pooler" not in n}
    try:
        tensors = read_tensors(path / weights)
        names = fit(expected, described.prefix, tensors)
        read = {name: key for name, key in names.items() if name in encoder}
        check_fit(read, encoder, tensors, weights)
    except UserError as error:
        raise UserError(f"cannot load the checkpoint {path}: {error}") from error
    return Weights(tensors, names, weights)


def shapes(model: Any) -> dict[str, Shape]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def max_tokens(config: Mapping[str, Any]) -> int:
    """The number of tokens that have a position, regardless of the tokenizer's own limit."""
    rows = config.get("max_position_embeddings")
    try:
        tokens = ARCHITECTURES[config["model_type"]].max_tokens(config)
    except (TypeError, ValueError):
        raise UserError(
            f"max_position_embeddings in config.json is {rows!r}; it must be a whole number"
        ) from None
    if tokens < 3:
        raise UserError(
            f"max_position_embeddings in config.json is {rows}, which "
            f"leaves {tokens} tokens for a text with its two special tokens; it must be larger"
        )
    return tokens


def _no_model(path: Path, config: Mapping[str, Any], error: Exception) -> UserError:
    architecture = ARCHITECTURES[config["model_type"]]
    return UserError(
        f"cannot load the checkpoint {path}: no {architecture.name} classifier can be made "
        f"from its config.json ({first_line(error)}); compare it with that of "
        f"{architecture.example}"
    )
