"""BERTweet's normalisation, written out by hand from its rules.

tests/model_export/checkpoint/test_bertweet.py compares it with transformers on thousands of texts.
"""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentiment_service.engine.text.tweets import normalise_bertweet

EXPECTED = {
    "": "",
    " \n\t ": "",
    "one\ntwo  three": "one two three",
    "@anna, thanks!": "@USER , thanks !",
    "mail anna@example.org": "mail anna@example.org",
    "@": "@USER",
    "see https://t.co/x?y=1.": "see HTTPURL .",
    "HTTP://T.CO/X": "HTTPURL",
    "www.example.org": "HTTPURL",
    "example.org/about is a link": "example.org/about is a link",
    "https://x.org/w/A_(b_(c))_d": "HTTPURL",
    "(see http://x.org/a)": "( see HTTPURL )",
    "love it 😀❤️": "love it :grinning_face: :red_heart:",
    "👍🏽": ":thumbs_up: :medium_skin_tone:",
    "👩\u200d👧": ":woman: \u200d :girl:",
    "1️⃣": "1️⃣",
    "it’s done…": "it 's done ...",
    "I don't, can't and won't": "I do n't , can't and won't",  # the last has no space after it
    "isn't it": "is n't it",
    "we've said they'll cannot": "we 've said they 'll cannot",
    "5 p.m. or 6 a.m. sharp": "5 p.m. or 6 a.m. sharp",
    "so :-) <3 D:": "so :-) <3 D:",
    "call 555-123-4567": "call 555-123-4567",
    "3/4 of 1,000": "3/4 of 1,000",
    "#so_cool#10 # #1": "#so_cool #10 # # 1",
    "no!!!!!!! ------": "no ! ! ! - - -",
    "a &lt;b&gt; &amp; &#233; &#xe9; &xe9; &#128; &nothing;": "a <b> & é é é €",
    "&#xd800;": "\ufffd",
    "a<mask>b": "a <mask> b",
    "दिन": "दिन",
}


@pytest.mark.parametrize(("text", "expected"), EXPECTED.items())
def test_it_gives_what_the_rules_say(text: str, expected: str) -> None:
    """Users, links, emoji, contractions, HTML entities and repeated signs have a form each."""
    assert normalise_bertweet(text) == expected


PIECES = ["http", "://", ".co", "&#55296;", "<s>", *"a@&;! \ufe0f\x1c\n"]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_words_have_one_space_between_them_and_no_half_surrogates(text: str) -> None:
    """Whatever the text is, the result is words with single spaces, in well-formed Unicode."""
    normalised = normalise_bertweet(text)
    assert normalised == " ".join(normalised.split())
    normalised.encode()


@pytest.mark.parametrize("part", ["a.", "http://!(", "<a", "8d", "(a(!"])
def test_a_long_text_without_spaces_takes_no_square_of_its_length(part: str) -> None:
    """A text that is ten times as long takes about ten times the CPU time, not a hundred times.

    Patterns without limits would search from each place to the end, and take minutes.
    """
    assert _cpu_seconds(part * 5_000) < 40 * _cpu_seconds(part * 500)


def _cpu_seconds(text: str) -> float:
    """The least of several measurements: other processes can only add to it."""
    measured = []
    for _ in range(3):
        started = time.thread_time()
        normalise_bertweet(text)
        measured.append(time.thread_time() - started)
    return min(measured)
