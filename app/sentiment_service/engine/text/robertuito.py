"""The normalisation of tweets that RoBERTuito was trained with (Perez et al. 2022).

It gives what ``preprocess_tweet`` of pysentimiento 0.7 makes of a text for Spanish, with the names
of emoji that the package emoji 2.16 has. One difference remains: where a name depends on whether an
emoji is followed by a variation selector, it is the name with the selector.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

_TONES = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
_SELECTOR = "\ufe0f"
# Characters that are dropped, and those that become another one.
_DROPPED = "~£¥©°´¶·º×ا–—‘’•…™●☠☹☺♀♂⚰⛱⛹✈✓❤ー🕯🛰"  # noqa: RUF001
_CHANGED = {
    **dict.fromkeys("¨«»“”", '"'),
    "‼": "!",
    "€": "$",
    "☻": "😃",
    "♡": "❤\ufe0f",
    "♥": "❤\ufe0f",
}
_CHARACTERS = str.maketrans({**dict.fromkeys(_DROPPED, ""), **_CHANGED})
_TOP = "com|co|org|edu|gov|uk|net|ca|de|jp|fr|au|us|ru|ch|it|nl|se|no|es|mil|iq|io|ac|ly|sm"

_HASHTAG = re.compile(r"\B#(\w*[a-zA-Z]\w*)")
_CAPITALS = re.compile(r"[A-Z]+")
_USER = re.compile(r"@\w{0,15}", re.ASCII)
# A link at the start of a text is not found as a whole: something must stand before it.
_LINK = re.compile(
    r"(?<=[^a-zA-Z0-9])(?:https?://|[a-zA-Z0-9]+\.|\b)"
    rf"(?:\w+\.){{1,5}}(?:{_TOP})(?:/[a-zA-Z0-9]+)*"
)
_REPEATED = re.compile(r"(.)\1\1+")
_BETWEEN_BARS = re.compile(r"\|([^|]+)\|")
# Where an emoji may begin; a class of just their first characters would take ten times as long.
_FIRST = re.compile(r"[^\x00-\xff]|[©®]|[0-9#*](?=\u20e3)")
_LAUGHTER = re.compile(r"[ja]{2,}aj[ja]+")


def normalise_robertuito(text: str) -> str:
    """Normalise a tweet as for RoBERTuito.

    Users become ``@usuario``, links ``url``, ``#MuyBien`` becomes ``hashtag muy bien``, emoji their
    Spanish names between two words ``emoji``, and laughter ``jaja``. A character comes three times
    in a row at most.
    """
    if "#" in text:
        text = _HASHTAG.sub(_hashtag, text)
    if not text.isascii() or "~" in text:
        text = text.translate(_CHARACTERS)
    if "@" in text:
        text = _USER.sub("@usuario", text)
    if "." in text:
        text = _LINK.sub("url", text)
    text = _REPEATED.sub(r"\1\1\1", text)
    if not text.isascii():
        text = "".join(_named(text.replace(_SELECTOR, "")))
    if "|" in text:
        text = _BETWEEN_BARS.sub(lambda bars: f" emoji {bars[1].replace('_', ' ')} emoji ", text)
    return _LAUGHTER.sub("jaja", text).strip()


def _hashtag(tag: re.Match[str]) -> str:
    return f"hashtag {_CAPITALS.sub(lambda run: f' {run[0]}', tag[1]).strip().lower()}"


def _named(text: str) -> Iterator[str]:
    """The parts of the text, with each emoji as its name between bars. The longest emoji wins."""
    end = 0
    for found in _FIRST.finditer(text):
        start = found.start()
        if start < end:
            continue
        for length in _LENGTHS.get(found[0], ()):
            if name := _EMOJI.get(text[start : start + length]):
                yield f"{text[end:start]}|{name}|"
                end = start + length
                break
    yield text[end:]


def _emoji() -> dict[str, str]:
    """The name of each emoji. Those whose names end with + in the file have tones of skin, too."""
    file = Path(__file__).with_name("emoji_names_spanish.json")
    names: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    for emoji, name in list(names.items()):
        if name.endswith("+"):
            names[emoji] = name = name[:-1]
            names |= {f"{emoji[0]}{tone}{emoji[1:]}": f"{name}_{names[tone]}" for tone in _TONES}
    return names


_EMOJI = _emoji()
# By the first character of an emoji: how long those are that begin with it, the longest first.
_LENGTHS: dict[str, list[int]] = {}
for _one in sorted(_EMOJI, key=len, reverse=True):
    if len(_one) not in (lengths := _LENGTHS.setdefault(_one[0], [])):
        lengths.append(len(_one))
