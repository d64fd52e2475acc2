"""Describes a checkpoint and what the export would change, without loading the weights."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch

from app.engine.text.encoding import Preprocessing
from app.errors import UserError
from model_export.checkpoint.architectures import ARCHITECTURES
from model_export.checkpoint.checkpoint import (
    empty_classifier,
    max_tokens,
    trained_preprocessing,
)
from model_export.checkpoint.config import check_task, read_config
from model_export.checkpoint.description import Description, length_limit, shortened
from model_export.checkpoint.fast_tokenizer.tokenizer import check_vocabulary, load_tokenizer
from model_export.checkpoint.labels import canonical_labels, output_names, read_labels
from model_export.checkpoint.layout import check_directory, choose_local_files
from model_export.checkpoint.metadata import (
    TensorInfo,
    list_tensors,
    read_files,
    read_tokenizer,
)
from model_export.checkpoint.weights import Fit, Shape, check_dtypes, check_fit, fit

T = TypeVar("T")
NORMALISED = {
    "tweet": "texts are normalised as tweets: user names become @user, links become http",
    "bertweet": "texts are normalised as for BERTweet: words are cut apart, user names become "
    "@USER, links HTTPURL, emoji words",
}
NUMBERED_LAYER = re.compile(r"(?P<stack>.+?)\.(?P<number>\d+)\.(?P<weight>.+)")


def describe(path: Path, preprocessing: Preprocessing | None = None) -> Description:
    """Read a local checkpoint's config, tensor names and shapes, and tokenizer files.

    ``preprocessing`` overrides the checkpoint's own, as in the export.

    Raises:
        UserError: a needed file is missing or damaged, or the architecture is not exported.
    """
    check_directory(path)
    present = sorted(file.name for file in path.iterdir() if file.is_file())
    _, weights = choose_local_files(path)
    entries = read_config(path, str(path))
    problems: list[str] = []
    labels = _labels(entries, str(path), problems)
    with torch.device("meta"):  # its weights use no memory
        model = empty_classifier(path, entries)
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    tensors = list_tensors(path / weights)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    in_files = {tensor.name: tensor.shape for tensor in tensors}
    fitted = fit(expected, in_files, model.base_model_prefix)
    read_as = {key: name for name, key in fitted.names.items()}
    made_from = architecture.tokenizer_files(present)
    tokenizer = read_tokenizer(path, present, made_from)
    limit = _attempt(problems, lambda: max_tokens(config))
    _attempt(problems, lambda: check_task(entries, str(path)))
    _attempt(problems, lambda: check_fit(fitted, expected, in_files, weights))
    dtypes = {tensor.name: tensor.dtype for tensor in tensors}
    _attempt(problems, lambda: check_dtypes(fitted, dtypes, weights))
    loaded = _attempt(problems, lambda: load_tokenizer(path))
    if loaded is not None and not problems:  # vocab_size is that of the weights
        _attempt(problems, lambda: check_vocabulary(loaded, config.vocab_size, str(path)))
    chosen = preprocessing or trained_preprocessing(path)
    layers = _layers(expected)
    changes = _changes(fitted, tensors, labels)
    if made_from is not None and "tokenizer.json" not in present:
        changes.append(f"tokenizer.json is made from {' and '.join(made_from.names)}")
    if limit is not None and tokenizer["max_tokens"] != limit:
        own = length_limit(tokenizer["max_tokens"])
        changes.append(f"the maximum length becomes {limit} (the tokenizer's own limit: {own})")
    if chosen != "none":
        changes.append(NORMALISED[chosen])
    return Description(
        path=str(path),
        architecture=type(model).__name__,
        model_type=config.model_type,
        problem_type=_problem_type(config),
        labels=labels,
        passes=architecture.passes,
        max_tokens=limit,
        tokenizer=tokenizer,
        preprocessing=chosen,
        parameters=_parameters(expected, tensors, layers, model.base_model_prefix),
        layers=layers,
        weights=[
            asdict(tensor) | {"shape": list(tensor.shape), "read_as": read_as.get(tensor.name)}
            for tensor in tensors
        ],
        missing=fitted.missing,
        not_read=fitted.unused,
        files=read_files(path, present, weights),
        changes=changes,
        problems=problems,
    )


def _attempt(problems: list[str], step: Callable[[], T]) -> T | None:
    """Try a step of the export; if it fails, note the reason and go on."""
    try:
        return step()
    except UserError as error:
        problems.append(str(error))
        return None


def _labels(entries: Mapping[str, Any], where: str, problems: list[str]) -> dict[str, list[str]]:
    """The labels as in config.json, and those of the bundle: none if they are unusable."""
    names = output_names(entries, where)
    usable = _attempt(problems, lambda: read_labels(entries, where)) or []
    return {
        "as_spelled": [str(names[index]) for index in sorted(names)],
        "exported": canonical_labels(usable),
    }


def _problem_type(config: Any) -> str:
    given = config.problem_type or ("regression" if config.num_labels == 1 else "single_label")
    return str(given).removesuffix("_classification")


def _layers(expected: Mapping[str, Shape]) -> list[dict[str, Any]]:
    """The weights by module, in the model's order; equal numbered layers are grouped."""
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
    tensors: Iterable[TensorInfo],
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
        "in_files": sum(tensor.parameters for tensor in tensors),
        "total": total,
        "embeddings": embeddings,
        "encoder": encoder,
        "per_layer": max((each for _, each in stacks), default=0),
        "classifier": total - embeddings - encoder,
    }


def _changes(
    fitted: Fit,
    tensors: list[TensorInfo],
    labels: Mapping[str, list[str]],
) -> list[str]:
    """What the export changes in labels and weights, as sentences."""
    changes = []
    if labels["exported"] not in ([], labels["as_spelled"]):
        changes.append(
            f"labels {shortened(labels['as_spelled'])} become {shortened(labels['exported'])}"
        )
    if fitted.renamed:
        key, name = next(iter(fitted.renamed.items()))
        changes.append(f"{len(fitted.renamed)} weights are renamed, such as {key} to {name}")
    if fitted.unused:
        changes.append(f"{len(fitted.unused)} tensors are not read: {shortened(fitted.unused)}")
    read = set(fitted.names.values())
    dtypes = Counter(tensor.dtype for tensor in tensors if tensor.name in read)
    other = sorted(dtypes.keys() - {"float32"})
    changes += [f"{dtypes[dtype]} weights in {dtype} become float32" for dtype in other]
    if any(not tensor.file.endswith(".safetensors") for tensor in tensors):
        changes.append("the pickled weights are read as plain tensors; the pickle is not copied")
    return changes
