"""Reads labelled texts: TSV without a header, or the tables that ``sentiment classify`` reads."""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Self

from sentiment_service.engine.text.input_tokenizer import VISIBLE
from sentiment_service.errors import ServiceError, UserError
from sentiment_service.files.csv_table import rows_without_header
from sentiment_service.files.formats import open_table
from sentiment_service.files.results import column_index
from sentiment_service.files.table import READ, READ_NAMES, TextOrError, check_is_file
from sentiment_service.files.text_files import NOT_UTF8, PLAIN, FileOptions, inner_suffix
from sentiment_service.settings.sources import nearest

from sentiment_export.checkpoint.config import known_spellings

LABELLED = (
    "labelled texts: CSV, JSON, JSONL, Parquet or .xlsx with the columns 'text' and 'label', or "
    "TSV without a header, with the columns group, label and text"
)
# These are not where they are used, because --help does not need the libraries that compute.
MAX_ACCURACY_LOSS = 0.01  # by how much a variant's scores may be lower than those of fp32
MAX_TRAINED_TOKENS = 96  # special tokens included; a longer text is cut, or sooner by the base
# With fewer texts, the temperature would depend more on the choice of the texts than on the model.
LEAST_TEXTS = 100
TABLES = tuple(ending for ending in READ if not ending.startswith(".txt"))
LONGEST_SHOWN = 40  # characters of a label; what is longer is probably a text
MOST_SHOWN = 100  # labels
Labels = tuple[str, ...]  # of one text, in logit order; exactly one unless the model is multi-label
Row = tuple[str, str, Any, TextOrError]  # where it is, its group, its label as written, its text


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text; ``group`` is a language, a domain or a data set's name, or empty."""

    group: str
    labels: Labels
    text: str

    @property
    def label(self) -> str:
        (label,) = self.labels
        return label


@dataclass(frozen=True, slots=True)
class Columns:
    """How a file of labelled texts is read: its columns by name, if it is a table, and ``file``."""

    text: str | None = None
    label: str | None = None
    group: str | None = None
    file: FileOptions = PLAIN

    @property
    def are_named(self) -> bool:
        return any((self.text, self.label, self.group))

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser, *, groups: bool = True) -> None:
        """Add the flags that ``of`` reads, and those of ``FileOptions``."""
        parser.add_argument("--column", metavar="NAME", help="column of the texts (default: text)")
        parser.add_argument(
            "--label-column",
            metavar="NAME",
            help="column of the labels (default: label); those of a multi-label model are "
            "separated by commas, or a list, which in CSV is JSON",
        )
        if groups:
            parser.add_argument(
                "--group-column",
                metavar="NAME",
                help="column of groups, such as languages, that are also scored one by one",
            )
        FileOptions.add_arguments(parser)

    @classmethod
    def of(cls, options: argparse.Namespace) -> Self:
        group = getattr(options, "group_column", None)
        return cls(options.column, options.label_column, group, FileOptions.of(options))


BY_DEFAULT = Columns()


def read_examples(
    path: Path,
    labels: list[str],
    columns: Columns = BY_DEFAULT,
    *,
    multi_label: bool = False,
    least: int = 1,
) -> list[Example]:
    """Read a labelled file: a table, or TSV in which a byte order mark at the start is ignored.

    A label may be written in upper or lower case, in the checkpoint's spelling (``POS``) or by its
    position (``LABEL_2``); the examples have the spelling of ``labels``. A text of a multi-label
    model has any number of them, also none.
    """
    spellings = known_spellings(labels)
    examples: list[Example] = []
    faults: list[str] = []
    for where, group, written, text in _rows(path, columns):
        try:
            names = _names(written, labels, spellings, multi_label=multi_label)
            examples.append(Example(group, names, _checked(text)))
        except UserError as error:
            faults.append(f"{where}: {error}")
    if faults:
        more = f"; {len(faults) - 1} more rows cannot be used" if len(faults) > 1 else ""
        raise UserError(faults[0] + more)
    if not examples:
        raise UserError(f"{path} holds no labelled texts")
    if len(examples) < least:
        raise UserError(
            f"{path} holds {len(examples)} labelled texts; calibration needs at least {least}"
        )
    return examples


