"""The options of ``sentiment classify``, and what can be wrong with them.

They are apart from the command itself, which loads slowly.
"""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from sentiment_service.files.table import READ, WRITTEN
from sentiment_service.settings.formats import SHARE
from sentiment_service.settings.settings import CheckpointOptions, Settings, flag

# Settings that apply only when the command loads a model itself, and what differs in their use.
LOCAL = (
    *("model", "device", "precision", "cache_dir", "refresh"),
    *CheckpointOptions.model_fields,
)
DESCRIPTIONS = {
    "model": "model to use: a bundle, a checkpoint directory or a hub id, as for serve [default: "
    "what a platform has mounted, such as /mnt/models, else the embedded model]",
    "device": "where to compute: 'cpu', 'cuda' (the first GPU) or GPUs by their numbers, such as "
    "'cuda:1' or 'cuda:0,1'; auto means: on the first GPU if CUDA works, else on the CPU",
}


@dataclass(frozen=True, slots=True)
class ClassifyOptions:
    """The command's options. ``fault`` has checked that they fit together.

    Without ``input``, the texts are ``texts``; without those, the lines of standard input.
    Without ``output``, the results go to standard output.
    """

    texts: Sequence[str]
    input: str | None
    output: str | None
    column: str
    threshold: float | None
    resume: bool
    overwrite: bool
    json: bool
    url: str | None

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> Self:
        return cls(**{field.name: getattr(arguments, field.name) for field in fields(cls)})


def add_arguments(classify: ArgumentParser) -> None:
    """Add all but the settings to the parser of ``classify``."""
    classify.description = (
        "Print one line for each text: label, score, text. If a text cannot be classified, its "
        "line is 'error', the error code and the text. With --output, write a file instead: the "
        "columns of --input, then label, score, a score_<label> for each label (in JSONL, one "
        "object named scores), polarity (of sentiment), labels (multi-label), warnings, and error. "
        "If the input already has a column of the same name, the new column gets the prefix "
        f"'predicted_'. The ending of FILE decides its format: {' '.join(WRITTEN)}."
    )
    classify.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="texts to classify [default: lines of standard input]",
    )
    classify.add_argument(
        "--input",
        type=os.path.expanduser,
        metavar="FILE",
        help="read the texts from a file: text in UTF-8, CSV, TSV, JSONL, a JSON list (all of "
        "these may be compressed: .gz) or Parquet",
    )
    classify.add_argument(
        "--output",
        type=os.path.expanduser,
        metavar="FILE",
        help="write the results to a file; until the file is complete, they are in FILE.partial",
    )
    classify.add_argument(
        "--column",
        default="text",
        metavar="NAME",
        help="column of --input with the texts [default: %(default)s]",
    )
    classify.add_argument(
        "--threshold",
        type=SHARE,
        metavar="0..1",
        help="for multi-label models: the score from which on a label is one of a text's labels, "
        "in --output and --json [default: the bundle's, mostly 0.5]",
    )
    classify.add_argument(
        "--resume",
        action="store_true",
        help="continue an interrupted run after the last row that it finished",
    )
    classify.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an --output that exists, when the new one is complete",
    )
    classify.add_argument(
        "--json",
        action="store_true",
        help="print each result as a line of JSON, in the format of POST /classify",
    )
    classify.add_argument(
        "--url",
        help="let the service at this URL classify the texts; if it needs a key, set "
        "SENTIMENT_API_KEY in the environment. The run waits as long as a rate limit says and up "
        "to a minute for a service that is away, and stops if the service changes its model",
    )


def fault(options: Namespace, settings: Settings) -> str | None:
    """What is wrong with the options; None if they are valid."""
    if found := url_fault(options, LOCAL):
        return found
    if len(settings.model) > 1 and not options.url:
        return "classify uses one model; give --model once"
    return _usage_fault(options)


def url_fault(options: Namespace, own: Sequence[str]) -> str | None:
    """What is wrong with --url, which excludes the settings ``own``; None if it is valid."""
    if options.url and not options.url.startswith(("http://", "https://")):
        return "--url must begin with http:// or https://"
    if options.url and (given := next((name for name in own if name in options), None)):
        return f"--url cannot be combined with {flag(given)}; the service decides"
    return None


def input_fault(options: Namespace) -> str | None:
    path = (options.input or "").lower()
    if options.input is not None and not path.endswith(READ):
        return f"{Path(options.input)} must end in one of: {' '.join(READ)}"
    if options.column != "text" and (not path or path.endswith((".txt", ".txt.gz"))):
        return "--column needs an --input with columns: CSV, TSV, JSON, JSONL or Parquet"
    return None


def _usage_fault(options: Namespace) -> str | None:
    # An empty path is refused below, because it has no ending.
    given, made = (None if path is None else Path(path) for path in (options.input, options.output))
    for path in filter(None, (options.input, options.output)):
        if "://" in path:
            return f"{path} is not a file of this machine; docs/files.md says how to read others"
    if given and options.texts:
        return "give either texts or --input, not both"
    if not given and not options.texts and (sys.stdin is None or sys.stdin.isatty()):
        return "give texts as arguments, on standard input or with --input"
    if found := input_fault(options):
        return found
    if made and not made.name.lower().endswith(WRITTEN):
        return f"{made} must end in one of: {' '.join(WRITTEN)}"
    if options.resume and not (given and made):
        return "--resume needs the same --input and --output as the interrupted run"
    if options.overwrite and (options.resume or not made):
        return "--overwrite needs an --output, and no --resume"
    if options.json and made:
        return "--json applies to standard output only; the ending of --output decides its format"
    if made and not made.parent.is_dir():
        return f"the directory {made.parent} of --output does not exist"
    if made and made.is_dir():
        return f"{made} is a directory; --output must be a file"
    if given and made and made.exists() and made.samefile(given):
        return "--output must not be the --input"
    return None
