"""What models were trained with in place of tweets: users, links and emoji are replaced."""

import json
import re
from collections.abc import Callable, Iterator
from html.entities import name2codepoint
from pathlib import Path

# Not `re`: transformers uses this package, whose \w also matches combining marks, such as the vowel
# signs of Indian scripts, and joiners.
import regex

# BERTweet (Nguyen et al. 2020). It was trained with the names of the package emoji 0.6.0, and later
# versions renamed many (huggingface/transformers pull request 16941). So the names are fixed here.
EMOJI_NAMES: dict[str, str] = json.loads(
    Path(__file__).with_name("emoji_names.json").read_text(encoding="utf-8")
)
_PLAIN_SIGNS = {"\u2019": "'", "\u2026": "..."}
# What a token of one character becomes. A variation selector is removed.
_CHARACTERS = {c: f":{name}:" for c, name in EMOJI_NAMES.items()} | _PLAIN_SIGNS | {"\ufe0f": ""}

# A "+" after a limit means that the match is never shortened again.
_HOST = r"[a-z0-9.\-]"
_LABEL = r"[a-z0-9]{1,100}+"
_TOP = r"\.[a-z]{2,13}"
_SHORT = "{0,300}"
_BRACKETS = (
    rf"\([^\s()]{_SHORT}?\([^\s()]+\)[^\s()]{_SHORT}?\)"  # with another pair inside
    rf"|\(\S\S{_SHORT}?\)"
)
_LINK = (
    rf"(?:https?:(?:/{{1,3}}|[a-z0-9%])|(?={_HOST}{{2,100}}+/){_HOST}+{_TOP}/)"
    rf"(?:[^\s()<>{{}}\[\]]|{_BRACKETS})+"
    rf"(?:{_BRACKETS}|[^\s`!()\[\]{{}};:'\".,<>?\u00ab\u00bb\u201c\u201d\u2018\u2019])"
)
_BARE_HOST = rf"(?<!@){_LABEL}(?:[.\-]{_LABEL}){{0,10}}{_TOP}\b/?(?!@)"
_GAP = r"[ *\-.)]*"
_PHONE_NUMBER = rf"(?:\+?[01]{_GAP})?(?:\(?\d{{3}}{_GAP})?\d{{3}}{_GAP}\d{{4}}"
_EYES, _NOSE, _MOUTH = "[:;=8]", r"[\-o*']?", r"[()\[\]{}dp/:@|\\]"
_EMOTICON = rf"[<>]?{_EYES}{_NOSE}{_MOUTH}|{_MOUTH}{_NOSE}{_EYES}[<>]?|<3"
_EMAIL = r"[\w.+\-]{1,100}+@[\w\-]{1,100}+\.(?:[\w\-]\.?)+[\w\-]"
_LETTER = r"[^\W\d_]"
# The first alternative that matches is the token.
_TOKEN = regex.compile(
    "|".join(
        (
            _LINK,
            _BARE_HOST,
            _PHONE_NUMBER,
            _EMOTICON,
            r"(?-i:<[^>\s]{1,300}+>)",
            r"-+>|<-+",
            r"@\w+",
            r"#+\w+[\w'\-]*\w+",
            _EMAIL,
            rf"{_LETTER}(?:{_LETTER}|['\-_])+{_LETTER}",
            r"[+\-]?\d+[,/.:\-]\d+[+\-]?",
            r"\w+",
            r"\.(?:\s*\.)+",
            r"\S",
        )
    ),
    regex.IGNORECASE,
)
_REPEATED = regex.compile(r"([^a-zA-Z0-9])\1{3,}")
_ENTITY = regex.compile(r"&(#?)(x?)([^&;\s]+);")
_SPECIAL_TOKEN = regex.compile("(<(?:/?s|pad|unk|mask)>)")

# Applied one after the other, to the tokens joined by spaces.
_REPLACEMENTS = (
    ("cannot ", "can not "),
    ("n't ", " n't "),
    ("n 't ", " n't "),
    ("ca n't", "can't"),
    ("ai n't", "ain't"),
    *((f"{ending} ", f" {ending} ") for ending in ("'m", "'re", "'s", "'ll", "'d", "'ve")),
    (" p . m .", "  p.m."),
    (" p . m ", " p.m "),
    (" a . m .", " a.m."),
    (" a . m ", " a.m "),
)


