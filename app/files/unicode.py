"""Text that is not well-formed: bytes that are not UTF-8, and halves of surrogate pairs."""

import codecs
from typing import Any


def well_formed(value: Any) -> Any:
    """The same text, also within a dict or list, with U+FFFD for what is not well-formed."""
    if isinstance(value, str):
        return value.encode("utf-8", AS_IT_CAME).decode("utf-8", "replace")
    if isinstance(value, dict):
        return {well_formed(key): well_formed(one) for key, one in value.items()}
    return [well_formed(one) for one in value] if isinstance(value, list) else value


def _as_it_came(error: UnicodeError) -> tuple[str | bytes, int]:
    """A byte that was not UTF-8 leaves as it came; another lone surrogate cannot: U+FFFD."""
    assert isinstance(error, UnicodeEncodeError)  # noqa: S101 (for mypy: nothing decodes with it)
    error.end = error.start + 1
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError:
        return "\ufffd".encode(), error.end


AS_IT_CAME = "app.as_it_came"
codecs.register_error(AS_IT_CAME, _as_it_came)
