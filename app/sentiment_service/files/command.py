"""The command `sentiment classify`: read texts, classify them, write the results."""

import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from sentiment_service.errors import CannotContinue, UserError, system_error
from sentiment_service.files.arguments import ClassifyOptions
from sentiment_service.files.formats import LinesOutput, ResultsOutput, open_table, output_format
from sentiment_service.files.output_file import OutputFile
from sentiment_service.files.report import Advance, Tally, Warnings, progress_bar, summary
from sentiment_service.files.table import (
    READ_AHEAD_CHUNKS,
    Chunk,
    Table,
    TableClassifier,
    TextColumn,
    check_is_file,
)
from sentiment_service.files.text_files import SURROGATEESCAPE_OR_REPLACE, read_lines
from sentiment_service.settings.settings import Settings

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
    source = None if options.input is None else Source(Path(options.input))
    if source:
        table = open_table(source.path, options.column)
    else:
        table = TextColumn(
            options.texts or _standard_input(settings.max_text_chars), STREAM_CHUNK_ROWS
        )
    if options.output:
        with OutputFile(Path(options.output)) as output:
            _to_file(output, source, table, options, settings)
    else:
        _to_standard_output(table, _classifier(options, settings), options)


class Source:
    """A file of texts, and how it was before it was read: a change from then on is seen."""

    def __init__(self, path: Path) -> None:
        check_is_file(path)
        self.path = path
        self._before = self.facts()

    def facts(self) -> list[Any]:
        """What changes with the file: its path, size and time of change."""
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
    output: OutputFile,
    source: Source | None,
    table: Table,
    options: ClassifyOptions,
    settings: Settings,
) -> None:
    target = output.target
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
        "threshold": options.threshold,
        "output": target.suffix.lower(),
        "columns of results": [*classifier.columns.types],
        **classifier.identity,
    }
    if source:
        identity["input"] = source.facts()
    if complete:
        output.check_complete(identity)
        print(f"sentiment: {target} is complete; nothing is left to do", file=sys.stderr)
        return
    total = output.begin(
        output_format(target.suffix, table, classifier.columns), identity, resume=options.resume
    )
    before, started = total.rows, time.monotonic()
    try:
        _fill(output, total, source, table, classifier)
        output.finish()
    except KeyboardInterrupt:
        if source:
            print(f"sentiment: interrupted; {_saved(output)}", file=sys.stderr)
        raise
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
    classifier: TableClassifier,
) -> None:
    """Classify the chunks that are not saved yet, and add their results to the file."""
    with progress_bar(shown=sys.stderr.isatty(), done=total.rows) as advance:
        chunks = _read(table, advance)
        for saved, chunk in zip(output.saved, chunks, strict=False):
            if len(chunk.texts) != saved.tally["rows"]:
                raise CannotContinue("the input has other rows than before")
        results = classifier.classify(
            _unchanged(chunks, source), read_ahead=_read_ahead(source is not None), advance=advance
        )
        with closing(results):
            for chunk, items in results:
                tally = Tally.of(items)
                output.add(chunk, items, tally)
                total.add(tally)


def _to_standard_output(
    table: Table, classifier: TableClassifier, options: ClassifyOptions
) -> None:
    output = ResultsOutput() if options.json else LinesOutput()
    is_file = options.input is not None
    shown = is_file and sys.stderr.isatty() and not sys.stdout.isatty()
    tally, started = Tally(), time.monotonic()
    with (
        open(1, "w", encoding="utf-8", errors=SURROGATEESCAPE_OR_REPLACE, closefd=False) as stdout,
        progress_bar(shown=shown) as advance,
        closing(
            classifier.classify(
                _read(table, advance), read_ahead=_read_ahead(is_file), advance=advance
            )
        ) as results,
    ):
        for chunk, items in results:
            stdout.writelines(output.lines(chunk, items))
            stdout.flush()
            tally.add(Tally.of(items))
    if is_file:
        print(summary(tally, tally.rows, time.monotonic() - started), file=sys.stderr)


def _read(table: Table, advance: Advance) -> Iterator[Chunk]:
    """The chunks; the progress bar learns how many rows there are, about."""
    rows = 0
    for chunk in table.chunks():
        rows += len(chunk.texts)
        advance(0, table.expected_rows(rows))
        yield chunk


def _unchanged(chunks: Iterable[Chunk], source: Source | None) -> Iterator[Chunk]:
    for chunk in chunks:
        if source:
            source.check_is_unchanged()
        yield chunk


def _read_ahead(is_file: bool) -> int:
    # Results of a stream must not wait for more input: a person may be typing it.
    return READ_AHEAD_CHUNKS if is_file else 0


def _classifier(options: ClassifyOptions, settings: Settings) -> TableClassifier:
    classifier: TableClassifier
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


def _standard_input(max_chars: int) -> Iterator[str]:
    """The lines. A byte that is not UTF-8 becomes a lone surrogate: only its own line fails."""
    with open(0, encoding="utf-8", errors="surrogateescape", closefd=False) as source:
        yield from read_lines(source, max_chars)
