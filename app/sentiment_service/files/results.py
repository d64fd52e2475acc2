"""The results of a run: the columns that files and DataFrames of Spark get of them, their counts,
and what is shown on standard error. ``sentiment_client`` has the columns of tables in memory.
"""

import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol, Self

from sentiment_service.engine.model.bundle import is_sentiment
from sentiment_service.errors import InvalidRequest, UserError
from sentiment_service.files.text_files import NOT_UTF8

# The result of one text, as in the HTTP answer's ``results``: a prediction with ``label``,
# ``score``, ``scores`` and more, or only ``error`` with ``code`` and ``message``.
ResultItem = Mapping[str, Any]


class ResultColumns:
    """The columns of results. They depend on the model: its labels, and whether several may apply.

    ``types`` maps each column to the type of its values. ``members`` are those columns after the
    scores that are members of a result; without a result, all columns but ``error`` are None.
    """

    def __init__(self, labels: Sequence[str], *, multi_label: bool) -> None:
        self.labels = labels
        self.multi_label = multi_label
        figures = ["score", *(f"score_{label}" for label in labels)]
        members: dict[str, type] = {"polarity": float} if is_sentiment(labels) else {}
        if multi_label:
            members["labels"] = list
        members["warnings"] = list
        self.members = list(members)
        self.types = {"label": str, **dict.fromkeys(figures, float), **members, "error": str}

    def values(self, result: ResultItem) -> list[Any]:
        return [
            *map(result.get, ("label", "score")),
            *map(result.get("scores", {}).get, self.labels),
            *map(result.get, self.members),
            error_text(result),
        ]


def error_text(result: ResultItem) -> str | None:
    """What the column ``error`` says; None of a prediction."""
    if "error" not in result:
        return None
    return f"{result['error']['code']}: {result['error']['message']}"


def free_names(names: Iterable[str], taken: Sequence[str], prefix: str = "predicted_") -> list[str]:
    """The names, apart from each other and from those that are taken.

    For Spark and SQL databases, "Label" and "label" are the same.
    """
    lower = {*map(str.lower, taken)}
    free = []
    for name in names:
        while name.lower() in lower:
            name = f"{prefix}{name}"
        lower.add(name.lower())
        free.append(name)
    return free


def with_reason(text: object, result: ResultItem) -> ResultItem:
    """The result, with what users can understand if the text has bytes that are not UTF-8.

    A model sees only the lone surrogates that such bytes have become.
    """
    if "error" in result and isinstance(text, str) and NOT_UTF8.search(text):
        message = "the text is not UTF-8, or not of the encoding that was given"
        return {"error": {"code": InvalidRequest.code, "message": message}}
    return result


@dataclass
class Tally:
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


def column_index(
    column: str, columns: Sequence[str], table: object, option: str = "--column"
) -> int:
    if column not in columns:
        names = ", ".join(map(repr, columns))
        raise UserError(f"{table} has no column {column!r}; {option} accepts one of: {names}")
    return columns.index(column)
