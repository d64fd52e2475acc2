"""The facts about a checkpoint, as text for a terminal or ready for JSON."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from app.engine.text.preprocessing import Preprocessing

LISTED = 10  # entries of a list that a terminal shows


@dataclass(frozen=True, slots=True)
class Description:
    """Facts about a checkpoint; ``as_dict`` explains each of them."""

    path: str
    architecture: str
    model_type: str
    problem_type: str
    labels: dict[str, list[str]]
    passes: str
    max_tokens: int | None
    tokenizer: dict[str, Any]
    preprocessing: Preprocessing
    parameters: dict[str, int]
    layers: list[dict[str, Any]]
    weights: list[dict[str, Any]]
    missing: list[str]
    not_read: list[str]
    files: list[dict[str, Any]]
    changes: list[str]
    problems: list[str]

    def as_dict(self) -> dict[str, Any]:
        """All facts, ready for JSON.

        - ``path``, ``architecture`` (class of the model), ``model_type``
        - ``problem_type``: ``single_label``, ``multi_label`` or ``regression``
        - ``labels``: ``as_spelled`` in config.json, and ``exported`` (empty if they are unusable)
        - ``passes``: what the export does to the graph
        - ``max_tokens``: the number of tokens that have a position; null if config.json leaves
          no position for a text
        - ``tokenizer``: ``kind`` (null if its files are missing), ``max_tokens`` (from the
          tokenizer's files, or null), ``special_tokens`` (token by role) and ``added_tokens``
          (special tokens of any role)
        - ``preprocessing``: ``tweet``, ``bertweet`` or ``none``
        - ``parameters``: ``in_files``, and for the loaded model ``total``, ``embeddings``,
          ``encoder`` (all layers), ``per_layer`` (the largest layer) and ``classifier``
          (including BERT's pooler)
        - ``layers``: the modules that config.json describes, in the model's order; each has a
          ``name``, ``weights`` (``name`` and ``shape``), and for numbered layers ``first``, the
          number of the first of ``count`` equal layers (null for other modules)
        - ``weights``: the tensors in the files, sorted by name: ``name``, ``shape``, ``dtype``,
          ``file`` and ``read_as`` (the model's name for it, or null)
        - ``missing``: weights of the model that the files lack
        - ``not_read``: tensors in the files that the model does not use
        - ``files``: ``name``, ``bytes``, ``format``
        - ``changes``: sentences that say what the export changes
        - ``problems``: sentences that say why the export would fail
        """
        return asdict(self)

    def text(self) -> str:
        """The same facts for a terminal, with long lists cut."""
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
