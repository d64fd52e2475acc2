"""The ``sentiment`` command. Each subcommand imports what it needs, so that ``--help`` is quick."""

import argparse
import importlib.metadata
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args, get_origin

from app import logs, platforms
from app.errors import UserError
from app.extras import missing_extra
from app.server import signals
from app.server.process import open_standard_files, raise_file_limit
from app.settings import Settings, flag
from app.sources import load_settings, sources

# The kinds of files that `classify` reads and writes.
SUFFIXES = (".txt", ".csv", ".jsonl", ".ndjson", ".parquet")
# Settings that apply only when `classify` loads a model itself.
LOCAL = ("model", "device", "precision")
# The words for values in --help, where the setting's name does not end with one.
METAVARS = {"model": "DIR", "host": "ADDRESS", "runners": "N", "threads": "N"}
DESCRIPTION = """\
Tell whether short texts are positive, neutral or negative. A model for English is
included; sentiment-export makes bundles of other models.
"""
EXAMPLES = """\
examples:
  sentiment serve
  sentiment classify "I love this!" "worst service ever"
  sentiment classify --input reviews.csv --column review --output labels.csv
  sentiment COMMAND --help      all options of a command
"""

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 for success, 1 for a failure, 2 for wrong usage.

    130 means that Ctrl-C ended it.
    """
    # ONNX Runtime reads this when it is imported. Otherwise it writes telemetry to the home
    # directory.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    options = _parser().parse_args(arguments)
    flags = {name: value for name, value in vars(options).items() if name in Settings.model_fields}
    try:
        settings = load_settings(flags)
    except ValueError as error:
        _report(options, error)
        return 2
    try:
        if options.command == "serve":
            return _serve(settings, sources(settings, flags))
        if options.command == "doctor":
            return _doctor(options, settings)
        return _classify(options, settings)
    except UserError as error:
        _report(options, error)
        return 1
    except ModuleNotFoundError as error:
        _report(options, missing_extra(error))
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Without this, Python would print an error
        # at exit, when it flushes the rest of the output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # for example, the disk is full
        _report(options, error)
        return 1


def _report(options: argparse.Namespace, error: Exception) -> None:
    """Print why the command failed, as one line. ``serve`` prints it in the form of its log."""
    log_format = "human"
    if options.command == "serve":
        # The settings may be what failed, so this looks at the flag and the environment itself.
        given = getattr(options, "log_format", None)
        log_format = given or os.environ.get("SENTIMENT_LOG_FORMAT", "auto")
    logs.report_failure(str(error), log_format)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sentiment",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("sentiment-service")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="answer requests over HTTP, and over gRPC with --grpc-port",
        description="Answer requests over HTTP, and over gRPC with --grpc-port. Without options, "
        "the included model is served, and a page to try it, at http://127.0.0.1:8000. Each option "
        "can also be set in the environment: SENTIMENT_MAX_TEXTS=50 is --max-texts 50.",
    )
    _add_flags(serve, Settings.model_fields)

    _add_classify(commands.add_parser("classify", help="classify texts and files of texts"))

    doctor = commands.add_parser(
        "doctor",
        help="check packages, GPU and model, and say what helps",
        description="Check what serving needs: packages, CPU, GPU and its driver, and the model, "
        "with a batch of texts. On a GPU, compare the logits with those of the CPU. Print a line "
        "for each check, 'ok' or 'PROBLEM' and what helps. The exit code is 1 if there is a "
        "problem.",
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    _add_flags(doctor, LOCAL)
    return parser


def _add_classify(classify: argparse.ArgumentParser) -> None:
    classify.description = (
        "Print one line for each text: label, score, text. If a text cannot be classified, its "
        "line is 'error', the error code and the text. With --output, write a file instead: the "
        "columns of --input, then label, score, a score_<label> for each label (in JSONL, one "
        "object named scores), and error. If the input already has a column of the same name, the "
        "new column gets the prefix 'predicted_'. The ending of FILE decides its format: "
        f"{' '.join(SUFFIXES)}."
    )
    classify.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="texts to classify [default: lines of standard input]",
    )
    classify.add_argument(
        "--input",
        metavar="FILE",
        help="read the texts from a file: text in UTF-8, CSV with commas, JSONL or Parquet",
    )
    classify.add_argument(
        "--output",
        metavar="FILE",
        help="write the results to a file; until the job is complete, they are in FILE.partial",
    )
    classify.add_argument(
        "--column", metavar="NAME", help="column of --input with the texts [default: text]"
    )
    classify.add_argument(
        "--resume",
        action="store_true",
        help="continue an interrupted run after the last row that it finished",
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
    classify.add_argument(
        "--engine",
        choices=["ray"],
        help="classify on the nodes of a Ray cluster: --input is then a file, a directory, a glob "
        "or an address that begins with s3:// or gs://, of CSV, JSONL or Parquet, and --output a "
        "directory of Parquet files; needs the extra 'ray'",
    )
    classify.add_argument(
        "--address",
        metavar="auto|local|ray://HOST:PORT|HOST:PORT",
        help="the Ray cluster: the one that runs on this machine, one that is started for this "
        "run, or one elsewhere [default: auto]",
    )
    _add_flags(classify, LOCAL)


def _add_flags(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Add a flag for each of these settings. ``load_settings`` validates the values later."""
    for name in names:
        field = Settings.model_fields[name]
        several = name in ("model", "served_name")
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        parser.add_argument(
            flag(name),
            action="append" if several else "store",
            default=argparse.SUPPRESS,  # without the flag, the environment decides
            metavar=METAVARS.get(name) or "|".join(choices) or name.split("_")[-1].upper(),
            help=f"{field.description}"
            + ("" if name == "model" else f" [default: {_shown(field.default)}]"),
        )


