"""POST /classify, POST /explain and POST /tokenize: texts, fields and their types."""

import json
from typing import Any

from tests.replay.raw_request import GOOD, post, post_value

LONG = "It was a long day and nothing went wrong. " * 54

TEXTS = {
    "plain": GOOD,
    "empty": "",
    "space": " ",
    "no-break space": "\xa0",
    "zero-width space": "\u200b",
    "BOM": "\ufeff",
    "soft hyphen": "\xad",
    "word joiner": "\u2060",
    "NUL": "\x00",
    "NUL inside": "love\x00it",
    "control characters": "\x01\x02\x1f",
    "bell inside": "love\x07 it",
    "DEL": "\x7f",
    "C1 controls": "good\x85bad\x9f",
    "tab and line feed": "love\tit\nso\r\nmuch",
    "line separators": "a\u2028b\u2029c",
    "emoji": "😀",
    "emoji sad": "this is 😭😭😭",
    "emoji with skin tone": "👍🏽",
    "emoji family with ZWJ": "👨\u200d👩\u200d👧\u200d👦 love",
    "flag": "🇩🇪",
    "keycap": "1️⃣",
    "variation selector only": "\ufe0f",
    "combining": "Cafe\u0301 was so good",
    "composed": "Café was so good",
    "many combining": "z" + "\u0300" * 300,
    "combining only": "\u0301",
    "right to left": "أحب هذا كثيرا",
    "Hebrew": "אני אוהב את זה",
    "right-to-left override": "\u202elove\u202c",
    "Chinese": "我喜欢这个",
    "Japanese": "これが大好きです",
    "Thai": "ฉันชอบสิ่งนี้",
    "Hindi": "मुझे यह पसंद है",
    "mathematical letters": "𝓘 𝓵𝓸𝓿𝓮 𝓽𝓱𝓲𝓼",
    "fullwidth": "Ｉ ｌｏｖｅ ｔｈｉｓ",
    "ligature": "ﬁne ofﬁce",
    "private use": "\ue000 good",
    "not a character": "good \uffff",
    "unassigned": "good \u0378",
    "last character of Unicode": "good \U0010ffff",
    "tags": "\U000e0041\U000e0042",
    "half of a pair": "good \ud83d",
    "second half of a pair": "\ude00 good",
    "halves in the wrong order": "\ude00\ud83d",
    "user and link": "@user this is bad http://example.org/a?b=c",
    "@ only": "@",
    "http only": "http",
    "hashtag": "#blessed so happy",
    "quotes and backslashes": 'she said "no" \\ "yes"',
    "HTML": "<b>love</b> &amp; <script>alert(1)</script>",
    "special tokens": "<s> good </s> <pad> <mask> [CLS] [SEP] [UNK]",
    "capitals": "I LOVE THIS!!!!!!",
    "one letter": "a",
    "digits": "1234567890",
    "punctuation": "?!.,;:",
    "spaces around": "  I love this!  ",
    "long word": "a" * 1_000,
    "long word of emoji": "😀" * 700,
    "512 tokens and more": LONG,
    "50,000 characters": "good " * 10_000,
    "50,001 characters": "good " * 10_000 + "x",
    "50,000 emoji": "😀" * 50_000,
    "50,000 spaces": " " * 50_000,
    "50,001 spaces": " " * 50_001,
}

