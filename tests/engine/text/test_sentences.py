# ruff: noqa: RUF001 - signs of every kind are what is tested
"""Sentences are found window by window: with sentencex's results, in time linear in the text."""

import random
from itertools import chain

import pytest
import sentencex
from sentiment_service.engine.text.steps import WINDOW_CHARS, sentence_spans

SENTENCES = (
    "The ferry left without us, so we ate pancakes on the pier.",
    'Dr. Smith paid $3.50 for it (a bargain!). "Never again," he said.',
    "¿Quién dejó la ventana abierta? Hace muchísimo frío en la cocina.",
    "Le boulanger m'a souri. Où est passé mon vélo ? Volé « encore » !",
    "Das ist z.B. gut. Prof. Müller sagte am 3. Mai nein.",
    "मैं खुश हूँ। यह फ़िल्म मुझे बिल्कुल पसंद नहीं आई।",
    "هذا جيد. هل أنت بخير؟ نعم!",
    "今日の夕焼けはとてもきれいだった。「ラーメンも最高!」と言った。",
)
SIGNS = (
    *("a", "word ", "Word ", "Prof.", "e.g. ", "p.m. ", "A. ", "1. ", "- ", "3.", "😀", "\u3000"),
    *(". ", "! ", "? ", "...", "؟ ", "[1]", *"…。।」「\"'()“”"),
    *("\n", "\n\n", "\n\r\n", "\r", "  ", "\t"),
)
LANGUAGES = ("en", "ja", "de", "es", "ar", "zh", "nl", "xx")
# What costs sentencex most, and what has windows end where it is worst.
NASTY = (
    *(
        "。」",
        "？」",
        "「」",
        ". ",
        "!?",
        "...",
        "Dr. ",
        "1. ",
        "\n",
        "\n\n",
        "\n\r",
        " ",
        "a",
        "a ",
    ),
    *('"a. ', "(a. ", "a." + "b" * 999 + ".", "a. " + "b" * 490 + " " + "b" * 510 + ". "),
)


def _found(text: str, language: str) -> list[str]:
    return [text[start:end] for start, end in chain(*sentence_spans(text, language))]


def _by_the_library(text: str, language: str) -> list[str]:
    found = sentencex.get_sentence_boundaries(language, text)
    pieces = (text[piece["start_index"] : piece["end_index"]].strip() for piece in found)
    return [piece for piece in pieces if piece]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The characters of each text that the library got."""
    lengths: list[int] = []
    find = sentencex.get_sentence_boundaries

    def note(language: str, text: str) -> object:
        lengths.append(len(text))
        return find(language, text)

    monkeypatch.setattr(sentencex, "get_sentence_boundaries", note)
    return lengths


def test_texts_of_a_window_are_cut_as_the_library_cuts_them() -> None:
    """A text within a window is split as the library splits it, whatever characters it has."""
    draw = random.Random(13)
    for _ in range(1_500):
        text = "".join(draw.choices(SIGNS + SENTENCES, k=draw.randint(0, 200)))[:WINDOW_CHARS]
        language = draw.choice(LANGUAGES)
        assert _found(text, language) == _by_the_library(text, language), (language, text)


@pytest.mark.parametrize("between", [" ", "\n", "\n\n", "\n\r\n", "\n\n\n"])
def test_long_ordinary_texts_are_cut_as_the_library_cuts_them(between: str) -> None:
    """The results equal the library's, for short paragraphs or one of hundreds of sentences."""
    draw = random.Random(13)
    for _ in range(40):
        text = between.join(
            " ".join(draw.choices(SENTENCES, k=draw.randint(1, 12)))
            for _ in range(draw.randint(10, 40))
        )
        language = draw.choice(LANGUAGES)
        assert _found(text, language) == _by_the_library(text, language), (language, text)


def test_a_quotation_as_long_as_its_paragraph_has_no_ends_in_it() -> None:
    """Paragraphs that fit into a window are split as the library splits them."""
    paragraph = f'He said: "{"They came. " * 150}" Then he left.'
    text = "\n\n".join([paragraph] * 5)
    assert WINDOW_CHARS // 2 < len(paragraph) < WINDOW_CHARS
    assert _found(text, "en") == _by_the_library(text, "en")
    assert len(_found(text, "en")) < 20


@pytest.mark.parametrize("between", ["", " ", "word "])
def test_a_sentence_of_many_windows_is_one(between: str) -> None:
    """The end of a window does not end a sentence."""
    long = "begin" + between + ("x" * 150 + between) * 100 + "end."
    text = f"First one. {long.capitalize()} Last one."
    assert _found(text, "en") == ["First one.", long.capitalize(), "Last one."]


def test_much_space_joins_nothing() -> None:
    """Two sentences stay two, even with several windows of white space between them."""
    text = "First one." + " " * (3 * WINDOW_CHARS) + "Last one."
    assert _found(text, "en") == ["First one.", "Last one."]


@pytest.mark.parametrize("end", ["‼️", "⁉️", ".\u0336", "。\ufe01"])
@pytest.mark.parametrize("between", ["", " "])
def test_the_sign_that_ends_a_sentence_keeps_its_marks(end: str, between: str) -> None:
    """An emoji of two characters, for example, is not cut."""
    first, second = f"So good{end}", f"I went again{end}"
    assert _found(first + between + second, "en") == [first, second]


def test_a_title_at_the_end_of_a_window_ends_no_sentence() -> None:
    """A French title before the end of a window is remembered in the next window."""
    paragraph = "Voici. " * 280 + "Bonjour M."
    text = f"{paragraph}\n\nPetit est là. " + "Voici. " * 300
    assert len(paragraph) < WINDOW_CHARS < len(text)
    assert "Bonjour M.\n\nPetit est là." in _found(text, "fr")


@pytest.mark.parametrize("sign", NASTY, ids=lambda sign: ascii(sign[:8]))
def test_the_library_never_gets_more_than_a_window(given: list[int], sign: str) -> None:
    """The library gets a window at most, and in total at most a few times the text's length."""
    text = (sign * 10_000)[:10_000]
    assert "".join(_found(text, "en")).replace(" ", "") or not text.strip()
    assert max(given) <= WINDOW_CHARS
    assert sum(given) <= 4 * len(text) + WINDOW_CHARS


def test_the_next_window_is_looked_at_when_it_is_asked_for(given: list[int]) -> None:
    """A window is split only when its sentences are requested, so leaving early saves the work."""
    windows = sentence_spans("One sentence. " * 1_000, "en")
    next(windows)
    assert len(given) == 1
