"""Which texts can be tokenised, and the normalisation that a checkpoint was trained with."""

import re
from typing import Literal

from app.errors import EmptyText, InvalidRequest

Preprocessing = Literal["tweet", "bertweet", "none"]

# A visible character: neither white space nor a control or format character (Unicode's categories
# Cc, and Cf of the basic plane).
VISIBLE = re.compile(
    r"[^\s\x00-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e"
    r"\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)

# A token begins at the start of the text or after a space, and ends before the next space.
_USER_OR_LINK = re.compile(r"(?<![^ ])(?:@[^ ]+|http[^ ]*)")


def normalise_tweet(text: str) -> str:
    """Replace user names by ``@user`` and links by ``http``.

    This is the rule of the ``preprocess`` function on the cardiffnlp model cards
    (Barbieri et al. 2020, TweetEval). The text is split on single spaces only, so
    newlines, tabs and runs of spaces stay. A token is replaced only if it begins with
    ``@`` or ``http``: ``(http://…`` and ``HTTP://…`` stay as they are.
    """
    if "@" not in text and "http" not in text:  # most texts; the search below takes longer
        return text
    return _USER_OR_LINK.sub(lambda token: "@user" if token[0][0] == "@" else "http", text)


def preprocess(text: str, preprocessing: Preprocessing) -> str:
    """Apply the normalisation that the bundle's manifest names."""
    if preprocessing == "tweet":
        return normalise_tweet(text)
    if preprocessing == "bertweet":
        # Imported here because its patterns take longer to compile than all of this package.
        from app.engine.text.bertweet import normalise_bertweet

        return normalise_bertweet(text)
    return text


def fault(text: str, name: str = "the text") -> EmptyText | InvalidRequest | None:
    """The reason why a text cannot be tokenised, or None if it can. Errors call it ``name``."""
    if "\0" in text:
        return InvalidRequest(f"{name} holds a NUL character (U+0000); remove it")
    if not VISIBLE.search(text):
        return EmptyText(f"{name} is empty or blank; send at least one visible character")
    try:
        text.encode()  # before the normalisation, which may drop the ill-formed part
    except UnicodeEncodeError:
        return InvalidRequest(
            f"{name} holds half of a surrogate pair, so it is not well-formed Unicode"
        )
    return None