BODIES: dict[str, Any] = {
    "list of one": {"inputs": [GOOD]},
    "list of three": {"inputs": [GOOD, "meh", "I hate this"]},
    "empty list": {"inputs": []},
    "list with bad items": {"inputs": ["", GOOD, " ", "a\x00b", "\ud800", "x" * 50_001]},
    "list of bad items only": {"inputs": ["", " "]},
    "list of one bad item": {"inputs": [""]},
    "list of the same text": {"inputs": [GOOD] * 20},
    "list of long and short": {"inputs": [LONG, "ok", LONG[:300], "x", GOOD]},
    "boolean": {"inputs": True},
    "number": {"inputs": 1},
    "float": {"inputs": 1.5},
    "null": {"inputs": None},
    "object": {"inputs": {"text": GOOD}},
    "list of lists": {"inputs": [[GOOD], ["meh"]]},
    "list of pairs": {"inputs": [[GOOD, "meh"]]},
    "list with a number": {"inputs": [GOOD, 1]},
    "list with a boolean": {"inputs": [GOOD, False]},
    "list with null": {"inputs": [GOOD, None]},
    "list with an object": {"inputs": [GOOD, {}]},
    "pair": {"inputs": {"text": GOOD, "text_pair": "meh"}},
    "pair of null": {"inputs": {"text": GOOD, "text_pair": None}},
    "pair without text": {"inputs": {"text_pair": GOOD}},
    "pair of a number": {"inputs": {"text": GOOD, "text_pair": 1}},
    "pair in a list, of null": {"inputs": [GOOD, {"text": None}]},
    "pair with an unknown field": {"inputs": {"text": GOOD, "pair": GOOD}},
    "list of texts and pairs": {"inputs": [GOOD, {"text": GOOD}, {"text": GOOD, "text_pair": ""}]},
    "missing": {"model": None},
    "unknown field": {"inputs": GOOD, "foo": 1},
    "unknown fields": {"foo": 1, "bar": 2, "inputs": GOOD},
    "unknown field and missing inputs": {"foo": 1},
    "unknown field and wrong inputs": {"inputs": 1, "foo": 1},
    "input": {"input": GOOD},
    "text": {"text": GOOD},
    "model": {"inputs": GOOD, "model": "minilm-l6-tweet-sentiment"},
    "model null": {"inputs": GOOD, "model": None},
    "model unknown": {"inputs": GOOD, "model": "roberta"},
    "model empty": {"inputs": GOOD, "model": ""},
    "model number": {"inputs": GOOD, "model": 1},
    "model list": {"inputs": GOOD, "model": []},
    "model with half of a pair": {"inputs": GOOD, "model": "\ud800"},
    "model with line feed": {"inputs": GOOD, "model": "minilm-l6-tweet-sentiment\n"},
    "model in capitals": {"inputs": GOOD, "model": "MiniLM-L6-tweet-sentiment"},
    "model unknown and bad text": {"inputs": "", "model": "roberta"},
    "model very long": {"inputs": GOOD, "model": "m" * 5_000},
    "overflow number": {"inputs": GOOD, "overflow": 1},
    "overflow null": {"inputs": GOOD, "overflow": None},
    "overflow unknown": {"inputs": GOOD, "overflow": "Truncate"},
    "overflow half of a pair": {"inputs": GOOD, "overflow": "\ud800"},
    "split unknown": {"inputs": GOOD, "split": "words"},
    "split boolean": {"inputs": GOOD, "split": True},
    "split null": {"inputs": GOOD, "split": None},
    "language without split": {"inputs": GOOD, "language": "de"},
    "several faults": {"inputs": 1, "model": 1, "overflow": 1, "split": 1, "language": 1},
    "several faults, other order": {"language": 1, "split": 1, "overflow": 1, "inputs": 1},
    "parameters": {"inputs": GOOD, "parameters": {}},
    "1,000 texts": {"inputs": ["" if i % 20 else f"good {i}" for i in range(1_000)]},
    "1,000 bad texts": {"inputs": [""] * 1_000},
    "1,001 texts": {"inputs": ["ok"] * 1_001},
    "1,001 bad texts": {"inputs": [""] * 1_001},
    "1,001 texts, one is no text": {"inputs": ["ok"] * 1_000 + [1]},
    "20,000 texts": {"inputs": ["ok"] * 20_000},
    "more tokens than half of the queue": {"inputs": [LONG] * 80},
    "30 sentences": {"inputs": GOOD + " I hate it. " * 30, "split": "sentences"},
    "sentences in a list with bad items": {"inputs": [GOOD, "", "So. Bad."], "split": "sentences"},
    "sentences of emoji": {"inputs": "Good 😀. Bad 😭! 👨\u200d👩", "split": "sentences"},
    "sentences of one half of a pair": {"inputs": "Good. \ud800. Bad.", "split": "sentences"},
    "sentences with blank lines": {"inputs": "Good.\n\n\n \n Bad.\n", "split": "sentences"},
}

LANGUAGES: list[Any] = [
    "en", "de", "pt-BR", "zh", "ja", "xx", "EN", "en-", "e", "", "en_US", "english", "englishes",
    "en-a-b-c-d", "en-abcdefghi", "é", "en\n", "\ud800", "zh-Hant-TW", None, 1, [], True,
]  # fmt: skip

