"""The ``sentiment`` command. Heavy imports wait for the subcommand that needs them."""

import argparse
import importlib.metadata
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args, get_origin

from app import logs
from app.errors import UserError
from app.server.process import open_standard_files, raise_file_limit
from app.settings import Settings, flag, load_settings

# What `classify` reads and writes, by the end of a file's name.
SUFFIXES = (".txt", ".csv", ".jsonl", ".ndjson", ".parquet")
# Settings of a model in this process.
LOCAL = ("model", "device", "precision")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 when done, 1 for a failure, 2 for wrong usage."""
    # Before it is imported: ONNX Runtime would write about its use into the home directory.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    options = _parser().parse_args(arguments)
    flags = {name: value for name, value in vars(options).items() if name in Settings.model_fields}
    try:
        settings = load_settings(flags)
    except ValueError as error:
        print(f"sentiment: {error}", file=sys.stderr)
        return 2
    try:
        return _serve(settings) if options.command == "serve" else _classify(options, settings)
    except UserError as error:
        print(f"sentiment: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, head perhaps, has what it wants. Python would complain at exit, when it
        # flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a disk is full, a pipe to read from is broken
        print(f"sentiment: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sentiment", description="Sentiment of short texts.")
    version = importlib.metadata.version("sentiment-service")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="answer over HTTP",
        description="Serve over HTTP. Every flag can be set as SENTIMENT_<NAME> as well.",
    )
    _add_flags(serve, Settings.model_fields)

    _add_classify(commands.add_parser("classify", help="classify texts and files of texts"))
    return parser


def _add_classify(classify: argparse.ArgumentParser) -> None:
    classify.description = (
        "Print one line for each text: label, score, text. A text that cannot be classified is "
        "answered in its place by 'error' and the reason. With --output, write a file of all "
        "columns of --input, then label, score, score_<label> and error; a name that the input "
        "has, too, gets the prefix 'predicted_'. FILE is of the kind that its name ends in: "
        f"{' '.join(SUFFIXES)}."
    )
    classify.add_argument(
        "texts", nargs="*", metavar="TEXT", help="a text [default: each line of standard input]"
    )
    classify.add_argument("--input", type=Path, metavar="FILE", help="read the texts from a file")
    classify.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write a file, which is there when all is done; until then, FILE.partial has the rest",
    )
    classify.add_argument(
        "--column", metavar="NAME", help="column of --input that has the texts [default: text]"
    )
    classify.add_argument(
        "--resume",
        action="store_true",
        help="continue a run that did not end, after the rows that it has done",
    )
    classify.add_argument(
        "--json", action="store_true", help="print the result objects of POST /classify instead"
    )
    classify.add_argument(
        "--url",
        help="have the service at this URL classify; the environment's SENTIMENT_API_KEY is its "
        "key, if it wants one",
    )
    _add_flags(classify, LOCAL)


def _add_flags(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """A flag for each of these settings; its value is validated with the environment's."""
    for name in names:
        field = Settings.model_fields[name]
        several = name == "model"
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        parser.add_argument(
            flag(name),
            action="append" if several else "store",
            default=argparse.SUPPRESS,  # what is not given is the environment's to say
            metavar="DIR" if several else "|".join(choices) or name.split("_")[-1].upper(),
            help=f"{field.description}"
            + ("" if several else f" [default: {_shown(field.default)}]"),
        )


def _shown(default: object) -> object:
    return "none" if default in ("", (), None) else default


def _serve(settings: Settings) -> int:
    # Until the server handles it: process 1 of a container would not even end by it.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # Nothing is loaded yet that could be loaded again.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    open_standard_files()
    raise_file_limit()
    logs.configure(settings.log_level, settings.log_format)
    try:
        from app.server.run import run

        return run(settings)
    finally:
        logs.close()


def _classify(options: argparse.Namespace, settings: Settings) -> int:
    if fault := _usage_fault(options, settings):
        print(f"sentiment: {fault}", file=sys.stderr)
        return 2
    from app.files.command import Options, classify

    classify(Options.from_arguments(options), settings)
    return 0


def _usage_fault(options: argparse.Namespace, settings: Settings) -> str | None:
    """Why the options of ``classify`` do not fit together."""
    given, made = options.input, options.output
    if given and options.texts:
        return "give texts or --input, not both"
    if not given and not options.texts and (sys.stdin is None or sys.stdin.isatty()):
        return "give texts as arguments, on standard input or with --input"
    for path in filter(None, (given, made)):
        if path.suffix.lower() not in SUFFIXES:
            return f"{path} must end in one of: {' '.join(SUFFIXES)}"
    if options.column and not (given and given.suffix.lower() != ".txt"):
        return "--column is for an --input that has columns: CSV, JSONL or Parquet"
    if options.resume and not (given and made):
        return "--resume needs the --input and --output of the run that it continues"
    if options.json and made:
        return "--json is for standard output; --output writes what its name ends in"
    if made and not made.parent.is_dir():
        return f"the directory {made.parent} of --output does not exist"
    if made and made.is_dir():
        return f"{made} is a directory; --output names a file"
    if given and made and made.exists() and made.samefile(given):
        return "--output must not be the --input"
    if options.url and not options.url.startswith(("http://", "https://")):
        return "--url must begin with http:// or https://"
    if options.url and any(name in options for name in LOCAL):
        return "--url leaves --model, --device and --precision to the service"
    if len(settings.model) > 1 and not options.url:
        return "classify uses one model; give --model once"
    return None