def normalise_bertweet(text: str) -> str:
    """Cut a text into words as for BERTweet, with one space between them.

    Users become ``@USER``, links ``HTTPURL``, emoji their names such as ``:red_heart:``, and
    contractions two words: ``don't`` becomes ``do n't``. Special tokens stay as they are.

    It gives what ``BertweetTokenizer(normalization=True)`` of transformers makes of a text before
    it cuts words into pieces. These differences remain:

    - The parts of a link or an e-mail address, and HTML tags, are recognised up to the lengths
      above. Without limits, the time would grow with the square of a text's length.
    - ``&#xD800;`` and other halves of a surrogate pair become U+FFFD, as no text may hold them.
    - ``&lt;s&gt;`` becomes ``<s>``, which the fast tokenizer takes for the special token.
    """
    if "<" not in text:  # most texts
        return _normalised(text)
    parts = _SPECIAL_TOKEN.split(text)
    parts[::2] = map(_normalised, parts[::2])  # between them are the special tokens
    return " ".join(filter(None, parts))


def _normalised(text: str) -> str:
    for sign, plain in _PLAIN_SIGNS.items():
        text = text.replace(sign, plain)
    if "&" in text:
        text = _ENTITY.sub(_character, text)
    text = _REPEATED.sub(r"\1\1\1", text)
    joined = " ".join(map(_word, _TOKEN.findall(text)))
    for old, new in _REPLACEMENTS:
        joined = joined.replace(old, new)
    return " ".join(joined.split())


def _word(token: str) -> str:
    if token[0] == "@":
        return "@USER"
    if token[0] in "hHwW" and token[:4].lower().startswith(("http", "www")):
        return "HTTPURL"
    return _CHARACTERS.get(token, token)


def _character(entity: regex.Match[str]) -> str:
    """The character that an HTML entity stands for; nothing if there is none.

    ``&xe9;`` without ``#`` is read as a number, too. Numbers from 128 to 159 are of Windows-1252.
    """
    number_sign, hexadecimal, body = entity.groups()
    if not number_sign and not hexadecimal:
        return chr(name2codepoint[body]) if body in name2codepoint else ""
    try:
        number = int(body, 16 if hexadecimal else 10)
        if 0x80 <= number <= 0x9F:
            return bytes([number]).decode("cp1252")
        return "\ufffd" if 0xD800 <= number <= 0xDFFF else chr(number)
    except (ValueError, OverflowError):
        return ""


# RoBERTuito (Perez et al. 2022).
_TONES = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
_SELECTORS = dict.fromkeys((0xFE0E, 0xFE0F))
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
_ROBERTUITO_CHARACTERS = str.maketrans({**dict.fromkeys(_DROPPED, ""), **_CHANGED})
_ROBERTUITO_TOP = (
    "com|co|org|edu|gov|uk|net|ca|de|jp|fr|au|us|ru|ch|it|nl|se|no|es|mil|iq|io|ac|ly|sm"
)

_HASHTAG = re.compile(r"\B#(\w*[a-zA-Z]\w*)")
_CAPITALS = re.compile(r"[A-Z]+")
_ROBERTUITO_USER = re.compile(r"@\w{0,15}", re.ASCII)
# A link at the start of a text is not found as a whole: something must stand before it.
_ROBERTUITO_LINK = re.compile(
    r"(?<=[^a-zA-Z0-9])(?:https?://|[a-zA-Z0-9]+\.|\b)"
    rf"(?:\w+\.){{1,5}}(?:{_ROBERTUITO_TOP})(?:/[a-zA-Z0-9]+)*"
)
_ROBERTUITO_REPEATED = re.compile(r"(.)\1\1+")
_BETWEEN_BARS = re.compile(r"\|([^|]+)\|")
# Where an emoji may begin; a class of just their first characters would take ten times as long.
_FIRST = re.compile(r"[^\x00-\xff]|[©®]|[0-9#*](?=\u20e3)")
_LAUGHTER = re.compile(r"[ja]{2,}aj[ja]+")


