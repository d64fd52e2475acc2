"""The command `sentiment classify`: read texts, classify them, write the results."""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sentiment_service.atomic_files import write_atomically
from sentiment_service.config.settings import Settings
from sentiment_service.errors import UserError
from sentiment_service.files.run.arguments import ClassifyOptions
from sentiment_service.files.run.file_run import FileRun, PartialDirectory
from sentiment_service.files.run.parts import InputFile, divide, pieces_of
from sentiment_service.files.run.plan import COMPLETE, RunPlan
from sentiment_service.files.run.report import Tally, Warnings, counted, progress_bar, summary
from sentiment_service.files.run.table_classifier import READ_AHEAD_CHUNKS, TableClassifier
from sentiment_service.files.tables.formats import open_table, output_format
from sentiment_service.files.tables.outputs import LinesOutput, ResultsOutput
from sentiment_service.files.tables.table import ClassifiedChunk, Table, check_is_file
from sentiment_service.files.tables.text_files import read_lines
from sentiment_service.files.tables.text_tables import TextStream
from sentiment_service.files.tables.unicode import SURROGATEESCAPE_OR_REPLACE

# Chunks of standard input are smaller, so that the first results come soon.
STREAM_CHUNK_ROWS = 1_000
# For a smaller file, measuring the best plan would take longer than classifying the file.
MEASURE_FROM_BYTES = 200_000


def classify(options: ClassifyOptions, settings: Settings) -> None:
    """Run the command in this process.

    Raises:
        UserError: an input, the model, the service or an unfinished run cannot be used.
        OSError: a file cannot be read or written.
    """
    logging.basicConfig(handlers=[Warnings(logging.WARNING)])
    if options.input and options.output:
        _file_to_file(Path(options.input), Path(options.output), options, settings)
        return
    if options.output and Path(options.output).exists() and not options.overwrite:
        raise _exists(Path(options.output))
    table = _table(options, settings)
    classifier = _classifier(options, settings)
    if options.output:
        _stream_to_file(Path(options.output), table, classifier)
    else:
        _to_standard_output(table, classifier, options)


def _file_to_file(source: Path, target: Path, options: ClassifyOptions, settings: Settings) -> None:
    check_is_file(source)
    file = InputFile.of(source.resolve())  # before it is read: a change from now on is seen
    table = open_table(source, options.column)
    with PartialDirectory(target) as directory:
        if target.exists() and not (directory.is_unfinished() or options.overwrite):
            if not options.resume:
                raise _exists(target)
            if source.stat().st_mtime_ns > target.stat().st_mtime_ns:
                raise UserError(
                    f"{source} is newer than the complete {target}, so it may have changed; "
                    "--overwrite classifies it again"
                )
            print(f"sentiment: {target} {COMPLETE}", file=sys.stderr)
            return
        classifier = _classifier(options, settings)
        identity = {
            "column": options.column,
            "threshold": options.threshold,
            "output": target.suffix.lower(),
            "columns of results": classifier.columns.names(table.columns),
            **classifier.identity,
        }
        chunks = divide([pieces_of(file, table, rows=1)], rows=1, suffix=target.suffix.lower())
        plan = RunPlan([part for part in chunks if part.rows], identity)
        output = output_format(target.suffix, table, classifier.columns)
        run = FileRun(plan, directory, output, classifier)
        run.complete(resume=options.resume)


def _exists(target: Path) -> UserError:
    return UserError(f"{target} exists; add --overwrite to replace it, or give another --output")


def _table(options: ClassifyOptions, settings: Settings) -> Table:
    if options.input is None:
        texts = options.texts or _standard_input(settings.max_text_chars)
        return TextStream(texts, STREAM_CHUNK_ROWS)
    path = Path(options.input)
    check_is_file(path)
    return open_table(path, options.column)


def _classifier(options: ClassifyOptions, settings: Settings) -> TableClassifier:
    classifier: TableClassifier
    if options.url is not None:
        from sentiment_service.files.run.remote import RemoteClassifier

        key = os.environ.get("SENTIMENT_API_KEY") or None
        classifier = RemoteClassifier(options.url, key, threshold=options.threshold)
    else:
        # Imported here: --url must work without loading the runtime.
        from sentiment_service.files.run.local import LocalClassifier

        path = options.input
        measure = path is not None and Path(path).stat().st_size > MEASURE_FROM_BYTES
        classifier = LocalClassifier(settings, measure=measure, threshold=options.threshold)
    if options.threshold is not None and not classifier.columns.multi_label:
        raise UserError(
            f"--threshold is for multi-label models; {classifier.identity['model']} gives each "
            "text one label"
        )
    return classifier


def _standard_input(max_chars: int) -> Iterator[str]:
    """The lines. A byte that is not UTF-8 becomes a lone surrogate: only its own line fails."""
    with open(0, encoding="utf-8", errors="surrogateescape", newline="\n", closefd=False) as source:
        yield from read_lines(source, max_chars)


def _to_standard_output(
    table: Table, classifier: TableClassifier, options: ClassifyOptions
) -> None:
    output = ResultsOutput() if options.json else LinesOutput()
    is_file = options.input is not None
    shown = is_file and sys.stderr.isatty() and not sys.stdout.isatty()
    with (
        open(1, "w", encoding="utf-8", errors=SURROGATEESCAPE_OR_REPLACE, closefd=False) as stdout,
        _classified(table, classifier, bar=shown, counts=is_file) as chunks,
    ):
        for chunk, results in chunks:
            stdout.writelines(output.lines(chunk, results))
            stdout.flush()


def _stream_to_file(target: Path, table: Table, classifier: TableClassifier) -> None:
    """A stream can be read only once, so a run that fails leaves nothing to continue."""
    output = output_format(target.suffix, table, classifier.columns)
    with _classified(table, classifier, bar=sys.stderr.isatty(), counts=True) as chunks:
        write_atomically(target, lambda path: output.write(path, chunks))


@contextmanager
def _classified(
    table: Table, classifier: TableClassifier, *, bar: bool, counts: bool
) -> Iterator[Iterator[ClassifiedChunk]]:
    """The results, with a progress bar, and counts at the end; both only if they are wanted.

    Leaving the context early cancels work in progress.
    """
    tally, started = Tally(), time.monotonic()
    total = table.ends[-1].rows if table.ends else None
    with progress_bar(shown=bar, total=total) as advance:
        chunks = classifier.classify(
            table.chunks(),
            # Results of a stream must not wait for more input: a person may be typing it.
            read_ahead=READ_AHEAD_CHUNKS if table.ends else 0,
            advance=advance,
        )
        with closing(chunks):
            yield counted(chunks, tally)
    if counts:
        print(summary(tally, tally.rows, time.monotonic() - started), file=sys.stderr)
