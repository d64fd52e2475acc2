"""The ``sentiment-export`` command."""

import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Literal, get_args

from sentiment_service.atomic_files import write_text_atomically
from sentiment_service.engine.model.bundle import MANIFEST, Bundle, CalibrationLoss, Precision
from sentiment_service.errors import UserError, first_line, interrupted, system_error
from sentiment_service.files.command import LOCAL
from sentiment_service.installation import missing_extra
from sentiment_service.settings.settings import Settings
from sentiment_service.settings.sources import (
    CommandParser,
    add_settings,
    load_settings,
    local_path,
)

from sentiment_export import commands
from sentiment_export.commands import SOURCE, source
from sentiment_export.quality.labelled import LABELLED, Columns, read_examples


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 130 interrupted.

    Wrong usage exits with code 2.
    """
    # Set before transformers is imported: its warnings are about its own functions.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # Before torch is: threads that spin while they wait trained 4 to 14 times as long beside other
    # programs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Labels and paths can have characters that the encoding of the output lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    others: dict[str, Callable[[list[str]], None]] = {
        "describe": _describe,
        "evaluate": _evaluate,
        "calibrate": _calibrate,
        "finetune": commands.finetune_command,
        "distil": commands.distil_command,
    }
    # SIGTERM acts like Ctrl-C, so that the export removes its temporary files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if words and words[0] in others:
            others[words[0]](words[1:])
        else:
            commands.export_command(words, others)
    except BrokenPipeError:
        # The reader of standard output is gone; Python would report that again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # A checkpoint is anyone's file, and the libraries raise anything.
    except (Exception, KeyboardInterrupt) as error:
        if interrupted(error):
            print("sentiment-export: interrupted", file=sys.stderr)
            return 130
        print(f"sentiment-export: {_in_one_line(error)}", file=sys.stderr)
        return 1
    return 0


def _in_one_line(error: BaseException) -> str:
    """What went wrong; of an error that no code expected, also where it was raised."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return str(missing_extra(error))
    if isinstance(error, OSError):  # no such directory, no permission, disk full
        return system_error(error)
    raised = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"unexpected {type(error).__name__} in {Path(raised.filename).name}, line {raised.lineno}: "
        f"{first_line(error)}"
    )


def _describe(words: list[str]) -> None:
    parser = CommandParser(
        "sentiment-export describe",
        description="Show architecture, labels, tokenizer, layers with their shapes, weight names "
        "and files of a checkpoint, and what an export would change. The weights are not loaded.",
    )
    parser.add_argument("source", type=source, help=SOURCE)
    parser.add_argument("--revision", help="branch, tag or commit on the hub (default: main)")
    parser.add_argument("--onnx", default="", metavar="FILE", help="which ONNX file to describe")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    options, _ = commands.parsed(parser, words)

    from sentiment_export.checkpoint.checkpoint import find_checkpoint
    from sentiment_export.checkpoint.describe import describe

    path = find_checkpoint(options.source, options.revision, options.onnx)
    description = describe(path, options.onnx)
    print(json.dumps(asdict(description), indent=2) if options.json else description.text())


# The settings of `evaluate`, and what differs in their use.
SETTINGS = [name for name in LOCAL if name != "model"]
PRECISION = (
    "variant to score; auto means: all of the bundle, or with --against the one that is served"
)


