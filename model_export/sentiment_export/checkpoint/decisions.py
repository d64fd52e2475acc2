"""Decides how a checkpoint is read, once: its labels, its scores and the normalisation of texts.

What the user says wins, then what the checkpoint says, then what is known of published checkpoints
(``known_checkpoints.toml``). What is left is guessed from names, and a guess is said.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, get_args

from sentiment_service.engine.options import Preprocessing
from sentiment_service.settings.settings import CheckpointOptions

from sentiment_export.checkpoint.config import (
    MULTI_LABEL,
    SINGLE_LABEL,
    canonical_labels,
    is_numbered,
    read_labels,
)
from sentiment_export.checkpoint.layout import origin, read_json

# What the last part of a name suggests, if nothing is known of it: an organisation, or a directory
# above, says nothing, except where TweetEval's own checkpoints were saved. BERTweet's tokenizers
# say it themselves.
SUGGESTED: dict[str, Preprocessing] = {
    "robertuito[^/]*/?$": "robertuito",
    "tweet-topic[^/]*/?$": "tweet_topic",
    "(twitter|(?<!ber)tweet)[^/]*/?$|tweeteval": "tweet",
}
# "multi" or "multilabel" as a part of a name, not "multilingual" or "multi-class".
SEVERAL = re.compile(r"(?<![a-z])multi[-_]?(?:label(?:l?ed)?)?(?![a-z]|[-_](?:ling|lang|class))")


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a published checkpoint; ``source`` says from where."""

    names: Sequence[str]
    source: str
    preprocessing: Preprocessing
    labels: Sequence[str] = ()
    multi_label: bool = False
    languages: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Decisions:
    """How a checkpoint is read. ``entries`` are those of config.json, with the decided head.

    ``notes`` say in sentences what was changed or guessed. A note that begins with "warning" asks
    the user for a word.
    """

    entries: Mapping[str, Any]
    labels: list[str]
    preprocessing: Preprocessing
    languages: list[str]
    notes: list[str]


def decide(path: Path, entries: Mapping[str, Any], options: CheckpointOptions) -> Decisions:
    """Decide how the checkpoint in ``path`` is read, whose config.json has these entries."""
    hub = origin(path.resolve())
    name = hub[0] if hub else path.resolve().name
    own = _last_part(name)
    base = str(entries.get("_name_or_path") or "")  # what it was saved from
    # Who puts a model on the hub under another name has trained it further, mostly.
    known = recognised(name) or (None if hub else recognised(base))
    multi_label = options.multi_label
    if multi_label is None and known and entries.get("problem_type") is None:
        multi_label = known.multi_label or None
    if multi_label is not None:
        head = MULTI_LABEL if multi_label else SINGLE_LABEL
        entries = {**entries, "problem_type": head}
    spelled = read_labels(entries, str(path), options.labels)
    labels, notes = (spelled, []) if options.labels else _named(spelled, known)
    preprocessing, guessed_from = _preprocessing(path, entries, options, known, (own, base))
    if guessed_from:
        notes.append(
            f"warning: the preprocessing {preprocessing} is a guess from the name {guessed_from}: "
            "give --preprocessing to decide"
        )
    made_for = str(entries.get("architectures")).lower()  # BertForMultiLabelClassification
    several = SEVERAL.search(own.lower()) or "multilabel" in made_for
    if several and entries.get("problem_type") is None:
        notes.append(
            f"warning: {own} may be for several labels a text, but config.json does not say so, "
            "and the scores add up to 1: give --multi-label or --single-label"
        )
    classes = entries.get("auto_map")
    if isinstance(classes, dict) and (code := classes.get("AutoModelForSequenceClassification")):
        notes.append(
            f"warning: the code {str(code)!r:.80} (auto_map in config.json) is not run: the export "
            "computes what transformers does without it, which may be something else"
        )
    named = entries.get("language")
    languages = [*options.languages] or ([named] if isinstance(named, str) else [])
    if not languages and known:
        languages = [*known.languages]
    return Decisions(entries, labels, preprocessing, languages, notes)


@cache
def known_checkpoints() -> list[Known]:
    text = Path(__file__).with_name("known_checkpoints.toml").read_text(encoding="utf-8")
    return [Known(**entry) for entry in tomllib.loads(text)["checkpoint"]]


def recognised(name: str) -> Known | None:
    """What is known of the published checkpoint with this id, or of a directory of its name.

    Only an id says whose checkpoint it is: anyone may call another model alike.
    """
    name = name.rstrip("/").lower()
    is_id = re.fullmatch(r"[^/.~][^/]*/[^/]+", name) is not None
    fits = (
        known
        for known in known_checkpoints()
        for one in known.names
        if fnmatchcase(name if is_id else _last_part(name), one if is_id else _last_part(one))
    )
    return next(fits, None)


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _named(spelled: list[str], known: Known | None) -> tuple[list[str], list[str]]:
    """The labels for these outputs, and what is to be said of them."""
    if not is_numbered(spelled):
        labels = canonical_labels(spelled)
        return labels, [_renamed(spelled, labels)] if labels != spelled else []
    if known and len(known.labels) == len(spelled):
        labels = list(known.labels)
        return labels, [f"{_renamed(spelled, labels)}, as in {known.source}"]
    shown = ", ".join(spelled[:3]) + (" ..." if len(spelled) > 3 else "")
    says = f"warning: the outputs have no names but {shown}: name them in logit order with --labels"
    return spelled, [says]


def _renamed(spelled: list[str], labels: list[str]) -> str:
    return f"labels {', '.join(spelled)} become {', '.join(labels)}"


def _preprocessing(
    path: Path,
    entries: Mapping[str, Any],
    options: CheckpointOptions,
    known: Known | None,
    names: Iterable[str],
) -> tuple[Preprocessing, str]:
    """The normalisation of texts, and the name from which it was guessed, or ""."""
    if options.preprocessing != "auto":
        return options.preprocessing, ""
    if (recorded := entries.get("preprocessing")) is not None:  # by ``finetune``
        return next((one for one in get_args(Preprocessing) if one == recorded), "none"), ""
    if _normalises(path, entries):
        return "bertweet", ""
    if known:
        return known.preprocessing, ""
    for name in names:
        if found := recognised(name):
            return found.preprocessing, name
        for words, suggested in SUGGESTED.items():
            if re.search(words, name.lower()):
                return suggested, name
    return "none", ""


def _normalises(path: Path, entries: Mapping[str, Any]) -> bool:
    """Whether the checkpoint has BERTweet's tokenizer and its ``normalization`` is true."""
    held = path / "tokenizer_config.json"
    settings = read_json(held) if held.is_file() else {}
    name = settings.get("tokenizer_class") or entries.get("tokenizer_class")
    return name == "BertweetTokenizer" and bool(settings.get("normalization"))
