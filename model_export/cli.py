"""The ``sentiment-export`` command."""

import argparse
import json
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from app.engine.bundle import MANIFEST, Bundle, CalibrationLoss, Precision
from app.engine.preprocessing import Preprocessing
from app.errors import UserError, first_line
from app.extras import missing_extra
from model_export.output import check_output
from model_export.training.command import finetune_command

EXPORTED: tuple[Precision, ...] = ("fp32", "int8", "fp16")
DEFAULT: tuple[Precision, ...] = ("fp32", "int8")
DESCRIPTION = """\
Turn a checkpoint into a bundle that `sentiment serve` loads.

  sentiment-export SOURCE --output DIR     export and verify (see the options below)
  sentiment-export describe SOURCE         show what a checkpoint holds
  sentiment-export evaluate BUNDLE FILE    score a bundle on labelled texts
  sentiment-export calibrate BUNDLE FILE   make a bundle's scores match how often they are right
  sentiment-export finetune BASE ...       train a classifier on labelled texts
"""
SOURCE = "hub id (org/name), a checkpoint directory, or a model's directory in a hub cache"
LABELLED = "labelled texts: TSV without a header, with the columns group, label and text"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 130 interrupted.

    Wrong usage exits with code 2.
    """
    # Set before ONNX Runtime is imported, or it writes usage data into the home directory.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # Set before transformers is imported: its warnings are about its own functions.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[list[str]], None]] = {
        "describe": _describe,
        "evaluate": _evaluate,
        "calibrate": _calibrate,
        "finetune": finetune_command,
    }
    # SIGTERM acts like Ctrl-C, so that the export removes its temporary files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if words and words[0] in commands:
            commands[words[0]](words[1:])
        else:
            _export(words)
    except UserError as error:
        print(f"sentiment-export: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"sentiment-export: {missing_extra(error)}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of standard output is gone; Python would report that again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # no such directory, no permission, disk full
        print(f"sentiment-export: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("sentiment-export: interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # a checkpoint is anyone's file, and the libraries raise anything
        print(f"sentiment-export: {_unexpected(error)}", file=sys.stderr)
        return 1
    return 0


def _export(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        "sentiment-export",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=_utf8, help=SOURCE)
    parser.add_argument(
        "--output",
        type=Path,
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
            f"CPU, fp16 for CUDA (default: {','.join(DEFAULT)})"
        ),
    )
    parser.add_argument(
        "--labels",
        type=lambda value: [label.strip() for label in value.split(",")],
        metavar="LIST",
        help="comma-separated names of the outputs in logit order (default: from config.json)",
    )
    parser.add_argument(
        "--preprocessing",
        choices=get_args(Preprocessing),
        help="text normalisation (default: the one that the checkpoint was trained with)",
    )
    parser.add_argument(
        "--text-pairs",
        action="store_true",
        help="the checkpoint was trained on pairs of texts, such as a review and one aspect of it",
    )
    parser.add_argument(
        "--evaluate",
        type=Path,
        metavar="FILE",
        help=f"record every variant's scores on {LABELLED}",
    )
    parser.add_argument(
        "--max-accuracy-loss",
        type=_loss,
        default=0.01,
        metavar="LOSS",
        help=(
            "leave out a variant if its accuracy or macro recall on the labelled texts is lower "
            "than that of fp32 by more than this, from 0 to 1 (default: %(default)s)"
        ),
    )
    parser.add_argument(
        "--calibrate",
        type=Path,
        metavar="FILE",
        help=(
            "fit every variant's temperature, so that scores match how often they are right, on "
            f"{LABELLED}; use texts that the checkpoint was not trained on"
        ),
    )
    parser.add_argument(
        "--debug-parity",
        action="store_true",
        help="compare every layer with PyTorch and name the first that differs too much",
    )
    options = parser.parse_args(words)

    # Imported here because they load torch and transformers, which --help does not need.
    from model_export.bundle_calibration import CalibrationTexts
    from model_export.checkpoint.checkpoint import load_checkpoint
    from model_export.checkpoint.source import find_checkpoint
    from model_export.export import export
    from model_export.quality.labelled import read_examples

    check_output(options.output.resolve())
    path = find_checkpoint(options.source, options.revision)
    checkpoint = load_checkpoint(path, options.preprocessing, options.labels)
    print(
        f"{checkpoint.architecture}; labels {', '.join(checkpoint.labels)}; at most "
        f"{checkpoint.max_tokens} tokens; preprocessing {checkpoint.preprocessing}"
    )
    examples = read_examples(options.evaluate, checkpoint.labels) if options.evaluate else ()
    calibration_texts = (
        CalibrationTexts.read(options.calibrate, checkpoint.labels) if options.calibrate else None
    )
    export(
        checkpoint,
        options.output,
        precisions=options.precision,
        text_pairs=options.text_pairs,
        examples=examples,
        max_accuracy_loss=options.max_accuracy_loss,
        calibration_texts=calibration_texts,
        debug_parity=options.debug_parity,
    )
    print(f"wrote {options.output}")


def _describe(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        "sentiment-export describe",
        description=(
            "Show architecture, labels, tokenizer, layers with their shapes, weight names and "
            "files of a checkpoint, and what an export would change. The weights are not loaded."
        ),
    )
    parser.add_argument("source", type=_utf8, help=SOURCE)
    parser.add_argument("--revision", help="branch, tag or commit on the hub (default: main)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    options = parser.parse_args(words)

    from model_export.checkpoint.describe import describe
    from model_export.checkpoint.source import find_checkpoint

    path = find_checkpoint(options.source, options.revision)
    description = describe(path)
    print(json.dumps(description.as_dict(), indent=2) if options.json else description.text())


def _evaluate(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        "sentiment-export evaluate",
        description=(
            "Print accuracy, macro recall, macro F1, the confusion matrix, and the expected "
            "calibration error (ECE) and log loss of the scores, of every variant of a bundle on "
            "labelled texts."
        ),
    )
    parser.add_argument("bundle", type=Path, help="bundle directory")
    parser.add_argument("file", type=Path, help=LABELLED)
    options = parser.parse_args(words)

    from app.engine.model import Model
    from model_export.quality.evaluation import evaluate
    from model_export.quality.labelled import read_examples

    bundle = Bundle.open(options.bundle)
    examples = read_examples(options.file, bundle.manifest.labels)
    for precision in bundle.manifest.variants:
        model = Model.load(bundle, device="auto", precision=precision, threads=0)
        print(f"{precision}: {evaluate(model, examples).table()}")


def _calibrate(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        "sentiment-export calibrate",
        description=(
            "Fit the temperature of every variant of a bundle on labelled texts that the model "
            "was not trained on, and write it to manifest.json and README.md. Scores change, "
            "labels and logits do not."
        ),
    )
    parser.add_argument("bundle", type=Path, help="bundle directory")
    parser.add_argument("file", type=Path, help=LABELLED)
    parser.add_argument(
        "--loss",
        choices=get_args(CalibrationLoss),
        default="log",
        help=(
            "what the temperature minimises: the log loss, as in Guo et al. 2017, or the Brier "
            "score (default: %(default)s)"
        ),
    )
    options = parser.parse_args(words)

    from model_export.bundle_calibration import calibrate_bundle

    calibrate_bundle(options.bundle, options.file, options.loss)
    print(f"wrote {options.bundle / MANIFEST}")


def _precisions(value: str) -> tuple[Precision, ...]:
    wanted = [name.strip() for name in value.split(",")]
    unknown = [name for name in wanted if name not in EXPORTED]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown precision {', '.join(unknown)}; choose from {', '.join(EXPORTED)}"
        )
    return tuple(precision for precision in EXPORTED if precision in wanted)


def _utf8(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{value!a} is not valid UTF-8") from None
    return value


def _loss(value: str) -> float:
    try:
        loss = float(value)
    except ValueError:
        loss = math.nan
    if not 0 <= loss <= 1:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number from 0 to 1")
    return loss


def _unexpected(error: Exception) -> str:
    """An error that no code expected, in one line: what it is and where it was raised."""
    raised = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"unexpected {type(error).__name__} in {Path(raised.filename).name}, line {raised.lineno}: "
        f"{first_line(error)}"
    )
