"""The facts about a checkpoint, as text for a terminal or ready for JSON."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from app.engine.text.encoding import Preprocessing

LISTED = 10  # entries of a list that a terminal shows


@dataclass(frozen=True, slots=True)
class Description:
    """Facts about a checkpoint; their names are those of the JSON."""

    path: str
    architecture: str  # class of the model
    model_type: str
    problem_type: str  # single_label, multi_label or regression
    labels: dict[str, list[str]]  # as_spelled in config.json, and exported: empty if unusable
    passes: str  # what the export does to the graph
    max_tokens: int | None  # that have a position; None if config.json leaves none for a text
    # kind (None if its files are missing), max_tokens (from the tokenizer's files, or None),
    # special_tokens (token by role) and added_tokens (special tokens of any role)
    tokenizer: dict[str, Any]
    preprocessing: Preprocessing
    # in_files, and of the loaded model: total, embeddings, encoder (all layers), per_layer (the
    # largest layer) and classifier (including BERT's pooler)
    parameters: dict[str, int]
    # The modules that config.json describes, in the model's order: name, weights (name and shape),
    # and for numbered layers first, the number of the first of count equal layers (else None)
    layers: list[dict[str, Any]]
    # The tensors in the files, sorted by name: name, shape, dtype, file and read_as (the model's
    # name for it, or None)
    weights: list[dict[str, Any]]
    missing: list[str]  # weights of the model that the files lack
    not_read: list[str]  # tensors in the files that the model does not use
    files: list[dict[str, Any]]  # name, bytes, format
    changes: list[str]  # what the export changes, in sentences
    problems: list[str]  # why the export would fail, in sentences

    def text(self) -> str:
        """The facts for a terminal, with long lists cut."""
        tokens, parameters = self.tokenizer, self.parameters
        special = [f"{role} {token}" for role, token in tokens["special_tokens"].items()]
        parts = ("embeddings", "encoder", "per_layer", "classifier")
        counts = [f"{part.replace('_', ' ')} {parameters[part]:,}" for part in parts]
        dtypes = Counter(weight["dtype"] for weight in self.weights)
        facts = {
            "checkpoint": self.path,
            "architecture": f"{self.architecture} ({self.model_type})",
            "labels": f"{shortened(self.labels['as_spelled'])} ({self.problem_type})",
            "exported as": shortened(self.labels["exported"]) or "not exported",
            "the graph": self.passes,
            "max tokens": f"{self.max_tokens or 'none'} "
            f"(the tokenizer's own limit: {length_limit(tokens['max_tokens'])})",
            "tokenizer": tokens["kind"] or "none",
            "special tokens": shortened(special or tokens["added_tokens"])
            or "the architecture's defaults",
            "preprocessing": self.preprocessing,
            "parameters": f"{parameters['total']:,}: {', '.join(counts)}",
            "in the files": f"{parameters['in_files']:,} parameters in {len(self.weights)} "
            f"tensors: {', '.join(f'{n} {dtype}' for dtype, n in sorted(dtypes.items()))}",
        }
        lines = [f"{name:<15} {value}" for name, value in facts.items()]
        lines += ["", "layers"]
        for layer in self.layers:
            start = f"  {layer['name']}."
            if layer["first"] is not None:
                lines.append(f"  {layer['count']} x {layer['name']}:")
                start = "    "
            lines += [f"{start}{weight['name']} {weight['shape']}" for weight in layer["weights"]]
        sizes = [f"{f['name']}  {f['bytes']:,} bytes  {f['format']}" for f in self.files]
        tensors = [f"{w['name']} {w['shape']} {w['dtype']}" for w in self.weights]
        sections = {
            "tensors in the files": tensors,
            "missing weights": self.missing,
            "files": sizes,
            "the export would change": self.changes,
            "why the export would fail": self.problems,
        }
        for title, items in sections.items():
            if items:
                lines += ["", title, *(f"  {item}" for item in _few(items))]
        return "\n".join(lines)


def length_limit(tokens: Any) -> str:
    """A tokenizer's ``model_max_length`` in words; transformers writes 1e30 for "no limit"."""
    if tokens is None:
        return "not given"
    huge = isinstance(tokens, int | float) and tokens > 1e9
    return "none" if huge else str(tokens)


def shortened(items: list[str]) -> str:
    """The first ``LISTED`` items in one line, and the number of the others."""
    return ", ".join(_few(items))


def _few(items: list[str]) -> list[str]:
    rest = len(items) - LISTED
    return [*items[:LISTED], f"and {rest} more"] if rest > 0 else items