def _evaluate(words: list[str]) -> None:
    parser = _evaluate_parser()
    options = parser.parse_args(words)
    if options.picture and options.picture.suffix.lower() != ".svg":
        parser.error(f"argument --picture: {options.picture} must end in .svg")
    flags = {name: value for name, value in vars(options).items() if name in Settings.model_fields}
    try:
        settings = load_settings(flags)
    except ValueError as error:
        parser.error(str(error))
    options.file.stat()  # an export takes minutes, so a wrong name is found before
    if options.picture:
        options.picture.parent.stat()
    names = [options.bundle, options.against] if options.against else [options.bundle]
    bundles = [_bundle(name, settings) for name in names]
    first, columns = bundles[0], Columns.of(options)
    _check_labels(first, bundles[-1])
    examples = read_examples(
        options.file, first.manifest.labels, columns, multi_label=first.multi_label
    )
    precisions: list[Precision | Literal["auto"]] = [settings.precision]
    if settings.precision == "auto" and not options.against:
        precisions = [*first.manifest.variants]

    # Imported here because they load ONNX Runtime, which --help does not need.
    from sentiment_service.engine.loading import load_model

    from sentiment_export.quality.evaluation import evaluate
    from sentiment_export.quality.scores import changes, comparison, svg

    scored, labels, documents = [], [], []
    for (name, bundle), precision in product(zip(names, bundles, strict=True), precisions):
        model = load_model(bundle, device=settings.device, precision=precision, threads=0)
        scores, predicted = evaluate(model, examples)
        title = f"{name}, {model.precision}" if options.against else model.precision
        scored.append((title, scores))
        labels.append(predicted)
        documents.append({"bundle": name, "variant": model.precision, **scores.as_dict()})
    found = changes(examples, labels[-1], labels[0])
    if options.json:
        changed = [asdict(change) for change in found]
        document = {"models": documents} | ({"changes": changed} if options.against else {})
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        for title, scores in scored:
            print(f"{title}: {scores.table()}")
        if options.against:
            print(comparison(old=scored[-1][1], new=scored[0][1], found=found, texts=examples))
    if options.picture:  # last: the figures are told if it cannot be written
        write_text_atomically(options.picture, svg(scored))


def _calibrate(words: list[str]) -> None:
    parser = CommandParser(
        "sentiment-export calibrate",
        description="Fit the temperature of every variant of a bundle on labelled texts that the "
        "model was not trained on, and write it to manifest.json and README.md. Scores change, "
        "labels and logits do not.",
    )
    parser.add_argument("bundle", type=local_path, help="bundle directory")
    parser.add_argument("file", type=local_path, help=LABELLED)
    Columns.add_arguments(parser)
    parser.add_argument(
        "--loss",
        choices=get_args(CalibrationLoss),
        default="log",
        help="what the temperature minimises: the log loss, as in Guo et al. 2017 (for a "
        "multi-label model, the binary cross-entropy), or the Brier score (default: %(default)s)",
    )
    options = parser.parse_args(words)

    from sentiment_export.export import calibrate_bundle

    calibrate_bundle(options.bundle, options.file, options.loss, Columns.of(options))
    print(f"wrote {options.bundle / MANIFEST}")


def _evaluate_parser() -> CommandParser:
    parser = CommandParser(
        "sentiment-export evaluate",
        description="Score every variant of a bundle on labelled texts: precision, recall and F1 "
        "by label, macro (for a multi-label model: also micro), accuracy, the confusion matrix, "
        "and the expected calibration error (ECE) and log loss of the scores. A hub id or a "
        "checkpoint is exported first, once, in the precision that would be served.",
    )
    parser.add_argument("bundle", type=source, help=f"bundle directory, {SOURCE}")
    parser.add_argument("file", type=local_path, help=LABELLED)
    Columns.add_arguments(parser)
    parser.add_argument(
        "--against",
        type=source,
        metavar="OTHER",
        help="compare with another bundle of the same labels, each in the variant that is served; "
        "shows which labels changed, with at most 20 texts",
    )
    parser.add_argument(
        "--picture",
        type=local_path,
        metavar="FILE.svg",
        help="also draw the confusion matrix (of a multi-label model: the figures by label)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    add_settings(parser, SETTINGS, {"precision": PRECISION})
    return parser


def _bundle(model: str, settings: Settings) -> Bundle:
    """The bundle of a directory, or of a checkpoint or hub id, which is exported once."""
    from sentiment_service.exported_models import with_bundles

    one = settings.model_copy(update={"model": (Path(model),)})
    (path,) = with_bundles(one, lambda line: print(line, file=sys.stderr)).model
    return Bundle.open(path)


def _check_labels(this: Bundle, other: Bundle) -> None:
    """Refuse to compare bundles of which one has labels that the other has not."""
    ours, theirs = this.manifest.labels, other.manifest.labels
    if sorted(ours) != sorted(theirs) or this.multi_label != other.multi_label:
        kinds = [" (multi-label)" if one.multi_label else "" for one in (this, other)]
        raise UserError(
            f"{this.path} has the labels {', '.join(ours)}{kinds[0]}, but {other.path} has "
            f"{', '.join(theirs)}{kinds[1]}; only models with the same labels can be compared"
        )
