"""Text normalisation that a checkpoint was trained with."""

from typing import Literal

Preprocessing = Literal["tweet", "none"]


def normalise_tweet(text: str) -> str:
    """Replace user names by ``@user`` and links by ``http``.

    The same rule as the ``preprocess`` function on the cardiffnlp model cards
    (Barbieri et al. 2020, TweetEval): the text is split on single spaces only, so
    newlines, tabs and runs of spaces survive, and a token is replaced only when its
    very first characters say so (``(http://…`` and ``HTTP://…`` stay as they are).
    """
    return " ".join(_normalise_token(token) for token in text.split(" "))


def _normalise_token(token: str) -> str:
    if token.startswith("@") and len(token) > 1:
        return "@user"
    if token.startswith("http"):
        return "http"
    return token


def preprocess(text: str, preprocessing: Preprocessing) -> str:
    """Apply the normalisation that the bundle's manifest names."""
    return normalise_tweet(text) if preprocessing == "tweet" else text
