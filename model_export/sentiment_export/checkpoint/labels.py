"""The labels of a checkpoint: read from config.json, checked, and spelled as the service does."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sentiment_service.errors import UserError

SPELLINGS = {
    "negative": {"negative", "neg"},
    "neutral": {"neutral", "neu"},
    "positive": {"positive", "pos"},
}
SENTIMENTS = list(SPELLINGS)
SINGLE_LABEL, MULTI_LABEL = "single_label_classification", "multi_label_classification"
PROBLEM_TYPES = (SINGLE_LABEL, MULTI_LABEL, "regression")


def read_labels(config: Mapping[str, Any], where: str, named: Sequence[str] = ()) -> list[str]:
    """The label of each output as config.json spells it, or as ``named`` (``--labels``) says.

    ``config`` has the entries of config.json. A config without ``id2label`` means ``LABEL_0``,
    ``LABEL_1`` and so on, as in transformers.

    Raises:
        UserError: the outputs are not classes, their ids are not 0, 1, 2 and so on, a label is
            empty, repeated or cannot be shown in a line, or ``named`` has another number of
            labels. The message begins with ``where``.
    """
    names = output_names(config, where)
    _check_head(config.get("problem_type"), len(names), where)
    numbered = sorted(names) == list(range(len(names)))
    if named:
        if numbered and len(named) != len(names):
            raise UserError(
                f"{where} has {len(names)} outputs: give as many different labels to --labels"
            )
        _check_names(named, f"--labels for {where}")
        return list(named)
    if not numbered:
        ids = ", ".join(map(str, sorted(names)[:10]))
        raise UserError(
            f"{where}: id2label in config.json has the ids {ids}; they must be 0, 1, 2 and so on, "
            "without gaps: name all outputs with --labels"
        )
    return _check_names([names[index] for index in range(len(names))], where)


def canonical_labels(labels: list[str]) -> list[str]:
    """Spell sentiment labels as ``negative``, ``neutral`` and ``positive``.

    This applies to sets of negative and positive, with or without neutral, in any known spelling.
    Other label sets are returned unchanged.
    """
    sentiments = [
        next((name for name in SENTIMENTS if label.lower() in SPELLINGS[name]), "")
        for label in labels
    ]
    distinct = len(set(sentiments)) == len(sentiments)
    if distinct and {"negative", "positive"} <= set(sentiments) <= set(SENTIMENTS):
        return sentiments
    return labels


def is_numbered(labels: Sequence[str]) -> bool:
    """Whether the labels are ``LABEL_0``, ``LABEL_1`` and so on: transformers' word for no name."""
    return [label.upper() for label in labels] == [f"LABEL_{n}" for n in range(len(labels))]


def known_spellings(labels: Sequence[str]) -> dict[str, str]:
    """Every spelling in which labelled files may write ``labels``, and the label that it means.

    Spellings are in lower case: the labels themselves, ``label_0`` and so on by position, and for
    a sentiment its other spellings. A spelling that could mean two labels is left out.
    """
    meanings: dict[str, set[str]] = {}
    for index, label in enumerate(labels):
        lower = label.lower()
        group = next((words for words in SPELLINGS.values() if lower in words), {lower})
        for spelling in {*group, f"label_{index}"}:
            meanings.setdefault(spelling, set()).add(label)
    return {spelling: next(iter(names)) for spelling, names in meanings.items() if len(names) == 1}


def output_names(config: Mapping[str, Any], where: str) -> dict[int, Any]:
    """What config.json calls each output, by id. The names may be anything.

    Raises:
        UserError: ``id2label`` or ``problem_type`` is of no form that transformers reads.
    """
    entry = config.get("id2label")
    if entry is None:
        entry = {index: f"LABEL_{index}" for index in range(config.get("num_labels") or 2)}
    try:
        names = {int(index): name for index, name in entry.items()}
    except (AttributeError, TypeError, ValueError):
        names = {}
    if not names or len(names) != len(entry):  # "0" and "00" are one id
        raise UserError(
            f"{where}: id2label in config.json must be an object from ids to labels, such as "
            '{"0": "negative", "1": "positive"}'
        )
    problem_type = config.get("problem_type")
    if problem_type is not None and problem_type not in PROBLEM_TYPES:
        raise UserError(
            f"{where}: problem_type in config.json is {problem_type!r}; it must be one of "
            f"{', '.join(PROBLEM_TYPES)}"
        )
    return names


def _check_head(problem_type: str | None, outputs: int, where: str) -> None:
    """Check that the outputs are classes, or labels with a probability each."""
    if problem_type == "regression":
        raise UserError(
            f"{where} is a regression (problem_type in config.json): its outputs are quantities, "
            "not classes; give the checkpoint of a classifier"
        )
    if outputs == 1 and problem_type != MULTI_LABEL:
        raise UserError(
            f"{where} has one output, and config.json does not say that it is a probability: it "
            "is probably a regression, which cannot be served. If it was trained with a sigmoid "
            f"(binary cross-entropy), give --multi-label"
        )


def _check_names(labels: Sequence[Any], where: str) -> list[str]:
    """The labels as strings; numbers become their digits."""
    names = [str(label) if type(label) is int else label for label in labels]
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.strip() or re.search(r"[\t\r\n]", name):
            raise UserError(
                f"{where}: the label of output {index} is {name!r:.40}; it must be a name of one "
                "line without tabs: name all outputs with --labels"
            )
        if first.setdefault(name, index) != index:
            raise UserError(
                f"{where}: the outputs {first[name]} and {index} are both called "
                f"{name!r}: give each output a name of its own with --labels"
            )
    return names
