"""What a model's labels say of its results."""

from collections.abc import Iterable

POLES = frozenset({"negative", "positive"})


def is_sentiment(labels: Iterable[str]) -> bool:
    """Whether the labels are negative and positive, with or without neutral: results have polarity.

    Export gives these names to every checkpoint that is known to be one of sentiment.
    """
    return {*labels} - {"neutral"} == POLES
