"""The ``sentiment-export`` command."""

import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from app.cli.command_parser import CommandParser, local_path
from app.config.extras import missing_extra
from app.engine.model.bundle import MANIFEST, Bundle, CalibrationLoss
from app.errors import UserError, first_line, system_error
from model_export.export_command import LABELLED, SOURCE, export_command, source
from model_export.training.command import finetune_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 130 interrupted.

    Wrong usage exits with code 2.
    """
    # Set before ONNX Runtime is imported, or it writes usage data into the home directory.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    # Set before transformers is imported: its warnings are about its own functions.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # Labels and paths can have characters that the encoding of the output lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
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
            export_command(words, commands)
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
        print(f"sentiment-export: {system_error(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("sentiment-export: interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # a checkpoint is anyone's file, and the libraries raise anything
        print(f"sentiment-export: {_unexpected(error)}", file=sys.stderr)
        return 1
    return 0


def _describe(words: list[str]) -> None:
    parser = CommandParser(
        "sentiment-export describe",
        description=(
            "Show architecture, labels, tokenizer, layers with their shapes, weight names and "
            "files of a checkpoint, and what an export would change. The weights are not loaded."
        ),
    )
    parser.add_argument("source", type=source, help=SOURCE)
    parser.add_argument("--revision", help="branch, tag or commit on the hub (default: main)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    options = parser.parse_args(words)

    from model_export.checkpoint.describe import describe
    from model_export.checkpoint.source import find_checkpoint

    path = find_checkpoint(options.source, options.revision)
    description = describe(path)
    print(json.dumps(asdict(description), indent=2) if options.json else description.text())


def _evaluate(words: list[str]) -> None:
    parser = _parser_for_labelled_texts(
        "evaluate",
        "Print accuracy, macro recall, macro F1, the confusion matrix, and the expected "
        "calibration error (ECE) and log loss of the scores, of every variant of a bundle on "
        "labelled texts.",
    )
    options = parser.parse_args(words)

    from app.engine.model.load import load_model
    from model_export.quality.evaluation import evaluate
    from model_export.quality.labelled import read_examples

    bundle = Bundle.open(options.bundle)
    examples = read_examples(options.file, bundle.manifest.labels)
    for precision in bundle.manifest.variants:
        model = load_model(bundle, device="auto", precision=precision, threads=0)
        print(f"{precision}: {evaluate(model, examples).table()}")


def _calibrate(words: list[str]) -> None:
    parser = _parser_for_labelled_texts(
        "calibrate",
        "Fit the temperature of every variant of a bundle on labelled texts that the model was "
        "not trained on, and write it to manifest.json and README.md. Scores change, labels and "
        "logits do not.",
    )
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


def _parser_for_labelled_texts(command: str, description: str) -> CommandParser:
    parser = CommandParser(f"sentiment-export {command}", description=description)
    parser.add_argument("bundle", type=local_path, help="bundle directory")
    parser.add_argument("file", type=local_path, help=LABELLED)
    return parser


def _unexpected(error: Exception) -> str:
    """An error that no code expected, in one line: what it is and where it was raised."""
    raised = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"unexpected {type(error).__name__} in {Path(raised.filename).name}, line {raised.lineno}: "
        f"{first_line(error)}"
    )
