"""Files of results: every column of the table, then the result of its text."""

import csv
import json
import shutil
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sentiment_service.engine.model.labels import is_sentiment
from sentiment_service.files.tables.table import (
    Chunk,
    ClassifiedChunk,
    ResultItem,
    Table,
    json_text,
)
from sentiment_service.files.tables.unicode import SURROGATEESCAPE_OR_REPLACE


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

    def names(self, taken: Sequence[str]) -> list[str]:
        """The names of the columns; "predicted_" goes before a taken name."""
        return _without_conflicts(self.types, taken)

    def values(self, result: ResultItem) -> list[Any]:
        """The value of each column."""
        return [
            *map(result.get, ("label", "score")),
            *map(result.get("scores", {}).get, self.labels),
            *map(result.get, self.members),
            _error(result),
        ]


class OutputFormat(ABC):
    """A kind of file with rows and their results."""

    @abstractmethod
    def write(self, path: Path, chunks: Iterable[ClassifiedChunk]) -> None:
        """Write a file."""

    @abstractmethod
    def join(self, parts: Iterable[Path], path: Path) -> None:
        """Write the rows of several such files as one."""


class TextOutput(OutputFormat):
    """A file of text: ``header``, then the lines of each row."""

    header = ""

    @abstractmethod
    def lines(self, chunk: Chunk, results: Sequence[ResultItem]) -> Iterator[str]:
        """A line for each row, with its line end."""

    def write(self, path: Path, chunks: Iterable[ClassifiedChunk]) -> None:
        errors = SURROGATEESCAPE_OR_REPLACE
        with path.open("w", encoding="utf-8", errors=errors, newline="") as file:
            file.write(self.header)
            for chunk, results in chunks:
                file.writelines(self.lines(chunk, results))

    def join(self, parts: Iterable[Path], path: Path) -> None:
        header = self.header.encode("utf-8", SURROGATEESCAPE_OR_REPLACE)
        with path.open("wb") as whole:
            whole.write(header)
            for part in parts:
                with part.open("rb") as file:
                    file.seek(len(header))
                    shutil.copyfileobj(file, whole)


class LinesOutput(TextOutput):
    """Label, score and text, separated by tabs. Each run of white space in a text is a space."""

    def lines(self, chunk: Chunk, results: Sequence[ResultItem]) -> Iterator[str]:
        for text, result in zip(chunk.texts, results, strict=True):
            shown = " ".join(text.split()) if isinstance(text, str) else ""
            if "error" in result:
                yield f"error\t{result['error']['code']}\t{shown}\n"
            else:
                yield f"{result['label']}\t{result['score']:.4f}\t{shown}\n"


class ResultsOutput(TextOutput):
    """Only the results, as a JSON object in each line, without the table's columns."""

    def lines(self, chunk: Chunk, results: Sequence[ResultItem]) -> Iterator[str]:
        return (json.dumps(result) + "\n" for result in results)


class CsvOutput(TextOutput):
    """Values with a separator, such as a comma. Lines end with LF."""

    def __init__(self, table: Table, columns: ResultColumns, separator: str) -> None:
        self._table = table
        self._columns = columns
        self._separator = separator
        self.header = self._line([*table.columns, *columns.names(table.columns)])

    def lines(self, chunk: Chunk, results: Sequence[ResultItem]) -> Iterator[str]:
        for cells, result in zip(self._table.cells(chunk.rows), results, strict=True):
            yield self._line([*map(_csv_cell, [*cells, *self._columns.values(result)])])

    def _line(self, cells: Sequence[Any]) -> str:
        buffer = _LineBuffer()
        csv.writer(buffer, delimiter=self._separator).writerow(cells)
        return buffer.line


class JsonlOutput(TextOutput):
    """A JSON object in each line. The labels' scores are an object within it."""

    def __init__(self, table: Table, columns: ResultColumns) -> None:
        self._table = table
        self._members = ["label", "score", "scores", *columns.members]
        self._names = _without_conflicts([*self._members, "error"], table.columns)

    def lines(self, chunk: Chunk, results: Sequence[ResultItem]) -> Iterator[str]:
        for row, result in zip(self._table.json_objects(chunk.rows), results, strict=True):
            values = [*map(result.get, self._members), _error(result)]
            added = json.dumps(dict(zip(self._names, values, strict=True)))
            # The row's members are copied as text, so that numbers keep all digits.
            members = row.strip()[1:-1].strip()
            yield "{" + (members and f"{members}, ") + f"{added[1:]}\n"


def _error(result: ResultItem) -> str | None:
    if "error" not in result:
        return None
    return f"{result['error']['code']}: {result['error']['message']}"


def _without_conflicts(names: Iterable[str], taken: Sequence[str]) -> list[str]:
    free = []
    for name in names:
        while name in taken:
            name = f"predicted_{name}"
        free.append(name)
    return free


class _LineBuffer:
    """The file to which ``csv`` writes a line.

    The line is written with CRLF, because ``csv`` then quotes cells that have CR or LF; here the
    end of the line becomes LF.
    """

    def write(self, line: str) -> None:
        self.line = line.removesuffix("\r\n") + "\n"


def _csv_cell(value: Any) -> Any:
    """JSON for the types that ``csv`` would write in Python's notation, and base64 for bytes."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return json_text(value) if isinstance(value, bool | dict | list) else value
