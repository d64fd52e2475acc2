"""Reads labelled texts: TSV without a header, ``group<TAB>label<TAB>text``."""

from dataclasses import dataclass
from pathlib import Path

from app.engine.text.input_tokenizer import VISIBLE
from app.errors import UserError
from model_export.checkpoint.labels import known_spellings

# By how much a variant's scores on labelled texts may be lower than those of fp32. It is here and
# not in accuracy_gate, because --help does not need the libraries that compute scores.
MAX_ACCURACY_LOSS = 0.01


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled text; ``group`` is a language, a domain or a data set's name."""

    group: str
    label: str
    text: str


def read_examples(path: Path, labels: list[str]) -> list[Example]:
    """Read a labelled file. A byte order mark at its start is ignored.

    A label may be written in upper or lower case, in the checkpoint's spelling (``POS``) or by its
    position (``LABEL_2``); the examples have the spelling of ``labels``.

    Raises:
        UserError: the file cannot be read or is empty, or a row does not have three columns, its
            label is not one of ``labels``, or the service would refuse its text; the message names
            the row.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read {path} as UTF-8 text: {error}") from error
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; give a TSV file of labelled texts"
        ) from error
    spellings = known_spellings(labels)
    examples = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        columns = line.rstrip("\r").split("\t")
        if len(columns) != 3:
            raise UserError(
                f"{path}:{number}: expected group<TAB>label<TAB>text, found {len(columns)} columns"
            )
        group, written, text = columns
        label = written if written in labels else spellings.get(written.lower())
        if label is None:
            accepted = ", ".join(labels)
            raise UserError(
                f"{path}:{number}: label {written!r} is not one of the model's: {accepted}"
            )
        if "\0" in text or not VISIBLE.search(text):  # the service refuses it
            raise UserError(f"{path}:{number}: the text is blank or holds a NUL character")
        examples.append(Example(group, label, text))
    if not examples:
        raise UserError(f"{path} holds no labelled texts")
    return examples
