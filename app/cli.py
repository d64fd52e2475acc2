"""The ``sentiment`` command. Heavy imports wait for the subcommand that needs them."""

import argparse
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, get_args

from app.errors import ServiceError, UserError
from app.settings import Settings, flag, load_settings

if TYPE_CHECKING:
    from app.api.predictions import Prediction
    from app.model import Encoding, Model

# Texts read, sorted by length and answered together: enough for batches with little padding.
CHUNK_TEXTS = 1_000
BATCH_TOKENS = 512


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0 when done, 1 for a failure, 2 for wrong usage."""
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

    classify = commands.add_parser(
        "classify",
        help="classify texts, without a server",
        description="Print one line for each text: label, score, text. A text that cannot be "
        "classified is answered in its place by 'error' and the reason.",
    )
    classify.add_argument(
        "texts", nargs="*", metavar="TEXT", help="a text [default: each line of standard input]"
    )
    classify.add_argument(
        "--json", action="store_true", help="print the result objects of POST /classify instead"
    )
    _add_flags(classify, ("model", "device", "precision"))
    return parser


def _add_flags(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """A flag for each of these settings; its value is validated with the environment's."""
    for name in names:
        field = Settings.model_fields[name]
        several = name == "model"
        choices = get_args(field.annotation)
        parser.add_argument(
            flag(name),
            action="append" if several else "store",
            default=argparse.SUPPRESS,  # what is not given is the environment's to say
            metavar="DIR" if several else "|".join(choices) or name.split("_")[-1].upper(),
            help=f"{field.description}" + ("" if several else f" [default: {field.default}]"),
        )


def _serve(settings: Settings) -> int:
    from app.main import run

    run(settings)
    return 0


def _classify(options: argparse.Namespace, settings: Settings) -> int:
    if not options.texts and (sys.stdin is None or sys.stdin.isatty()):
        print("sentiment: give texts as arguments or on standard input", file=sys.stderr)
        return 2
    from app.bundle import EMBEDDED_BUNDLE, Bundle
    from app.cpu import available_cpus, ways_to_share
    from app.model import Model

    *_, (runners, threads) = ways_to_share(
        available_cpus(), runners=settings.runners, threads=settings.threads
    )
    path, *others = settings.model or (EMBEDDED_BUNDLE,)
    if others:
        print("sentiment: classify uses one model; give --model once", file=sys.stderr)
        return 2
    model = Model.load(
        Bundle.open(path), device=settings.device, precision=settings.precision, threads=threads
    )
    texts = iter(options.texts) if options.texts else _lines(settings.max_text_chars)
    format_line = _json_line if options.json else _line
    executor = ThreadPoolExecutor(runners)
    # Bytes that are not UTF-8 leave as they came, see _lines.
    with open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False) as output:
        try:
            while chunk := list(islice(texts, CHUNK_TEXTS)):
                outcomes = _outcomes(model, chunk, settings, executor)
                output.writelines(map(format_line, chunk, outcomes))
                output.flush()
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
    return 0


def _lines(max_chars: int) -> Iterator[str]:
    """Standard input's lines; of one that is too long only enough to see that it is.

    Bytes that are not UTF-8 become lone surrogates, which fail their line alone.
    """
    with open(0, encoding="utf-8", errors="surrogateescape", newline="\n", closefd=False) as source:
        while line := source.readline(max_chars + 2):
            rest = line
            while rest and not rest.endswith("\n"):
                rest = source.readline(max_chars)
            yield line.removesuffix("\n").removesuffix("\r")


def _outcomes(
    model: "Model", texts: Sequence[str], settings: Settings, executor: Executor
) -> list["Prediction | ServiceError"]:
    """What became of each text, computed in batches of like length."""
    from app.api.predictions import encode, infer, predict

    encoded = encode(model, texts, max_chars=settings.max_text_chars)
    encodings = [encoding for encoding in encoded if not isinstance(encoding, ServiceError)]
    order = sorted(range(len(encodings)), key=lambda index: len(encodings[index]))
    max_tokens = settings.max_batch_tokens or BATCH_TOKENS
    batches = list(_batches([encodings[index] for index in order], max_tokens))
    results = [result for batch in executor.map(partial(infer, model), batches) for result in batch]
    in_order = [result for _, result in sorted(zip(order, results, strict=True), key=itemgetter(0))]
    return predict(model.labels, encoded, in_order)


def _batches(encodings: Iterable["Encoding"], max_tokens: int) -> Iterator[list["Encoding"]]:
    """Cut a list sorted by length, each batch at most ``max_tokens`` with its padding."""
    batch: list[Encoding] = []
    for encoding in encodings:
        if batch and (len(batch) + 1) * len(encoding) > max_tokens:
            yield batch
            batch = []
        batch.append(encoding)
    if batch:
        yield batch


def _line(text: str, outcome: "Prediction | ServiceError") -> str:
    """Label, score and text, with tabs between them and none within."""
    shown = " ".join(text.split())
    if isinstance(outcome, ServiceError):
        return f"error\t{outcome.code}\t{shown}\n"
    return f"{outcome['label']}\t{outcome['score']:.4f}\t{shown}\n"


def _json_line(text: str, outcome: "Prediction | ServiceError") -> str:
    """An item of the HTTP answer's ``results``."""
    from app.api.predictions import document

    return json.dumps(document(outcome)) + "\n"
