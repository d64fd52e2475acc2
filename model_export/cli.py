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

from app.engine.bundle import Bundle, Precision
from app.engine.preprocessing import Preprocessing
from app.errors import UserError, first_line
from model_export.checkpoint.source import find_checkpoint
from model_export.output import check_output

EXPORTED: tuple[Precision, ...] = ("fp32", "int8", "fp16")
DEFAULT: tuple[Precision, ...] = ("fp32", "int8")
DESCRIPTION = """\
Turn a checkpoint into a bundle that `sentiment serve` loads.

  sentiment-export SOURCE --output DIR     export and verify (see the options below)
  sentiment-export describe SOURCE         show what a checkpoint holds
  sentiment-export evaluate BUNDLE FILE    score a bundle on labelled texts
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
        "finetune": _finetune,
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
    parser.add_argument("--output", type=Path, required=True, help="bundle directory to write")
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
        "--debug-parity",
        action="store_true",
        help="compare every layer with PyTorch and name the first that differs too much",
    )
    options = parser.parse_args(words)

    # Imported here because they load torch and transformers, which --help does not need.
    from model_export.checkpoint.checkpoint import load_checkpoint
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
    export(
        checkpoint,
        options.output,
        precisions=options.precision,
        examples=examples,
        max_accuracy_loss=options.max_accuracy_loss,
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
    path = find_checkpoint(options.source, options.revision)

    from model_export.checkpoint.describe import describe

    description = describe(path)
    print(json.dumps(description.as_dict(), indent=2) if options.json else description.text())


def _evaluate(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        "sentiment-export evaluate",
        description=(
            "Print accuracy, macro recall, macro F1 and the confusion matrix of every variant of "
            "a bundle on labelled texts."
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


def _finetune(words: list[str]) -> None:
    parser = argparse.ArgumentParser(
        "sentiment-export finetune",
        description=(
            "Fine-tune an encoder for the labels negative, neutral and positive. The seeds are "
            "trained one after another, and their weights are averaged. Run the same command "
            "again to resume after an interruption."
        ),
    )
    parser.add_argument("base", type=Path, help="local checkpoint directory of the encoder")
    parser.add_argument(
        "--train", type=Path, nargs="+", required=True, help=f"one or more files of {LABELLED}"
    )
    parser.add_argument("--validation", type=Path, required=True, help=LABELLED)
    parser.add_argument("--output", type=Path, required=True, help="checkpoint directory to write")
    parser.add_argument(
        "--epochs", type=int, default=2, help="passes over the texts (default: %(default)s)"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[0, 1],
        help="random seeds; each trains one model (default: 0 1)",
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=1e-4,
        help="highest learning rate (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-size", type=int, default=32, help="texts per step (default: %(default)s)"
    )
    options = parser.parse_args(words)

    from model_export.training.finetune import finetune
    from model_export.training.recipe import Recipe

    recipe = Recipe(
        base=options.base,
        train=tuple(options.train),
        validation=options.validation,
        epochs=options.epochs,
        seeds=tuple(options.seeds),
        learning_rate=options.learning_rate,
        batch_size=options.batch_size,
    )
    finetune(recipe, options.output)
    print(f"wrote {options.output}")


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
