"""The command `sentiment classify`: read texts, classify them, write the results."""

import logging
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from app.config.settings import Settings
from app.errors import CannotContinue, UserError
from app.files.run.job import Job, Tally
from app.files.run.progress_bar import Progress, Warnings, summary
from app.files.run.table_classifier import (
    READ_AHEAD_CHUNKS,
    ClassifiedChunk,
    Classifier,
    with_reasons,
)
from app.files.tables.formats import table_opener
from app.files.tables.outputs import CsvOutput, JsonlOutput, LinesOutput, Output, ResultsOutput
from app.files.tables.table import CHUNK_ROWS, Table, check_is_file
from app.files.tables.text_files import read_lines
from app.files.tables.text_tables import TextStream
from app.files.tables.unicode import SURROGATEESCAPE_OR_REPLACE

# Chunks of standard input are smaller, so that the first results come soon.
STREAM_CHUNK_ROWS = 1_000
# For a smaller file, measuring the best plan would take longer than classifying the file.
MEASURE_FROM_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class Options:
    """The command's options. The command line has already checked that they fit together.

    Without ``input``, the texts are ``texts``; without those, the lines of standard input.
    Without ``output``, the results go to standard output.
    """

    texts: tuple[str, ...]
    input: Path | None
    output: Path | None
    column: str
    resume: bool
    json: bool
    url: str | None

    @classmethod
    def from_arguments(cls, arguments: Namespace) -> Self:
        """The options as the command line gave them."""
        return cls(
            texts=tuple(arguments.texts),
            input=None if arguments.input is None else Path(arguments.input),
            output=None if arguments.output is None else Path(arguments.output),
            column=arguments.column or "text",
            resume=arguments.resume,
            json=arguments.json,
            url=arguments.url,
        )


def classify(options: Options, settings: Settings) -> None:
    """Run the command.

    Raises:
        UserError: an input, the model, the service or an unfinished run cannot be used.
        OSError: a file cannot be read or written.
    """
    logging.basicConfig(handlers=[Warnings(logging.WARNING)])
    table = _table(options, settings)
    classifier = _classifier(options, settings)
    if options.output is None:
        _to_standard_output(table, classifier, options)
    elif options.input is None:
        _stream_to_file(options.output, table, classifier, options)
    else:
        _file_to_file(options.input, options.output, table, classifier, options)


def _table(options: Options, settings: Settings) -> Table:
    path = options.input
    if path is None:
        texts = options.texts or _standard_input(settings.max_text_chars)
        return TextStream(texts, STREAM_CHUNK_ROWS)
    open_table = table_opener(path.suffix)
    check_is_file(path)
    return open_table(path, options.column)


def _output(path: Path, table: Table, labels: list[str]) -> Output:
    match path.suffix.lower():
        case ".txt":
            return LinesOutput()
        case ".csv":
            return CsvOutput(table, labels)
        case ".parquet":
            from app.files.tables.parquet import ParquetOutput

            return ParquetOutput(table, labels)
        case _:
            return JsonlOutput(table)


def _classifier(options: Options, settings: Settings) -> Classifier:
    if options.url is not None:
        from app.files.run.remote import RemoteClassifier

        return RemoteClassifier(options.url, os.environ.get("SENTIMENT_API_KEY") or None)
    # Imported here: --url must work without loading the runtime.
    from app.files.run.local import LocalClassifier

    measure = options.input is not None and options.input.stat().st_size > MEASURE_FROM_BYTES
    return LocalClassifier(settings, measure=measure)


def _standard_input(max_chars: int) -> Iterator[str]:
    """The lines. A byte that is not UTF-8 becomes a lone surrogate: only its own line fails."""
    with open(0, encoding="utf-8", errors="surrogateescape", newline="\n", closefd=False) as source:
        yield from read_lines(source, max_chars)


def _to_standard_output(table: Table, classifier: Classifier, options: Options) -> None:
    output = ResultsOutput() if options.json else LinesOutput()
    tally = Tally()
    with (
        open(1, "w", encoding="utf-8", errors=SURROGATEESCAPE_OR_REPLACE, closefd=False) as stdout,
        _classified(table, classifier, options, tally) as chunks,
    ):
        for chunk, results in chunks:
            stdout.writelines(output.lines(chunk, results))
            stdout.flush()
            tally.add(Tally.of(results))


def _stream_to_file(target: Path, table: Table, classifier: Classifier, options: Options) -> None:
    """A stream can be read only once, so a run that fails leaves nothing to continue."""
    output = _output(target, table, classifier.labels)
    job = Job(target, output, {"input": None}, resume=None)
    try:
        _run(job, table, classifier, options)
    except BaseException:
        job.discard()
        raise
    finally:
        job.close()


def _file_to_file(
    source: Path, target: Path, table: Table, classifier: Classifier, options: Options
) -> None:
    read = _identity(source)
    identity = {
        **read,
        "column": options.column,
        "output": target.suffix.lower(),
        "rows in a part": CHUNK_ROWS,
        "labels": classifier.labels,
        **classifier.identity,
    }
    output = _output(target, table, classifier.labels)
    job = Job(target, output, identity, resume=options.resume)

    def saved() -> str:
        if not job.is_ours():
            return f"{job.directory} was removed or replaced; nothing of this run is saved"
        if _identity(source) != read:
            return f"{source} has changed since the start, so this run cannot be continued"
        return f"{job.tally.rows} rows are saved; add --resume to continue"

    try:
        _run(job, table, classifier, options)
    except KeyboardInterrupt:
        print(f"sentiment: interrupted; {saved()}", file=sys.stderr)
        raise
    except CannotContinue as error:
        if not (job.tally.rows and job.is_ours()):
            job.discard()
            raise
        raise UserError(f"{error}; {job.tally.rows} rows are in {job.directory}") from error
    except (UserError, OSError) as error:
        raise UserError(f"{error}; {saved()}") from error
    finally:
        job.close()


def _identity(source: Path) -> dict[str, Any]:
    """What tells an input from another one, or from itself after a change."""
    try:
        status = source.stat()
    except FileNotFoundError:
        return {}
    return {
        "input": str(source.resolve()),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
    }


def _run(job: Job, table: Table, classifier: Classifier, options: Options) -> None:
    with _classified(table, classifier, options, job.tally) as chunks:
        for chunk, results in chunks:
            job.add(chunk, results)
        job.finish()


@contextmanager
def _classified(
    table: Table, classifier: Classifier, options: Options, tally: Tally
) -> Iterator[Iterator[ClassifiedChunk]]:
    """The results of the rows that ``tally`` has not counted yet.

    Shows the progress and, at the end, a summary. Leaving the context cancels work in progress.
    """
    files = bool(options.input or options.output)
    before, started = tally.rows, time.monotonic()
    with Progress(shown=files and _shows_only_progress(options), done=before) as progress:
        chunks = classifier.classify(
            progress.reading(table.chunks(skip=before)),
            # Results of a stream must not wait for more input: a person may be typing it.
            read_ahead=READ_AHEAD_CHUNKS if options.input else 0,
            advance=progress.advance,
        )
        with closing(chunks):
            yield with_reasons(chunks)
    if files:
        seconds = time.monotonic() - started
        print(summary(tally, tally.rows - before, seconds), file=sys.stderr)


def _shows_only_progress(options: Options) -> bool:
    """Whether standard error is a terminal and the results go elsewhere."""
    return sys.stderr.isatty() and bool(options.output or not sys.stdout.isatty())
