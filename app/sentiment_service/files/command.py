"""The command `sentiment classify`: its options; read texts, classify them, write the results."""

import logging
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentiment_service.errors import CannotContinue, UserError, system_error
from sentiment_service.files.formats import LinesOutput, ResultsOutput, open_table, output_format
from sentiment_service.files.output_file import OutputFile
from sentiment_service.files.results import Advance, Tally, Warnings, progress_bar, summary
from sentiment_service.files.table import (
    READ,
    READ_AHEAD_CHUNKS,
    READ_NAMES,
    WRITTEN,
    Chunk,
    Table,
    TextColumn,
    check_is_file,
)
from sentiment_service.files.text_files import (
    SURROGATEESCAPE_OR_REPLACE,
    UNREADABLE,
    FileOptions,
    read_lines,
)
from sentiment_service.settings.formats import SHARE
from sentiment_service.settings.settings import CheckpointOptions, Settings, flag

if TYPE_CHECKING:
    from sentiment_service.files.local import LocalClassifier
    from sentiment_service.files.remote import RemoteClassifier

    Classifier = LocalClassifier | RemoteClassifier

# Settings that apply only when the command loads a model itself, and what differs in their use.
LOCAL = (*("model", "device", "precision", "cache_dir", "refresh"), *CheckpointOptions.model_fields)
DESCRIPTIONS = {
    "model": "model to use: a bundle, a checkpoint directory or a hub id, as for serve [default: "
    "what a platform has mounted, such as /mnt/models, else the embedded model]",
    "device": "where to compute: 'cpu', 'cuda' (the first GPU) or GPUs by their numbers, such as "
    "'cuda:1' or 'cuda:0,1'; auto means: on the first GPU if CUDA works, else on the CPU",
}