OPTIONS: list[dict[str, Any]] = [
    {"inputs": text, "overflow": overflow, **split}
    for text in (LONG, ["Fine. Mr. Smith hates it, e.g. the food. Bad!", "", GOOD])
    for overflow in ("truncate", "error", "window")
    for split in ({}, {"split": "sentences"}, {"split": "sentences", "language": "de"})
]

EXPLAIN: dict[str, Any] = {
    "good": {"inputs": "I love this, but it is expensive"},
    "one word": {"inputs": "love"},
    "empty": {"inputs": ""},
    "blank": {"inputs": "  "},
    "list": {"inputs": [GOOD]},
    "pair": {"inputs": {"text": GOOD, "text_pair": "meh"}},
    "number": {"inputs": 1},
    "missing": {},
    "unknown field": {"inputs": GOOD, "overflow": "error"},
    "model": {"inputs": GOOD, "model": "minilm-l6-tweet-sentiment"},
    "unknown model": {"inputs": GOOD, "model": "x"},
    "emoji": {"inputs": "so 👨\u200d👩\u200d👧 good 😀!"},
    "half of a pair": {"inputs": "so good \ud83d"},
    "NUL": {"inputs": "so\x00good"},
    "combining": {"inputs": "Cafe\u0301 e\u0301te\u0301"},
    "user and link": {"inputs": "@user loves http://example.org"},
    "30 words": {"inputs": "good " * 30},
    "129 words": {"inputs": "good " * 129},
    "4,001 characters": {"inputs": "x" * 4_001},
    "50,001 characters": {"inputs": "x" * 50_001},
    "Chinese": {"inputs": "我喜欢这个"},
    "many spaces": {"inputs": "so   good\n\n\tyes"},
    "more than 512 tokens": {"inputs": "extraordinarily-unbelievable-things! " * 100},
}

TOKENIZE: dict[str, Any] = {
    "good": {"inputs": GOOD},
    "list": {"inputs": [GOOD, "", "a\x00b", {"text": "meh"}, {"text": GOOD, "text_pair": "meh"}]},
    "empty": {"inputs": ""},
    "number": {"inputs": 1},
    "missing": {},
    "unknown field": {"inputs": GOOD, "overflow": "error"},
    "no special tokens": {"inputs": [GOOD, "[CLS] good [SEP]"], "add_special_tokens": False},
    "special tokens null": {"inputs": GOOD, "add_special_tokens": None},
    "unknown model": {"inputs": GOOD, "model": "x"},
    "user and link": {"inputs": "@anna loves http://example.org 😀 Cafe\u0301"},
    "private use only": {"inputs": "\ue000"},
    "more than 512 tokens": {"inputs": "so good " * 256},
    "more tokens than half of the queue": {"inputs": [LONG] * 80},
    "50,001 characters": {"inputs": "x" * 50_001},
    "1,001 texts": {"inputs": ["ok"] * 1_001},
}


REQUESTS = [
    *(post_value(f"text: {name}", "/classify", {"inputs": text}) for name, text in TEXTS.items()),
    *(
        post(f"text, raw: {name}", "/classify", json.dumps({"inputs": text}, ensure_ascii=False))
        for name, text in TEXTS.items()
        if not text.isascii() and len(text) < 1_000
    ),
    *(
        post_value(f"text in a list: {name}", "/classify", {"inputs": [text, GOOD]})
        for name, text in TEXTS.items()
        if len(text) < 100
    ),
    *(post_value(f"classify: {name}", "/classify", body) for name, body in BODIES.items()),
    *(
        post_value(
            f"language {tag!a}",
            "/classify",
            {"inputs": "It's e.g. Dr. No. 5. So bad! Gut.", "split": "sentences", "language": tag},
        )
        for tag in LANGUAGES
    ),
    *(post_value(f"options {number}", "/classify", body) for number, body in enumerate(OPTIONS)),
    *(post_value(f"explain: {name}", "/explain", body) for name, body in EXPLAIN.items()),
    *(post_value(f"tokenize: {name}", "/tokenize", body) for name, body in TOKENIZE.items()),
]
