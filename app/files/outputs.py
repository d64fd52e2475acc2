"""Files of results: every column of the table, then what became of its text."""

import csv
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.files.tables import Chunk, Table
from app.files.unicode import AS_IT_CAME

Outcome = Mapping[str, Any]  # an item of the HTTP answer's ``results``


class Output(ABC):
    """How chunks become files, ``parts``, and how those become one."""

    @abstractmethod
    def write(self, path: Path, chunk: Chunk, outcomes: Sequence[Outcome]) -> None:
        """Write a part."""

    @abstractmethod
    def join(self, parts: Iterable[Path], path: Path) -> None:
        """Write the whole."""


class TextOutput(Output):
    """Lines; the parts are put one after another."""

    header = ""

    @abstractmethod
    def lines(self, chunk: Chunk, outcomes: Sequence[Outcome]) -> Iterator[str]:
        """What is written of the chunk."""

    def write(self, path: Path, chunk: Chunk, outcomes: Sequence[Outcome]) -> None:
        with path.open("w", encoding="utf-8", errors=AS_IT_CAME, newline="") as file:
            file.writelines(self.lines(chunk, outcomes))

    def join(self, parts: Iterable[Path], path: Path) -> None:
        with path.open("wb") as whole:
            whole.write(self.header.encode("utf-8", AS_IT_CAME))
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, whole)


class LinesOutput(TextOutput):
    """Label, score and text, with tabs between them and none within."""

    def lines(self, chunk: Chunk, outcomes: Sequence[Outcome]) -> Iterator[str]:
        for text, outcome in zip(chunk.texts, outcomes, strict=True):
            shown = " ".join(text.split()) if isinstance(text, str) else ""
            if "error" in outcome:
                yield f"error\t{outcome['error']['code']}\t{shown}\n"
            else:
                yield f"{outcome['label']}\t{outcome['score']:.4f}\t{shown}\n"


class ResultsOutput(TextOutput):
    """The items of the HTTP answer's ``results``, without the table's columns."""

    def lines(self, chunk: Chunk, outcomes: Sequence[Outcome]) -> Iterator[str]:
        return (json.dumps(outcome) + "\n" for outcome in outcomes)


class CsvOutput(TextOutput):
    """Comma-separated values; lines end as on Unix."""

    def __init__(self, table: Table, labels: Sequence[str]) -> None:
        self._table = table
        self._labels = labels
        self.header = _csv_line([*table.columns, *result_columns(table, labels)])

    def lines(self, chunk: Chunk, outcomes: Sequence[Outcome]) -> Iterator[str]:
        for cells, outcome in zip(self._table.cells(chunk.rows), outcomes, strict=True):
            yield _csv_line([*map(_cell, cells), *values(outcome, self._labels)])


class JsonlOutput(TextOutput):
    """JSON objects; the scores are an object of their own."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._names = _free(["label", "score", "scores", "error"], table.columns)

    def lines(self, chunk: Chunk, outcomes: Sequence[Outcome]) -> Iterator[str]:
        for given, outcome in zip(self._table.objects(chunk.rows), outcomes, strict=True):
            found = (outcome.get("label"), outcome.get("score"), outcome.get("scores"))
            ours = json.dumps(dict(zip(self._names, (*found, _error(outcome)), strict=True)))
            members = given.strip()[1:-1].strip()
            yield "{" + (members and f"{members}, ") + f"{ours[1:]}\n"


def result_columns(table: Table, labels: Sequence[str]) -> list[str]:
    """The names of what ``values`` gives; a name that the table has, too, gets a prefix."""
    scores = [f"score_{label}" for label in labels]
    return _free(["label", "score", *scores, "error"], table.columns)


def values(outcome: Outcome, labels: Sequence[str]) -> list[Any]:
    """Label, score, each label's score, and the error; None where there is none."""
    if "error" in outcome:
        return [None, None, *[None] * len(labels), _error(outcome)]
    scores = [outcome["scores"].get(label) for label in labels]
    return [outcome["label"], outcome["score"], *scores, None]


def _error(outcome: Outcome) -> str | None:
    if "error" not in outcome:
        return None
    return f"{outcome['error']['code']}: {outcome['error']['message']}"


def _free(names: Iterable[str], taken: Sequence[str]) -> list[str]:
    free = []
    for name in names:
        while name in taken:
            name = f"predicted_{name}"
        free.append(name)
    return free


class _OneLine:
    """Takes a line from ``csv``, which quotes what ends lines only if it ends lines with CRLF."""

    def write(self, line: str) -> None:
        self.line = line.removesuffix("\r\n") + "\n"


def _csv_line(cells: Sequence[Any]) -> str:
    taker = _OneLine()
    csv.writer(taker).writerow(cells)
    return taker.line


def _cell(value: Any) -> Any:
    """What has no form of its own in a cell, as JSON."""
    if isinstance(value, bool | dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return value