def _shown(default: object) -> object:
    return "none" if default in ("", (), None) else default


def _serve(settings: Settings, reasons: str) -> int:
    signals.while_starting()
    open_standard_files()
    raise_file_limit()
    logs.configure(settings.log_level, settings.log_format)
    logger.info("%s", reasons)
    for reason in platforms.unused_mounts(os.environ):
        logger.warning("%s", reason)
    try:
        from app.server.run import run

        return run(settings)
    except (UserError, ModuleNotFoundError, OSError):
        raise
    except Exception:
        logging.getLogger(__name__).critical("the service failed", exc_info=True)
        return 1
    finally:
        logs.close()


def _doctor(options: argparse.Namespace, settings: Settings) -> int:
    from app.doctor import doctor

    return doctor(settings, as_json=options.json)


def _classify(options: argparse.Namespace, settings: Settings) -> int:
    find_fault = _engine_fault if options.engine else _usage_fault
    if fault := _model_fault(options, settings) or find_fault(options):
        print(f"sentiment: {fault}", file=sys.stderr)
        return 2
    if options.engine:
        from app.files import ray_engine

        ray_engine.classify(ray_engine.RayOptions.from_arguments(options), settings)
    else:
        from app.files import command

        command.classify(command.Options.from_arguments(options), settings)
    return 0


def _model_fault(options: argparse.Namespace, settings: Settings) -> str | None:
    """What is wrong with the options for the model or the service; None if they are valid."""
    if options.url and options.engine:
        return "--url cannot be combined with --engine; the nodes load the model themselves"
    if options.url and not options.url.startswith(("http://", "https://")):
        return "--url must begin with http:// or https://"
    if options.url and any(name in options for name in LOCAL):
        return "--url cannot be combined with --model, --device or --precision; the service decides"
    if len(settings.model) > 1 and not options.url:
        return "classify uses one model; give --model once"
    return None


def _engine_fault(options: argparse.Namespace) -> str | None:
    """What is wrong with the options of ``classify --engine``; None if they are valid."""
    if options.texts or options.json:
        return "--engine needs --input and --output; texts and --json are for use without it"
    if not (options.input and options.output):
        return "--engine needs --input and --output"
    address = options.address or "auto"
    if address not in ("auto", "local") and ":" not in address:
        return "--address accepts auto, local, ray://HOST:PORT or HOST:PORT"
    return None


def _usage_fault(options: argparse.Namespace) -> str | None:
    """What is wrong with the options of ``classify`` without an engine; None if they are valid."""
    given, made = (path and Path(path) for path in (options.input, options.output))
    if options.address:
        return "--address needs --engine ray"
    for path in filter(None, (options.input, options.output)):
        if "://" in path:
            return f"{path} is not a file of this machine; --engine ray reads object stores"
    if given and options.texts:
        return "give either texts or --input, not both"
    if not given and not options.texts and (sys.stdin is None or sys.stdin.isatty()):
        return "give texts as arguments, on standard input or with --input"
    for path in filter(None, (given, made)):
        if path.suffix.lower() not in SUFFIXES:
            return f"{path} must end in one of: {' '.join(SUFFIXES)}"
    if options.column and not (given and given.suffix.lower() != ".txt"):
        return "--column needs an --input with columns: CSV, JSONL or Parquet"
    if options.resume and not (given and made):
        return "--resume needs the same --input and --output as the interrupted run"
    if options.json and made:
        return "--json applies to standard output only; the ending of --output decides its format"
    if made and not made.parent.is_dir():
        return f"the directory {made.parent} of --output does not exist"
    if made and made.is_dir():
        return f"{made} is a directory; --output must be a file"
    if given and made and made.exists() and made.samefile(given):
        return "--output must not be the --input"
    return None
