"""Text that cannot be encoded as UTF-8 because it has lone surrogates.

A lone surrogate is a byte that was not UTF-8 when it was read, or half of a surrogate pair.
"""

import codecs
import re

# What "surrogateescape" makes of a byte that is not UTF-8.
NOT_UTF8 = re.compile("[\udc80-\udcff]")


def well_formed(text: str) -> str:
    """The same text with U+FFFD for each lone surrogate."""
    return text.encode("utf-8", SURROGATEESCAPE_OR_REPLACE).decode("utf-8", "replace")


def _surrogateescape_or_replace(error: UnicodeError) -> tuple[str | bytes, int]:
    """Write a byte that was not UTF-8 unchanged, and U+FFFD for any other lone surrogate."""
    assert isinstance(error, UnicodeEncodeError)  # noqa: S101 (for mypy: only encoders use this)
    error.end = error.start + 1
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError:
        return "\ufffd".encode(), error.end


# For the parameter ``errors`` of open() and encode().
SURROGATEESCAPE_OR_REPLACE = "app.surrogateescape_or_replace"
codecs.register_error(SURROGATEESCAPE_OR_REPLACE, _surrogateescape_or_replace)
