"""`sentiment classify`: which table, what classifies it, and where the results go."""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from app.errors import UserError
from app.files.classifier import Answered, Classifier
from app.files.job import Job, Tally
from app.files.outputs import CsvOutput, JsonlOutput, LinesOutput, Output, ResultsOutput
from app.files.progress import Progress, summary
from app.files.tables import CHUNK_ROWS, Table
from app.files.text_tables import Csv, Given, Jsonl, Lines, read_lines
from app.files.unicode import AS_IT_CAME
from app.settings import Settings

# Chunks of a file that are read ahead: while one is written, the next two are computed.
AHEAD = 2
# Standard input is answered in smaller parts, and never waits for more: somebody may be typing.
GIVEN_ROWS = 1_000
# A smaller file is done sooner than it takes to measure what is best for it.
MEASURED_BYTES = 200_000


def classify(options: Namespace, settings: Settings) -> None:
    """Do what the command's options say; they fit together.

    Raises:
        UserError: it cannot be done; the message is for the user.
        OSError: nor can this.
    """
    table = _table(options, settings)
    classifier = _classifier(options, settings)
    if options.output is None:
        _to_standard_output(table, classifier, options)
    elif options.input is None:
        _given_to_file(table, classifier, options)
    else:
        _file_to_file(table, classifier, options)


def _table(options: Namespace, settings: Settings) -> Table:
    if options.input is None:
        return Given(options.texts or _standard_input(settings.max_text_chars), GIVEN_ROWS)
    path, column = options.input, options.column or "text"
    match path.suffix.lower():
        case ".txt":
            return Lines(path)
        case ".csv":
            return Csv(path, column)
        case ".parquet":
            return _parquet().Parquet(path, column)  # type: ignore[no-any-return]
        case _:
            return Jsonl(path, column)


def _output(path: Path, table: Table, labels: list[str]) -> Output:
    match path.suffix.lower():
        case ".txt":
            return LinesOutput()
        case ".csv":
            return CsvOutput(table, labels)
        case ".parquet":
            return _parquet().ParquetOutput(table, labels)  # type: ignore[no-any-return]
        case _:
            return JsonlOutput(table)


def _parquet() -> Any:
    try:
        from app.files import parquet
    except ImportError:
        raise UserError(
            "Parquet needs pyarrow: pip install 'sentiment-service[files]' brings it"
        ) from None
    return parquet


def _classifier(options: Namespace, settings: Settings) -> Classifier:
    if options.url is None:
        from app.files.local import Local

        large = options.input is not None and options.input.stat().st_size > MEASURED_BYTES
        return Local(settings, measure=large)
    try:
        from app.files.remote import Remote
    except ImportError:
        raise UserError(
            "--url needs httpx: pip install 'sentiment-service[files]' brings it"
        ) from None
    return Remote(options.url, os.environ.get("SENTIMENT_API_KEY") or None)


def _standard_input(max_chars: int) -> Iterator[str]:
    """Its lines; bytes that are not UTF-8 become lone surrogates, which fail their line alone."""
    with open(0, encoding="utf-8", errors="surrogateescape", newline="\n", closefd=False) as source:
        yield from read_lines(source, max_chars)


def _to_standard_output(table: Table, classifier: Classifier, options: Namespace) -> None:
    output = ResultsOutput() if options.json else LinesOutput()
    tally = Tally()
    with (
        open(1, "w", encoding="utf-8", errors=AS_IT_CAME, closefd=False) as stdout,
        _answers(table, classifier, options, tally) as answers,
    ):
        for chunk, outcomes in answers:
            stdout.writelines(output.lines(chunk, outcomes))
            stdout.flush()
            tally.add(Tally.of(outcomes))


def _given_to_file(table: Table, classifier: Classifier, options: Namespace) -> None:
    """What was given can be read only once: nothing is kept to continue with."""
    output = _output(options.output, table, classifier.labels)
    job = Job(options.output, output, {"input": None}, resume=False)
    try:
        _run(job, table, classifier, options)
    except BaseException:
        job.discard()
        raise


def _file_to_file(table: Table, classifier: Classifier, options: Namespace) -> None:
    status = options.input.stat()
    identity = {
        "input": str(options.input.resolve()),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "column": options.column or "text",
        "output": options.output.suffix.lower(),
        "rows in a part": CHUNK_ROWS,
        "labels": classifier.labels,
        **classifier.identity,
    }
    output = _output(options.output, table, classifier.labels)
    job = Job(options.output, output, identity, resume=options.resume)
    try:
        _run(job, table, classifier, options)
    except KeyboardInterrupt:
        rows = job.tally.rows
        print(f"sentiment: interrupted after {rows} rows; --resume continues", file=sys.stderr)
        raise
    except (UserError, OSError) as error:
        rows = job.tally.rows
        raise UserError(f"{error}; {rows} rows are kept, --resume continues") from error


def _run(job: Job, table: Table, classifier: Classifier, options: Namespace) -> None:
    with _answers(table, classifier, options, job.tally) as answers:
        for chunk, outcomes in answers:
            job.add(chunk, outcomes)
        job.finish()


@contextmanager
def _answers(
    table: Table, classifier: Classifier, options: Namespace, tally: Tally
) -> Iterator[Iterator[Answered]]:
    """The answers after the rows that ``tally`` has; leaving it stops what is still computed."""
    files = bool(options.input or options.output)
    before, started = tally.rows, time.monotonic()
    with Progress(shown=files and _only_terminal(options), done=before) as progress:
        answers = classifier.answers(
            progress.reading(table.chunks(skip=before)),
            ahead=AHEAD if options.input else 0,
            advance=progress.advance,
        )
        with closing(answers):
            yield answers
    if files:
        seconds = time.monotonic() - started
        print(summary(tally, tally.rows - before, seconds), file=sys.stderr)


def _only_terminal(options: Namespace) -> bool:
    """Whether standard error is a terminal that shows nothing else."""
    return sys.stderr.isatty() and bool(options.output or not sys.stdout.isatty())
