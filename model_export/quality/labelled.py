"""Reads labelled texts: TSV without a header, ``group<TAB>label<TAB>text``."""

from dataclasses import dataclass
from pathlib import Path

from app.errors import UserError


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text; ``group`` is a language, a domain or a data set's name."""

    group: str
    label: str
    text: str


def read_examples(path: Path, labels: list[str]) -> list[Example]:
    """Read a labelled file.

    Raises:
        UserError: the file cannot be read or is empty, or a row does not have three columns or
            its label is not one of ``labels``; the message names the row.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path} as UTF-8 text: {error}") from error
    examples = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        columns = line.rstrip("\r").split("\t")
        if len(columns) != 3:
            raise UserError(
                f"{path}:{number}: expected group<TAB>label<TAB>text, found {len(columns)} columns"
            )
        example = Example(*columns)
        if example.label not in labels:
            accepted = ", ".join(labels)
            raise UserError(
                f"{path}:{number}: label {example.label!r} is not one of the model's: {accepted}"
            )
        examples.append(example)
    if not examples:
        raise UserError(f"{path} holds no labelled texts")
    return examples