def read_texts(
    path: Path, column: str | None = None, file_options: FileOptions = PLAIN
) -> tuple[list[str], int, bool]:
    """The texts of a file that ``classify`` reads, or of TSV with group, label and text.

    How many others the service would refuse, and whether there are labels, come after them.
    """
    if not path.name.lower().endswith(READ):
        raise UserError(f"{path} holds texts only if its name ends in {READ_NAMES}")
    _check_file(path, file_options)
    first: Sequence[str] = ("text",)
    if column is None and inner_suffix(path) == ".tsv":
        first = next((row.cells for row in rows_without_header(path, 3, file_options)), ())
    if "text" not in first:
        found: Iterable[TextOrError] = (row[3] for row in _rows_of_tsv(path, file_options))
        labelled = True
    else:
        table = open_table(path, column or "text", file_options)
        found, labelled = chain.from_iterable(c.texts for c in table.chunks()), False
    texts, refused = [], 0
    for text in found:
        try:
            texts.append(_checked(text))
        except UserError:
            refused += 1
    return texts, refused, labelled or "label" in table.columns


def _rows(path: Path, columns: Columns) -> Iterator[Row]:
    is_table = path.name.lower().endswith(TABLES)
    if columns.are_named and not is_table:
        raise UserError(f"{path} has no named columns: it does not end in {' '.join(TABLES[:8])}")
    _check_file(path, columns.file)
    if columns.are_named or (is_table and inner_suffix(path) != ".tsv"):
        return _rows_of_table(path, columns)
    return _rows_of_tsv(path, columns.file)


def _check_file(path: Path, file_options: FileOptions) -> None:
    check_is_file(path)
    if fault := file_options.fault(path):
        raise UserError(fault)


def _rows_of_table(path: Path, columns: Columns) -> Iterator[Row]:
    table = open_table(path, columns.text or "text", columns.file)
    label, number = columns.label or "label", 0
    for chunk in table.chunks():
        if not number:
            column_index(label, table.columns, path, "--label-column")
            if columns.group is not None:
                column_index(columns.group, table.columns, path, "--group-column")
        for record, text in zip(table.records(chunk.rows), chunk.texts, strict=True):
            number += 1
            if record and all(value is None for value in record.values()):
                continue  # a blank row of a workbook
            group = None if columns.group is None else record.get(columns.group)
            name = "" if _is_gap(group) else str(group)
            yield f"{path}, row {number}", name, record.get(label), text


def _rows_of_tsv(path: Path, file_options: FileOptions) -> Iterator[Row]:
    for row in rows_without_header(path, 3, file_options):
        if row.number == 1 and {"text", "label"} <= {*row.cells}:
            yield from _rows_of_table(path, Columns(file=file_options))
            return
        if len(row.cells) != 3:
            raise UserError(
                f"{path}:{row.number}: expected group<TAB>label<TAB>text, found {len(row.cells)} "
                "columns; of TSV with a header, name the columns (--column, --label-column)"
            )
        group, written, text = row.cells
        yield f"{path}:{row.number}", group, written, text


def _is_gap(value: Any) -> bool:
    """Whether it is no value, or the NaN with which pandas fills gaps."""
    return value is None or bool(value != value)


def _checked(text: TextOrError) -> str:
    if isinstance(text, ServiceError):
        raise UserError(text.detail)
    if "\0" in text or not VISIBLE.search(text):  # the service refuses it
        raise UserError("the text is blank or holds a NUL character")
    if NOT_UTF8.search(text):
        raise UserError("the text is not UTF-8, or not of --encoding")
    return text


def _names(
    written: Any, labels: list[str], spellings: dict[str, str], *, multi_label: bool
) -> Labels:
    """The labels that a row means, in logit order."""
    if _is_gap(written) or not (multi_label or str(written).strip()):
        raise UserError("the row has no label")
    if multi_label and str(written) not in labels and str(written).startswith("["):
        with suppress(ValueError, RecursionError):  # ``classify`` writes a list into CSV so
            written = json.loads(str(written))
    if isinstance(written, list):
        names = [str(name).strip() for name in written]
    elif multi_label and str(written) not in labels:
        names = [name.strip() for name in str(written).split(",") if name.strip()]
    else:
        names = [str(written).strip()]
    if not multi_label and len(names) != 1:
        raise UserError(f"the model gives each text one label, but the row has {len(names)}")
    meant = {name: name if name in labels else spellings.get(name.lower()) for name in names}
    if unknown := [name for name, label in meant.items() if label is None]:
        name, near = unknown[0], nearest(unknown[0], labels)
        shown = repr(name) if len(name) <= LONGEST_SHOWN else f"of {len(name)} characters"
        known = ", ".join(labels[:MOST_SHOWN]) + (" …" if len(labels) > MOST_SHOWN else "")
        raise UserError(
            f"label {shown} is not one of the model's: {known}{near}, or their positions, "
            "LABEL_0, LABEL_1 …"
        )
    return tuple(label for label in labels if label in meant.values())
