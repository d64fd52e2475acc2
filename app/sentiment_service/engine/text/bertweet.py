"""The normalisation of tweets that BERTweet was trained with (Nguyen et al. 2020).

It gives what ``BertweetTokenizer(normalization=True)`` of transformers makes of a text before it
cuts words into pieces. These differences remain:

- The parts of a link or an e-mail address, and HTML tags, are recognised up to the lengths below.
  Without limits, the time would grow with the square of a text's length.
- ``&#xD800;`` and other halves of a surrogate pair become U+FFFD, because no text may hold them.
- ``&lt;s&gt;`` becomes ``<s>``, which the fast tokenizer takes for the special token.
"""

import json
from html.entities import name2codepoint
from pathlib import Path

# Not `re`: transformers uses this package, whose \w also matches combining marks, such as the vowel
# signs of Indian scripts, and joiners.
import regex

# BERTweet was trained with the names of the package emoji 0.6.0, and later versions renamed many
# (huggingface/transformers pull request 16941). So the names are fixed here.
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
