"""The normalisation for tweetnlp's topic models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentiment_service.engine.text.tweets import normalise_tweet_topic

# What get_preprocessor("tweet_topic") of tweetnlp 0.4.5 with urlextract 1.10 gives.
EXPECTED = {
    "": "",
    "@anna hi": "@anna hi",  # a user needs a word before
    "hi @anna: see t.co/x.": "hi {@anna@}: see {{URL}}",
    "via @a.b.c @d": "via {@a.b.c@} {@d@}",
    "wow!@x": "wow!@x",
    "x@y @z": "x{@y@} {@z@}",
    "hi\n@anna\t@bob": "hi\n{@anna@}\t{@bob@}",
    "{@CBS@} {{USERNAME}} {{URL}}": "{@CBS@} {{USERNAME}} {{URL}}",
    "http://bluenote.lnk.to/AlbumOfTheWeek": "{{URL}}",
    "HTTP://T.CO/X and www.Foo.com!": "{{URL}} and www.Foo.com!",
    "http://t.co/abc, @bob": "{{URL}} @bob",
    "https://example.com?x=1 https://example.com:8080": "{{URL}} {{URL}}",
    "see (example.com), [a](http://x.com/b) c": "see ({{URL}}), [a]({{URL}}) c",
    "(http://t.co/a(b)) 'http://t.co/q'": "({{URL}}) '{{URL}}'",
    '"http://t.co/q"': '"{{URL}}"',
    "example.com, ends example.org": "{{URL}}, ends {{URL}}",
    "good.to see": "{{URL}} see",  # .to is a top-level domain
    "ok.Then U.S. e.g. 3.5 a...": "ok.Then U.S. e.g. 3.5 a...",
    "mail me a@b.com": "mail me a{@b.com@}",
    "日本http://t.co/a": "日本{{URL}}",
}


@pytest.mark.parametrize(("text", "expected"), EXPECTED.items())
def test_it_gives_what_tweetnlp_gives(text: str, expected: str) -> None:
    """Users in {@ and @}, links as {{URL}}; what was normalised before stays."""
    assert normalise_tweet_topic(text) == expected


@given(st.text(alphabet="@.:/ a-\n(){é", max_size=60))
def test_other_texts_stay(text: str) -> None:
    """Without a top-level domain there is no link, and without @ no user."""
    plain = text.replace("@", "")
    assert normalise_tweet_topic(plain) == plain
