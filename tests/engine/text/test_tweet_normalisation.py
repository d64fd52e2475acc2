"""Tweet normalisation: exactly the rule of the cardiffnlp model cards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentiment_service.engine.options import Preprocessing
from sentiment_service.engine.text.input_tokenizer import normalise_tweet, normaliser

# Written out by hand from the model cards' `preprocess`, not computed.
EXPECTED = {
    "": "",
    "  @a  @b  ": "  @user  @user  ",
    "@": "@",
    "a@b": "a@b",
    "@Anna: thanks!": "@user thanks!",
    "(@anna)": "(@anna)",
    "@a\n@b": "@user",
    "\n@b": "\n@b",
    "@a\tgoes too": "@user too",
    "\u00a0@a": "\u00a0@a",
    "httpd is down": "http is down",
    "HTTP://T.CO/X": "HTTP://T.CO/X",
    "(http://t.co/x)": "(http://t.co/x)",
    "www.example.org": "www.example.org",
    "👩\u200d👩\u200d👧 @mum https://x.y ❤\ufe0f": "👩\u200d👩\u200d👧 @user http ❤\ufe0f",
    "مرحبا @علي انظر https://x.y شكرا": "مرحبا @user انظر http شكرا",
}


@pytest.mark.parametrize(("text", "expected"), EXPECTED.items())
def test_it_gives_what_the_model_card_gives(text: str, expected: str) -> None:
    """Only a token's first characters decide, and only single spaces separate tokens."""
    assert normalise_tweet(text) == expected


@pytest.mark.parametrize(
    ("preprocessing", "expected"),
    [
        ("none", "@anna isn't at http://x"),
        ("tweet", "@user isn't at http"),
        ("bertweet", "@USER is n't at HTTPURL"),
        ("tweet_topic", "@anna isn't at http://x"),  # x is no top-level domain
        ("robertuito", "@usuario isn't at http://x"),
    ],
)
def test_the_manifest_names_the_rule(preprocessing: Preprocessing, expected: str) -> None:
    """``none`` changes nothing; the others apply their rules."""
    assert normaliser(preprocessing)("@anna isn't at http://x") == expected


PIECES = ["http", "Http", "&lt;", *"@aH/(😀א\uff20\u200f\u201c\u3000\u00a0\t\n", *" " * 4]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_it_is_the_rule_word_by_word(text: str) -> None:
    """The model card's own code: split on single spaces, replace tokens, join."""
    tokens = [
        "@user" if t.startswith("@") and len(t) > 1 else "http" if t.startswith("http") else t
        for t in text.split(" ")
    ]
    assert normalise_tweet(text) == " ".join(tokens)
