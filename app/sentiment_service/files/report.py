"""What a run shows on standard error: a progress bar, warnings, and counts at the end."""

import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Protocol, Self

from sentiment_service.files.result_columns import ResultItem


@dataclass
class Tally:
    """Counts of rows, labels, errors and truncated texts."""

    rows: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    truncated: int = 0

    @classmethod
    def of(cls, results: Sequence[ResultItem]) -> Self:
        predictions = [result for result in results if "error" not in result]
        return cls(
            rows=len(results),
            labels=Counter(prediction["label"] for prediction in predictions),
            errors=len(results) - len(predictions),
            truncated=sum(prediction["truncated"] for prediction in predictions),
        )

    @classmethod
    def total(cls, tallies: Iterable[Self]) -> Self:
        total = cls()
        for tally in tallies:
            total.add(tally)
        return total

    def add(self, other: "Tally") -> None:
        self.rows += other.rows
        self.labels.update(other.labels)
        self.errors += other.errors
        self.truncated += other.truncated


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


class Advance(Protocol):
    """Counts more texts as done, and may say how many there are, about."""

    def __call__(self, count: int, total: int | None = None) -> object: ...


@contextmanager
def progress_bar(
    *, shown: bool, total: int | None = None, done: int = 0, after_s: float = 0.0
) -> Iterator[Advance]:
    """A bar on standard error with the texts per second and, of ``total``, the time that remains.

    ``done`` of them were done before. The bar appears after ``after_s`` seconds.
    """
    if not (shown and find_spec("tqdm")):  # the extra `files` has it
        yield lambda _count, _total=None: None
        return
    from tqdm import tqdm

    with tqdm(
        total=total, initial=done, unit=" texts", leave=False, file=sys.stderr, delay=after_s
    ) as bar:

        def advance(count: int, total: int | None = None) -> None:
            bar.total = total or bar.total
            bar.update(count)

        yield advance


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
