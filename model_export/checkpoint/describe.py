"""What a checkpoint is and what the export would make of it, without loading its weights."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from app.engine.preprocessing import Preprocessing
from app.errors import UserError
from model_export.checkpoint.checkpoint import (
    canonical_labels,
    empty_classifier,
    max_tokens,
    trained_with,
)
from model_export.checkpoint.layout import CONFIG_FILE, choose_files
from model_export.checkpoint.metadata import (
    KINDS_BY_FILES,
    TensorInfo,
    list_tensors,
    read_files,
    read_json,
    read_tokenizer,
)
from model_export.checkpoint.weights import Fit, Shape, fit, refuse_misfit
from model_export.errors import first_line

T = TypeVar("T")
LISTED = 10  # entries of a list that a terminal shows
NUMBERED_LAYER = re.compile(r"(?P<stack>.+?)\.(?P<number>\d+)\.(?P<weight>.+)")


@dataclass(frozen=True, slots=True)
class Description:
    """Facts of a checkpoint; ``as_dict`` says what each of them is."""

    path: str
    architecture: str
    model_type: str
    problem_type: str
    labels: dict[str, list[str]]
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
        """Everything, for JSON.

        - ``path``, ``architecture`` (class of the model), ``model_type``
        - ``problem_type``: ``single_label``, ``multi_label`` or ``regression``
        - ``labels``: ``as_spelled`` in config.json, and ``exported``
        - ``max_tokens``: how many have a position; null where the architecture has no table
        - ``tokenizer``: ``kind`` (null where there are no files of one), ``max_tokens`` (what
          its own files say, or null), ``special_tokens`` (token by role), ``added_tokens``
          (special ones, whatever their role)
        - ``preprocessing``: ``tweet`` or ``none``
        - ``parameters``: ``in_files``; of the model as loaded ``total``, and of it
          ``embeddings``, ``encoder`` (the layers), ``per_layer`` (the largest) and
          ``classifier`` (with BERT's pooler)
        - ``layers``: the model that config.json describes, in its order; each has a ``name``,
          ``first`` (the number of the first of ``count`` alike ones; null where it has no
          number) and ``weights``, each a ``name`` and ``shape``
        - ``weights``: entries of the files, by name: ``name``, ``shape``, ``dtype``, ``file``
          and ``read_as``, the model's name or null
        - ``missing``: names of the model that the files lack; ``not_read``: the reverse
        - ``files``: ``name``, ``bytes``, ``format``
        - ``changes``: what the export changes; ``problems``: why it would refuse; sentences
        """
        return asdict(self)

    def text(self) -> str:
        """The same for a terminal, long lists cut."""
        tokens, parameters = self.tokenizer, self.parameters
        special = [f"{role} {token}" for role, token in tokens["special_tokens"].items()]
        parts = ("embeddings", "encoder", "per_layer", "classifier")
        counts = [f"{part.replace('_', ' ')} {parameters[part]:,}" for part in parts]
        dtypes = Counter(weight["dtype"] for weight in self.weights)
        facts = {
            "checkpoint": self.path,
            "architecture": f"{self.architecture} ({self.model_type})",
            "labels": f"{_cut(self.labels['as_spelled'])} ({self.problem_type})",
            "exported as": _cut(self.labels["exported"]),
            "max tokens": f"{self.max_tokens or 'no table of positions'}; "
            f"the tokenizer says {_limit(tokens['max_tokens'])}",
            "tokenizer": tokens["kind"] or "none",
            "special tokens": _cut(special or tokens["added_tokens"]) or "the architecture's own",
            "preprocessing": self.preprocessing,
            "parameters": f"{parameters['total']:,}: {', '.join(counts)}",
            "in the files": f"{parameters['in_files']:,} parameters in {len(self.weights)} "
            f"entries: {', '.join(f'{n} {dtype}' for dtype, n in sorted(dtypes.items()))}",
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
        entries = [f"{w['name']} {w['shape']} {w['dtype']}" for w in self.weights]
        sections = {
            "weights in the files": entries,
            "missing": self.missing,
            "files": sizes,
            "the export would change": self.changes,
            "the export would refuse it": self.problems,
        }
        for title, items in sections.items():
            if items:
                lines += ["", title, *(f"  {item}" for item in _few(items))]
        return "\n".join(lines)


def describe(path: Path, preprocessing: Preprocessing | None = None) -> Description:
    """Read a local checkpoint's config, headers and names; ``preprocessing`` as in the export.

    Raises:
        UserError: a file that it needs is missing or damaged, or the architecture is unknown.
    """
    if not path.is_dir():
        raise UserError(f"{path} is not a directory; give a local checkpoint directory")
    present = sorted(file.name for file in path.iterdir() if file.is_file())
    _, weights = choose_files(present, str(path))
    headers = list_tensors(path / weights)
    config, model = _model(path)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {header.name: header.shape for header in headers}
    fitted = fit(expected, found, model.base_model_prefix)
    read_as = {key: name for name, key in fitted.names.items()}
    spelled = [str(config.id2label.get(i, f"LABEL_{i}")) for i in range(config.num_labels)]
    tokenizer = read_tokenizer(path, present)
    problems: list[str] = []
    limit = _attempt(problems, lambda: max_tokens(config))
    with torch.device("meta"):
        _attempt(problems, lambda: empty_classifier(path))
    _attempt(problems, lambda: refuse_misfit(fitted, expected, found, weights))
    if tokenizer["kind"] is None:
        problems.append(f"{path} has no tokenizer: no tokenizer.json and nothing to make it from")
    labels = {"as_spelled": spelled, "exported": canonical_labels(spelled)}
    taught = preprocessing or trained_with(path)
    layers = _layers(expected)
    changes = _changes(fitted, headers, labels, present)
    if limit is not None and tokenizer["max_tokens"] != limit:
        says = _limit(tokenizer["max_tokens"])
        changes.append(f"the maximum length is set to {limit}; the tokenizer says {says}")
    if taught == "tweet":
        changes.append("texts are normalised as tweets: @user for user names, http for links")
    return Description(
        path=str(path),
        architecture=type(model).__name__,
        model_type=config.model_type,
        problem_type=_problem_type(config),
        labels=labels,
        max_tokens=limit,
        tokenizer=tokenizer,
        preprocessing=taught,
        parameters=_parameters(expected, headers, layers, model.base_model_prefix),
        layers=layers,
        weights=[
            asdict(header) | {"shape": list(header.shape), "read_as": read_as.get(header.name)}
            for header in headers
        ],
        missing=fitted.missing,
        not_read=fitted.unused,
        files=read_files(path, present, weights),
        changes=changes,
        problems=problems,
    )


def _attempt(problems: list[str], step: Callable[[], T]) -> T | None:
    """Take a step of the export; why it refuses is noted, and no end of the description."""
    try:
        return step()
    except UserError as error:
        problems.append(str(error))
        return None


def _model(path: Path) -> tuple[Any, Any]:
    """The config, and the model that it describes, without memory for its weights."""
    read_json(path / CONFIG_FILE)  # says what is wrong with it better than transformers
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    except Exception as error:  # whatever transformers meets in a config
        raise UserError(
            f"{path / CONFIG_FILE} describes no sequence classifier: {first_line(error)}"
        ) from error
    return config, model


def _problem_type(config: Any) -> str:
    given = config.problem_type or ("regression" if config.num_labels == 1 else "single_label")
    return str(given).removesuffix("_classification")


def _layers(expected: Mapping[str, Shape]) -> list[dict[str, Any]]:
    """The model's weights in its order, with equal numbered layers told once."""
    blocks: dict[tuple[str, int | None], list[tuple[str, Shape]]] = {}
    for name, shape in expected.items():
        numbered = NUMBERED_LAYER.fullmatch(name)
        if numbered:
            key, weight = (numbered["stack"], int(numbered["number"])), numbered["weight"]
            blocks.setdefault(key, []).append((weight, shape))
        else:
            module, _, weight = name.rpartition(".")
            blocks.setdefault((module, None), []).append((weight, shape))
    layers = []
    alike = groupby(blocks.items(), lambda b: (b[0][0], b[0][1] is None, tuple(b[1])))
    for (name, _, block), members in alike:
        numbers = [number for (_, number), _ in members]
        held = [{"name": weight, "shape": list(shape)} for weight, shape in block]
        layers.append({"name": name, "first": numbers[0], "count": len(numbers), "weights": held})
    return layers


def _parameters(
    expected: Mapping[str, Shape],
    headers: Iterable[TensorInfo],
    layers: Iterable[Mapping[str, Any]],
    base_prefix: str,
) -> dict[str, int]:
    stacks = [
        (layer["count"], sum(prod(weight["shape"]) for weight in layer["weights"]))
        for layer in layers
        if layer["first"] is not None
    ]
    total = sum(prod(shape) for shape in expected.values())
    start = f"{base_prefix}.embeddings."
    embeddings = sum(prod(shape) for name, shape in expected.items() if name.startswith(start))
    encoder = sum(count * each for count, each in stacks)
    return {
        "in_files": sum(header.parameters for header in headers),
        "total": total,
        "embeddings": embeddings,
        "encoder": encoder,
        "per_layer": max((each for _, each in stacks), default=0),
        "classifier": total - embeddings - encoder,
    }


def _changes(
    fitted: Fit,
    headers: list[TensorInfo],
    labels: Mapping[str, list[str]],
    present: list[str],
) -> list[str]:
    """Of labels, weights and tokenizer, as sentences."""
    changes = []
    if labels["as_spelled"] != labels["exported"]:
        changes.append(f"labels {_cut(labels['as_spelled'])} become {_cut(labels['exported'])}")
    if fitted.renamed:
        key, name = next(iter(fitted.renamed.items()))
        changes.append(f"names of {len(fitted.renamed)} weights are rewritten, as {key} to {name}")
    if fitted.unused:
        changes.append(f"entries not read, {len(fitted.unused)}: {_cut(fitted.unused)}")
    read = set(fitted.names.values())
    dtypes = Counter(header.dtype for header in headers if header.name in read)
    other = sorted(dtypes.keys() - {"float32"})
    changes += [f"{dtypes[dtype]} weights in {dtype} become float32" for dtype in other]
    if any(not header.file.endswith(".safetensors") for header in headers):
        changes.append("the pickled weights are read as plain tensors and not copied")
    if "tokenizer.json" not in present:
        sources = next((files for files in KINDS_BY_FILES if set(files) <= set(present)), ())
        if sources:
            changes.append(f"tokenizer.json is made from {' and '.join(sources)}")
    return changes


def _limit(tokens: Any) -> str:
    if tokens is None:
        return "nothing"
    huge = isinstance(tokens, int | float) and tokens > 1e9
    return "any number" if huge else str(tokens)


def _few(items: list[str]) -> list[str]:
    rest = len(items) - LISTED
    return [*items[:LISTED], f"and {rest} more"] if rest > 0 else items


def _cut(items: list[str]) -> str:
    return ", ".join(_few(items))
