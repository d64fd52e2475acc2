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

from sentiment_service.errors import UserError, first_line, system_error
from sentiment_service.extras import missing_extra
from sentiment_service.settings.flags import CommandParser

from sentiment_export.export_command import SOURCE, export_command, source
from sentiment_export.labelled_commands import calibrate_command, evaluate_command
from sentiment_export.training.command import finetune_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 done, 1 failed, 130 interrupted.

    Wrong usage exits with code 2.
    """
    # Set before transformers is imported: its warnings are about its own functions.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # Labels and paths can have characters that the encoding of the output lacks.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[list[str]], None]] = {
        "describe": _describe,
        "evaluate": evaluate_command,
        "calibrate": calibrate_command,
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

    from sentiment_export.checkpoint.describe import describe
    from sentiment_export.checkpoint.source import find_checkpoint

    path = find_checkpoint(options.source, options.revision)
    description = describe(path)
    print(json.dumps(asdict(description), indent=2) if options.json else description.text())


def _unexpected(error: Exception) -> str:
    """An error that no code expected, in one line: what it is and where it was raised."""
    raised = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"unexpected {type(error).__name__} in {Path(raised.filename).name}, line {raised.lineno}: "
        f"{first_line(error)}"
    )
