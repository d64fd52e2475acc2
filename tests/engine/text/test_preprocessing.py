"""Tweet normalisation: exactly the rule of the cardiffnlp model cards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.text.preprocessing import normalise_tweet, preprocess

# Written out by hand from the model cards' `preprocess`, not computed.
EXPECTED = {
    "": "",
    " ": " ",
    "  ": "  ",
    "@": "@",
    "@a": "@user",
    "@user": "@user",
    "@@": "@user",
    "@ a": "@ a",
    "a@b": "a@b",
    "mail me@home.org now": "mail me@home.org now",
    "@Anna: thanks!": "@user thanks!",
    "@anna@bob": "@user",
    "(@anna)": "(@anna)",
    "\u201c@anna": "\u201c@anna",
    "\uff20anna": "\uff20anna",
    "http": "http",
    "https://t.co/x?y=1#z": "http",
    "httpd is down": "http is down",
    "(http://t.co/x)": "(http://t.co/x)",
    "HTTP://T.CO/X": "HTTP://T.CO/X",
    "Http://t.co/x": "Http://t.co/x",
    "seehttp://t.co/x": "seehttp://t.co/x",
    "www.example.org": "www.example.org",
    "one  two   three": "one  two   three",
    " @a": " @user",
    "@a ": "@user ",
    "  @a  @b  ": "  @user  @user  ",
    "@a\n@b": "@user",
    "one\n@b": "one\n@b",
    "\n@b": "\n@b",
    "\t@a http": "\t@a http",
    "@a\tgoes too": "@user too",
    "http://x\nnext line": "http line",
    "\u00a0@a": "\u00a0@a",
    "one\u00a0@a": "one\u00a0@a",
    "\u3000http": "\u3000http",
    "😀@a 😀": "😀@a 😀",
    "@😀 hi": "@user hi",
    "👩\u200d👩\u200d👧 @mum https://x.y ❤\ufe0f": "👩\u200d👩\u200d👧 @user http ❤\ufe0f",
    "مرحبا @علي انظر https://x.y شكرا": "مرحبا @user انظر http شكرا",
    "\u200f@a": "\u200f@a",
    "@שלום שלום": "@user שלום",
    "&amp; @a &lt;http": "&amp; @user &lt;http",
}


@pytest.mark.parametrize(("text", "expected"), EXPECTED.items())
def test_it_gives_what_the_model_card_gives(text: str, expected: str) -> None:
    """Only a token's first characters decide, and only single spaces separate tokens."""
    assert normalise_tweet(text) == expected


def test_a_checkpoint_without_normalisation_sees_the_text_itself() -> None:
    """``none`` changes nothing; ``tweet`` applies the rule."""
    assert preprocess("@anna http://x", "none") == "@anna http://x"
    assert preprocess("@anna http://x", "tweet") == "@user http"


@given(st.lists(st.sampled_from(["@", "a", "http", " ", "\n", "\u00a0", "H"])).map("".join))
def test_it_is_the_rule_word_by_word(text: str) -> None:
    """The model card's own code: split on single spaces, replace tokens, join."""
    tokens = [
        "@user" if t.startswith("@") and len(t) > 1 else "http" if t.startswith("http") else t
        for t in text.split(" ")
    ]
    assert normalise_tweet(text) == " ".join(tokens)
