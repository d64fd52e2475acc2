"""The normalisation of tweets that tweetnlp uses for its topic models (Antypas et al. 2022).

It gives what ``get_preprocessor("tweet_topic")`` of tweetnlp 0.4 makes of a text: links become
``{{URL}}``, and users ``{@user@}``. tweetnlp finds links with the package urlextract, which takes
each name with a top-level domain for one, such as ``example.com``. Not as there, ``localhost`` and
numbers are no hosts, and a link is replaced where it stands, not also inside of longer ones.
``{{USERNAME}}`` is what the training data had for users who are not well known; a text that has it
keeps it.
"""

import re
from pathlib import Path

_TOP_LEVEL_DOMAINS = frozenset(
    Path(__file__).with_name("top_level_domains.txt").read_text(encoding="ascii").split()
)
_STOP = r"\s\"<>;|"  # ends a link on both sides
_LINK = re.compile(
    rf"(?<![^{_STOP}=\])}}({{\['`\\\x80-\U0010ffff])"
    r"(?:[a-z][a-z0-9+.\-]*://)?"
    r"(?:[a-z0-9\-]+\.)*?[a-z0-9](?:[a-z0-9\-]*[a-z0-9])?\.(?P<top>[a-z][a-z0-9\-]*)"
    rf"(?::\d+)?(?:(?:[/?#][^{_STOP}]*)|(?=['`)\]}}\\]|[.,:?/]?(?:[{_STOP}]|$)))",
    re.IGNORECASE,
)
# A link that stands in brackets or quotes ends before the last that closes them.
_CLOSING = {"(": ")", "[": "]", "{": "}", "'": "'", "`": "`"}
# A user needs a word before it, and ends with the last letter or digit before the next space.
_USER = re.compile(r"\b(\s*)(@\S+)\b")


def normalise_tweet_topic(text: str) -> str:
    """Normalise a tweet as for tweetnlp's topic models."""
    if "." in text:
        text = _LINK.sub(_link, text)
    if "@" in text:
        text = _USER.sub(r"\1{\2@}", text)
    return text


def _link(found: re.Match[str]) -> str:
    if found["top"].lower() not in _TOP_LEVEL_DOMAINS:
        return found[0]
    closing = _CLOSING.get(found.string[max(found.start() - 1, 0)])
    kept = found[0].rpartition(closing)[2] if closing and closing in found[0] else None
    return "{{URL}}" if kept is None else f"{{{{URL}}}}{closing}{kept}"