def add_arguments(classify: ArgumentParser) -> None:
    """Add all but the settings to the parser of ``classify``."""
    classify.description = (
        "Print one line for each text: label, score, text. If a text cannot be classified, its "
        "line is 'error', the error code and the text. With --output, write a file instead: the "
        "columns of --input, then label, score, a score_<label> for each label (in JSONL, one "
        "object named scores), polarity (of sentiment), labels (multi-label), warnings, and error. "
        "If the input has a column of the same name, whatever its case, the new column gets the "
        f"prefix 'predicted_'. The ending of FILE decides its format: {' '.join(WRITTEN)}."
    )
    classify.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="texts to classify [default: lines of standard input]",
    )
    add_input(
        classify,
        "read the texts from a file: text, CSV, TSV, JSONL, a JSON list (all of these may be "
        "compressed: .gz, .bz2, .zst, or one in a .zip), Parquet or .xlsx",
    )
    classify.add_argument(
        "--output",
        type=os.path.expanduser,
        metavar="FILE",
        help="write the results to a file; until the file is complete, they are in FILE.partial",
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


def add_input(parser: ArgumentParser, words: str) -> None:
    parser.add_argument("--input", type=os.path.expanduser, metavar="FILE", help=words)
    parser.add_argument(
        "--column",
        default="text",
        metavar="NAME",
        help="column of --input with the texts [default: %(default)s]",
    )
    FileOptions.add_arguments(parser)


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
        return f"{Path(options.input)} must end in one of: {READ_NAMES}"
    if options.column != "text" and (not path or ".txt" in Path(path).suffixes[-2:]):
        return "--column needs an --input with columns: CSV, TSV, JSON, JSONL, Parquet or .xlsx"
    return FileOptions.of(options).fault(Path(path))


def fault(options: Namespace) -> str | None:
    """What is wrong with the options of texts and files; None if they are valid."""
    # An empty path is refused below, because it has no ending.
    given, made = (None if path is None else Path(path) for path in (options.input, options.output))
    for path in filter(None, (options.input, options.output)):
        if "://" in path:
            return f"{path} is not a file of this machine; docs/files.md says how to read others"
    if given and options.texts:
        return "give either texts or --input, not both"
    if not given and not options.texts and (sys.stdin is None or sys.stdin.isatty()):
        return "give texts as arguments, on standard input or with --input"
    for text in options.texts:
        # Path.is_file fails on a text that is too long for a path.
        if text.lower().endswith(READ) and os.path.isfile(text):  # noqa: PTH113
            return f"{text} is a file: its texts are classified with --input {text}"
    if options.input == "-":
        return (
            "--input must be a file; without it, each line of standard input is a text: "
            "cat FILE | sentiment classify"
        )
    if found := input_fault(options):
        return found
    if made and not made.name.lower().endswith(WRITTEN):
        return f"{made} must end in one of: {' '.join(WRITTEN)}"
    if options.resume and not (given and made):
        return "--resume needs the same --input and --output as the interrupted run"
    if options.overwrite and not made:
        return "--overwrite needs an --output"
    if options.json and made:
        return "--json applies to standard output only; the ending of --output decides its format"
    if made and not made.parent.is_dir():
        return f"the directory {made.parent} of --output does not exist"
    if made and made.exists() and not made.is_file():
        return f"{made} is a directory or a device; --output must be a file"
    if given and made and made.exists() and made.samefile(given):
        return "--output must not be the --input"
    return None


# Chunks of standard input are smaller, and none is read ahead: results must not wait for more
# input, which a person may be typing.
STREAM_CHUNK_ROWS = 1_000
# For a smaller file, measuring the best plan would take longer than classifying the file.
MEASURE_FROM_BYTES = 200_000


def classify(options: Namespace, settings: Settings) -> None:
    """Classify as the ``options`` say, in which ``fault`` has found nothing wrong."""
    logging.basicConfig(handlers=[Warnings(logging.WARNING)])
    source = None if options.input is None else Source(Path(options.input))
    if source:
        table = open_table(source.path, options.column, FileOptions.of(options))
    else:
        lines = _standard_input(settings.max_text_chars, options.encoding)
        table = TextColumn(options.texts or lines, STREAM_CHUNK_ROWS)
    if options.output:
        with OutputFile(Path(options.output)) as output:
            try:
                _to_file(output, source, table, options, settings)
            except KeyboardInterrupt:
                if source:
                    print(f"sentiment: interrupted; {_saved(output)}", file=sys.stderr)
                raise
    else:
        _to_standard_output(table, _classifier(options, settings), options)


class Source:
    """A file of texts, and how it was before it was read: a change from then on is seen."""

    def __init__(self, path: Path) -> None:
        check_is_file(path)
        self.path = path
        self._before = self.facts()

    def facts(self) -> list[Any]:
        status = self.path.stat()
        return [str(self.path.resolve()), status.st_size, status.st_mtime_ns]

    def check_is_unchanged(self) -> None:
        try:
            changed = self.facts() != self._before
        except FileNotFoundError:
            changed = True
        if changed:
            raise CannotContinue(
                f"{self.path} has changed since the start, so this run cannot be continued"
            )


def _to_file(
    output: OutputFile, source: Source | None, table: Table, options: Namespace, settings: Settings
) -> None:
    target, suffix = output.target, Path(options.output).suffix.lower()
    complete = target.exists() and not (output.saved or options.overwrite)
    if complete:
        if not (source and options.resume):
            raise UserError(
                f"{target} exists; add --overwrite to replace it, or give another --output"
            )
        if source.path.stat().st_mtime_ns > target.stat().st_mtime_ns:
            raise UserError(
                f"{source.path} is newer than the complete {target}, so it may have changed; "
                "--overwrite classifies it again"
            )
    classifier = _classifier(options, settings)
    identity = {
        "column": options.column,
        "encoding": options.encoding,
        "sheet": options.sheet,
        "threshold": options.threshold,
        "output": suffix,
        **classifier.identity,
    }
    if source:
        identity["input"] = source.facts()
    if complete:
        output.check_complete(identity)
        print(f"sentiment: {target} is complete; nothing is left to do", file=sys.stderr)
        return
    total = output.begin(
        output_format(suffix, table, classifier.columns), identity, resume=options.resume
    )
    before, started = total.rows, time.monotonic()
    try:
        _fill(output, total, source, table, classifier)
        output.finish()
    except CannotContinue as error:
        rows = output.saved_rows
        raise UserError(
            f"{error}; {rows} rows are in {output.partial}" if rows else error
        ) from error
    except (UserError, OSError) as error:
        why = system_error(error) if isinstance(error, OSError) else str(error)
        raise UserError(f"{why}; {_saved(output)}" if source else why) from error
    print(summary(total, total.rows - before, time.monotonic() - started), file=sys.stderr)


def _saved(output: OutputFile) -> str:
    if rows := output.saved_rows:
        return f"{rows} rows are saved; add --resume to continue"
    return "no row is saved yet"


def _fill(
    output: OutputFile,
    total: Tally,
    source: Source | None,
    table: Table,
    classifier: "Classifier",
) -> None:
    """Classify the chunks that are not saved yet, and add their results to the file."""
    with (
        progress_bar(shown=sys.stderr.isatty(), done=total.rows) as advance,
        closing(_read(table, advance, source)) as chunks,  # an error would keep the file open
    ):
        for saved, chunk in zip(output.saved, chunks, strict=False):
            if len(chunk.texts) != saved.tally["rows"]:
                raise CannotContinue("the input has other rows than before")
        read_ahead = READ_AHEAD_CHUNKS if source else 0
        results = classifier.classify(chunks, read_ahead=read_ahead, advance=advance)
        with closing(results):
            for chunk, items in results:
                tally = Tally.of(items)
                output.add(chunk, items, tally)
                total.add(tally)


def _to_standard_output(table: Table, classifier: "Classifier", options: Namespace) -> None:
    output = ResultsOutput() if options.json else LinesOutput()
    is_file = options.input is not None
    shown = is_file and sys.stderr.isatty() and not sys.stdout.isatty()
    tally, started = Tally(), time.monotonic()
    with (
        open(1, "w", encoding="utf-8", errors=SURROGATEESCAPE_OR_REPLACE, closefd=False) as stdout,
        progress_bar(shown=shown) as advance,
        closing(_read(table, advance)) as chunks,
        closing(
            classifier.classify(
                chunks, read_ahead=READ_AHEAD_CHUNKS if is_file else 0, advance=advance
            )
        ) as results,
    ):
        for chunk, items in results:
            stdout.writelines(output.lines(chunk, items))
            stdout.flush()
            tally.add(Tally.of(items))
    if is_file:
        print(summary(tally, tally.rows, time.monotonic() - started), file=sys.stderr)


def _read(
    table: Table, advance: Advance, source: Source | None = None
) -> Generator[Chunk, None, None]:
    """The chunks, while their ``source`` stays the same.

    The progress bar learns how many rows there are, about.
    """
    rows = 0
    for chunk in table.chunks():
        rows += len(chunk.texts)
        advance(0, table.expected_rows(rows))
        if source:
            source.check_is_unchanged()
        yield chunk


def _classifier(options: Namespace, settings: Settings) -> "Classifier":
    classifier: Classifier
    if options.url is not None:
        from sentiment_service.files.remote import RemoteClassifier

        key = os.environ.get("SENTIMENT_API_KEY") or None
        classifier = RemoteClassifier(options.url, key, threshold=options.threshold)
    else:
        # Imported here: --url must work without loading the runtime.
        from sentiment_service.files.local import LocalClassifier

        path = options.input
        measure = path is not None and Path(path).stat().st_size > MEASURE_FROM_BYTES
        classifier = LocalClassifier(settings, measure=measure, threshold=options.threshold)
    if options.threshold is not None and not classifier.columns.multi_label:
        raise UserError(
            f"--threshold is for multi-label models; {classifier.identity['model']} gives each "
            "text one label"
        )
    return classifier


def _standard_input(max_chars: int, encoding: str | None) -> Iterator[str]:
    """The lines. What cannot be decoded becomes a lone surrogate: only its own line fails."""
    errors = UNREADABLE if encoding else "surrogateescape"
    with open(0, encoding=encoding or "utf-8-sig", errors=errors, closefd=False) as source:
        yield from read_lines(source, max_chars)
