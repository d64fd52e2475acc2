"""Describes a checkpoint and what an export would do, without loading the weights."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from sentiment_service.errors import UserError
from sentiment_service.settings.settings import AS_IT_SAYS

from sentiment_export.checkpoint.architectures import ARCHITECTURES
from sentiment_export.checkpoint.checkpoint import Described, graph_of, max_tokens
from sentiment_export.checkpoint.config import MULTI_LABEL, check_task, output_names, read_config
from sentiment_export.checkpoint.decisions import decide
from sentiment_export.checkpoint.family import FAMILY, Shape
from sentiment_export.checkpoint.graph_file import GraphFile
from sentiment_export.checkpoint.layout import GRAPH, choose_local_files, names_in, weight_files
from sentiment_export.checkpoint.tokenizer import load_tokenizer
from sentiment_export.checkpoint.weights import Tensor, fit, read_tensors, unread

LISTED = 10  # names that one line or section of the text shows
NUMBERED_LAYER = re.compile(r"(.+?)\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class Description:
    """Facts about a checkpoint; their names are those of the JSON."""

    architecture: str  # class of the model
    parameters: int
    labels: list[str]  # as config.json spells them
    tokenizer: str | None  # its kind; None if it cannot be loaded
    max_tokens: int | None  # None if config.json leaves no position for a text
    # The weights that config.json asks for, none of an ONNX graph: name -> shape. Those of alike
    # layers are one entry, such as "bert.encoder.layer.0-11.output.dense.bias".
    layers: dict[str, list[int]]
    weights: list[dict[str, Any]]  # in the files, by name: name, shape, dtype
    files: dict[str, int]  # name -> bytes
    changes: list[str]  # what an export would change or guess, in sentences
    problems: list[str]  # why it would fail, in sentences

    def text(self) -> str:
        """The facts for a terminal, with long lists cut."""
        tensors = [f"{w['name']} {w['shape']} {w['dtype']}" for w in self.weights]
        sections = {
            "checkpoint": [
                f"{self.architecture}, {self.parameters:,} parameters",
                f"labels: {_few(self.labels)}",
                f"tokenizer: {self.tokenizer or 'none'}",
                f"at most {self.max_tokens or 'no'} tokens",
            ],
            "layers": [f"{name} {shape}" for name, shape in self.layers.items()],
            f"weights in the files: {len(tensors)}, of which the first": tensors[:LISTED],
            "files": [f"{name}  {size:,} bytes" for name, size in self.files.items()],
            "an export would change": self.changes,
            "why an export would fail": self.problems,
        }
        return "\n\n".join("\n  ".join([title, *of]) for title, of in sections.items() if of)


def describe(path: Path, onnx: str = "") -> Description:
    """Read a local checkpoint's config, the names and shapes of its weights, and its tokenizer.

    ``onnx`` is the graph to describe in the place of weights; see ``choose_files``.
    """
    _, weights = choose_local_files(path, onnx)
    entries = read_config(path, str(path), of_graph=weights.endswith(GRAPH))
    graph = graph_of(path, weights, entries)
    names = {*names_in(path), *(weight_files(path, weights) if graph else ())}
    problems: list[str] = []

    def tried(step: Callable[[], Any]) -> Any:
        """Try a step of the export; if it fails, note the reason and go on."""
        try:
            return step()
        except UserError as error:
            problems.append(str(error))
            return None

    labels = [str(name) for _, name in sorted(output_names(entries, str(path)).items())]
    if graph and graph.labels not in (None, len(labels)):
        named = f"config.json names {len(labels)} labels"
        problems.append(f"{path / weights} gives {graph.labels} logits, but {named}")
    decided = tried(lambda: decide(path, entries, AS_IT_SAYS))
    limit = tried(lambda: max_tokens(entries))
    tried(lambda: check_task(entries, str(path)))
    expected: Mapping[str, Shape] = {}
    changed: list[str] = []
    if graph:
        held, rows = graph.weights, graph.rows
    else:
        described = Described.of(path, entries, len(labels))
        tensors = dict(sorted(read_tensors(path / weights).items()))
        fits = tried(lambda: described.fit(tensors, weights))
        expected = described.weights
        changed += _changed_weights(fit(expected, described.prefix, tensors), tensors)
        held = {key: (tensor.shape, tensor.dtype) for key, tensor in tensors.items()}
        # vocab_size is that of the weights, if these are whole.
        rows = described.rows if fits else None
    loaded = tried(lambda: load_tokenizer(path, entries, rows))
    changes = [f"the graph: {passes(entries['model_type'], graph)}"]
    if decided is not None:
        changes += [*decided.notes, *(loaded.notes if loaded else ())]
        if decided.preprocessing != "none":
            changes.append(f"texts are normalised: preprocessing {decided.preprocessing}")
        if decided.entries.get("problem_type") == MULTI_LABEL:
            changes.append("the scores: a sigmoid for each label; a text may get several, or none")
    changes += changed
    if loaded and loaded.files and "tokenizer.json" not in names:
        changes.append(f"tokenizer.json is made from {' and '.join(loaded.files.names)}")
    shapes = [*expected.values()] or [shape for shape, _ in held.values()]
    return Description(
        architecture=ARCHITECTURES[entries["model_type"]].class_name,
        parameters=sum(map(prod, shapes)),
        labels=labels,
        tokenizer=loaded and loaded.kind,
        max_tokens=limit,
        layers=_layers(expected),
        weights=[{"name": n, "shape": [*s], "dtype": t} for n, (s, t) in held.items()],
        files={name: (path / name).stat().st_size for name in sorted(names)},
        changes=changes,
        problems=problems,
    )


def passes(model_type: str, graph: GraphFile | None = None) -> str:
    """What the export does to the graph, which may be the source's."""
    last = "first token only after the last attention, unless the classifier reads others"
    if model_type in FAMILY and graph is None:
        last = "last layer for the first token only"
    if graph and not graph.is_plain:
        return "as it is"
    unless = "; as it is where these do not fit" if graph else ""
    return f"padding left out, {last}, int8 with a scale per token{unless}"


def _changed_weights(names: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    if renamed := [(key, name) for name, key in names.items() if key != name]:
        yield f"{len(renamed)} weights are renamed, such as {' to '.join(renamed[0])}"
    if unused := unread(names, tensors):
        yield f"{len(unused)} weights are not read: {_few(unused)}"
    dtypes = Counter(tensors[key].dtype for key in names.values())
    del dtypes["float32"]
    yield from (f"{count} weights in {dtype} become float32" for dtype, count in dtypes.items())


def _layers(expected: Mapping[str, tuple[int, ...]]) -> dict[str, list[int]]:
    """The weights in the model's order, those of alike numbered layers together."""
    numbers: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for name, shape in expected.items():
        numbered = NUMBERED_LAYER.fullmatch(name)
        stack, number, weight = numbered.groups() if numbered else (name, -1, "")
        numbers.setdefault((stack, weight, shape), []).append(int(number))
    layers = {}
    for (stack, weight, shape), (first, *more) in numbers.items():
        together = more == [*range(first + 1, first + 1 + len(more))]
        which = f"{first}-{more[-1]}" if more and together else ",".join(map(str, [first, *more]))
        layers[f"{stack}.{which}.{weight}" if weight else stack] = list(shape)
    return layers


def _few(items: list[str]) -> str:
    return ", ".join([*items[:LISTED], "..."] if len(items) > LISTED else items)