def normalise_robertuito(text: str) -> str:
    """Normalise a tweet as for RoBERTuito.

    Users become ``@usuario``, links ``url``, ``#MuyBien`` becomes ``hashtag muy bien``, emoji their
    Spanish names between two words ``emoji``, and laughter ``jaja``. A character comes three times
    in a row at most.

    It gives what ``preprocess_tweet`` of pysentimiento 0.7 makes of a text for Spanish, with the
    names of emoji that the package emoji 2.16 has. Two differences remain: where a name depends on
    whether an emoji is followed by a variation selector, it is the name with the selector; and a
    tone of skin is the end of the name of who faces right, too.
    """
    if "#" in text:
        text = _HASHTAG.sub(_hashtag, text)
    if not text.isascii() or "~" in text:
        text = text.translate(_ROBERTUITO_CHARACTERS)
    if "@" in text:
        text = _ROBERTUITO_USER.sub("@usuario", text)
    if "." in text:
        text = _ROBERTUITO_LINK.sub("url", text)
    text = _ROBERTUITO_REPEATED.sub(r"\1\1\1", text)
    if not text.isascii():
        text = "".join(_named(text.translate(_SELECTORS)))
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


# tweetnlp's topic models (Antypas et al. 2022).
_TOP_LEVEL_DOMAINS = frozenset(
    Path(__file__).with_name("top_level_domains.txt").read_text(encoding="ascii").split()
)
_STOP = r" \t-\r\"<>;|"  # ends a link on both sides
_SCHEME = r"[a-z][a-z0-9+.\-]*://"
_TOPIC_LINK = re.compile(
    rf"(?:(?<![^{_STOP}=\])}}({{\['`\\\x80-\U0010ffff])(?:{_SCHEME})?|(?<=[:/]){_SCHEME})"
    r"(?:[a-z0-9\-]+\.)*?[a-z0-9](?:[a-z0-9\-]*[a-z0-9])?\.(?P<top>[a-z][a-z0-9\-]*)"
    rf"(?::\d+)?(?:(?:[/?#][^{_STOP}]*)|(?=['`)\]}}\\]|[.,:?/]?(?:[{_STOP}]|$)))",
    re.IGNORECASE,
)
# A link that stands in brackets or quotes ends before the last that closes them.
_CLOSING = {"(": ")", "[": "]", "{": "}", "'": "'", "`": "`"}
# A user needs a word before it, and ends with the last letter or digit before the next space.
_TOPIC_USER = re.compile(r"\b(\s*)(@\S+)\b")


def normalise_tweet_topic(text: str) -> str:
    """Normalise a tweet as for tweetnlp's topic models.

    It gives what ``get_preprocessor("tweet_topic")`` of tweetnlp 0.4 makes of a text: links become
    ``{{URL}}``, and users ``{@user@}``. tweetnlp finds links with the package urlextract, which
    takes each name with a top-level domain for one, such as ``example.com``. Not as there,
    ``localhost``, numbers and domains outside of ASCII are no hosts, and a link is replaced where
    it stands, not also inside of longer ones. ``{{USERNAME}}`` is what the training data had for
    users who are not well known; a text that has it keeps it.
    """
    if "." in text:
        text = _TOPIC_LINK.sub(_link, text)
    if "@" in text:
        text = _TOPIC_USER.sub(r"\1{\2@}", text)
    return text


def _link(found: re.Match[str]) -> str:
    if found["top"].lower() not in _TOP_LEVEL_DOMAINS:
        return found[0]
    closing = _CLOSING.get(found.string[max(found.start() - 1, 0)])
    kept = found[0].rpartition(closing)[2] if closing and closing in found[0] else None
    return "{{URL}}" if kept is None else f"{{{{URL}}}}{closing}{kept}"


NORMALISERS: dict[str, Callable[[str], str]] = {
    "bertweet": normalise_bertweet,
    "robertuito": normalise_robertuito,
    "tweet_topic": normalise_tweet_topic,
}
