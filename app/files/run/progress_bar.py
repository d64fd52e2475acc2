"""What a run shows on standard error: a progress bar on a terminal, warnings and a summary."""

import logging
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Self

from app.files.run.job import Tally
from app.files.tables.table import Chunk


class Progress:
    """A bar on standard error with the texts per second and the time that remains.

    The number of texts is estimated from the part of the file that has been read.
    """

    def __init__(self, *, shown: bool, done: int) -> None:
        self._read = done
        self._bar: Any = None
        if not shown:
            return
        try:
            from tqdm import tqdm
        except ImportError:  # it comes with the extra `files`; the command works without a bar
            return
        self._bar = tqdm(initial=done, unit=" texts", leave=False, file=sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def reading(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """The same chunks; each of them updates the estimated number of texts."""
        for chunk in chunks:
            self._read += len(chunk.texts)
            if self._bar is not None and chunk.fraction:
                self._bar.total = round(self._read / chunk.fraction)
            yield chunk

    def advance(self, texts: int) -> None:
        """Count ``texts`` more as done."""
        if self._bar is not None:
            self._bar.update(texts)


class Warnings(logging.Handler):
    """Writes each warning of the log as one line, above the progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the message without the traceback of an exception."""
        line = f"sentiment: {record.getMessage()}"
        try:
            from tqdm import tqdm
        except ImportError:  # then there is no bar
            print(line, file=sys.stderr)
        else:
            tqdm.write(line, file=sys.stderr)


def summary(tally: Tally, rows: int, seconds: float) -> str:
    """The number of rows, the speed, and the counts of labels, errors and truncated texts.

    This run classified ``rows`` of the tally's rows in ``seconds``; earlier runs the others.
    """
    earlier = f", {tally.rows - rows:,} of them in earlier runs" if tally.rows > rows else ""
    speed = f" ({rows / seconds:,.0f} rows/s{earlier})" if seconds else ""
    lines = [f"{tally.rows:,} rows in {seconds:.1f} s{speed}"]
    width = max(map(len, tally.labels), default=0)
    predictions = tally.rows - tally.errors
    for label, count in sorted(tally.labels.items()):
        lines.append(f"{label:{width}}  {count:>11,}  {count / predictions:6.1%}")
    return "\n".join([*lines, f"errors {tally.errors:,}, truncated {tally.truncated:,}"])
