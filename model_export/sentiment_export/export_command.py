"""The command ``sentiment-export SOURCE --output DIR``."""

import argparse
import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, get_args

from sentiment_service.engine.model.bundle import Precision, ReferenceKind, sha256
from sentiment_service.files.text_files import FileOptions
from sentiment_service.settings.formats import SHARE
from sentiment_service.settings.settings import CheckpointOptions
from sentiment_service.settings.sources import (
    CommandParser,
    add_settings,
    add_version,
    local_path,
    nearest,
    read_options,
)

from sentiment_export.output import check_bundle_output
from sentiment_export.quality.labelled import (
    LABELLED,
    LEAST_TEXTS,
    MAX_ACCURACY_LOSS,
    Columns,
    read_examples,
)

EXPORTED: tuple[Precision, ...] = ("fp32", "int8", "fp16")
DEFAULT: tuple[Precision, ...] = ("fp32", "int8")
DESCRIPTION = """\
Turn a checkpoint into a bundle that `sentiment serve` loads.

  sentiment-export SOURCE --output DIR     export and verify (see the options below)
  sentiment-export describe SOURCE         show what a checkpoint holds
  sentiment-export evaluate BUNDLE FILE    score a bundle on labelled texts
  sentiment-export calibrate BUNDLE FILE   make a bundle's scores match how often they are right
  sentiment-export finetune BASE ...       train a classifier on labelled texts
  sentiment-export distil SOURCE ...       make a faster model with fewer layers from texts alone
  sentiment-export COMMAND --help          all options of a command
"""
SOURCE = (
    "hub id (org/name), a directory with a checkpoint or ONNX graphs, or a model's directory in a "
    "hub cache"
)


def export_command(words: list[str], commands: Iterable[str]) -> None:
    """Run the command with these arguments. Wrong usage exits with code 2.

    ``commands`` are the other ones, for the error when one of them is misspelt.
    """
    parser = CommandParser(
        "sentiment-export",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=source, help=SOURCE)
    parser.add_argument(
        "--output",
        type=local_path,
        required=True,
        help="bundle directory to write; an earlier bundle there is replaced, nothing else is",
    )
    parser.add_argument("--revision", help="branch, tag or commit on the hub (default: main)")
    parser.add_argument(
        "--precision",
        type=_precisions,
        default=DEFAULT,
        metavar="LIST",
        help=(
            f"comma-separated variants to write, from {','.join(EXPORTED)}; int8 is for the "
            f"CPU, fp16 for CUDA; an ONNX graph that is quantized or fp16 stays what it is "
            f"(default: {','.join(DEFAULT)})"
        ),
    )
    add_settings(parser, CheckpointOptions.model_fields)
    parser.add_argument(
        "--evaluate",
        type=local_path,
        metavar="FILE",
        help=f"record every variant's scores on {LABELLED}",
    )
    parser.add_argument(
        "--max-accuracy-loss",
        type=SHARE,
        default=MAX_ACCURACY_LOSS,
        metavar="LOSS",
        help=(
            "leave out a variant if its accuracy or macro recall on the labelled texts is lower "
            "than that of fp32 by more than this, from 0 to 1 (default: %(default)s)"
        ),
    )
    parser.add_argument(
        "--calibrate",
        type=local_path,
        metavar="FILE",
        help=(
            "fit every variant's temperature, so that scores match how often they are right, on "
            f"{LABELLED}; use texts that the checkpoint was not trained on"
        ),
    )
    Columns.add_arguments(parser)
    parser.add_argument(
        "--reference",
        choices=get_args(ReferenceKind)[:2],
        help=(
            "what the variants are compared with: the checkpoint in PyTorch, or the fp32 graph "
            "(default: pytorch where it is installed)"
        ),
    )
    parser.add_argument(
        "--debug-parity",
        action="store_true",
        help="compare every layer with PyTorch and name the first that differs too much",
    )
    add_version(parser)
    misspelt = nearest(words[0], commands) if words and "--output" not in " ".join(words) else ""
    if misspelt:
        parser.error(f"there is no command {words[0]!r}{misspelt}")
    options, reading = parsed(parser, words)
    check_bundle_output(options.output)
    if not _fetched(options, reading):
        _export_checkpoint(options, reading)
    print(f"wrote {options.output}")


def parsed(parser: CommandParser, words: list[str]) -> tuple[argparse.Namespace, CheckpointOptions]:
    """The arguments, and what they say of a checkpoint. Wrong usage exits with code 2."""
    options = parser.parse_args(words)
    try:
        return options, read_options(options)
    except ValueError as error:
        parser.error(str(error))


def _fetched(options: argparse.Namespace, reading: CheckpointOptions) -> bool:
    """Whether the source was a bundle on the hub, which needs no torch."""
    if Path(options.source).exists():  # needs nothing of the hub
        return False
    from sentiment_export.hub_bundle import fetch_bundle

    fetched = (options.source, options.output, options.revision, options.precision)
    return fetch_bundle(*fetched, options=reading)


def _export_checkpoint(options: argparse.Namespace, reading: CheckpointOptions) -> None:
    from sentiment_export.checkpoint.checkpoint import load_checkpoint
    from sentiment_export.checkpoint.source import find_checkpoint
    from sentiment_export.export import calibrated, export

    path = find_checkpoint(options.source, options.revision, reading.onnx)
    checkpoint = load_checkpoint(path, reading)
    print(
        f"{checkpoint.architecture}; labels {', '.join(checkpoint.labels)}; at most "
        f"{checkpoint.max_tokens} tokens; preprocessing {checkpoint.preprocessing}"
    )
    for note in checkpoint.notes:
        print(note)
    labels, columns = checkpoint.labels, Columns.of(options)
    how: Any = {"multi_label": checkpoint.multi_label, "file_options": FileOptions.of(options)}
    examples, judge = [], None
    if options.evaluate:
        examples = read_examples(options.evaluate, labels, columns, **how)
    if file := options.calibrate:
        texts = read_examples(file, labels, columns, least=LEAST_TEXTS, **how)
        judge = partial(calibrated, examples=texts, digest=sha256(file))
    export(
        checkpoint,
        options.output,
        precisions=options.precision,
        examples=examples,
        max_accuracy_loss=options.max_accuracy_loss,
        judge=judge,
        reference=options.reference,
        debug_parity=options.debug_parity,
    )


def source(value: str) -> str:
    """A hub id or a path. The libraries that read files take only valid UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{value!a} is not valid UTF-8") from None
    return os.path.expanduser(value)  # noqa: PTH111 - a hub id stays as it is


def _precisions(value: str) -> tuple[Precision, ...]:
    wanted = [name.strip() for name in value.split(",")]
    unknown = [name for name in wanted if name not in EXPORTED]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown precision {', '.join(unknown)}; choose from {', '.join(EXPORTED)}"
        )
    return tuple(precision for precision in EXPORTED if precision in wanted)
