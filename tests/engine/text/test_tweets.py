"""Normalisations of tweets: each gives what the model was trained with."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentiment_service.engine.options import Preprocessing
from sentiment_service.engine.text.input_tokenizer import normalise_tweet, normaliser
from sentiment_service.engine.text.tweets import normalise_bertweet, normalise_tweet_topic

# Written out by hand from the cardiffnlp model cards' `preprocess`, not computed: only a token's
# first characters decide, and only single spaces separate tokens.
TWEET = {
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
# By hand from BERTweet's rules; tests/model_export/checkpoint/test_bertweet.py compares it with
# transformers on thousands of texts.
BERTWEET = {
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
# What get_preprocessor("tweet_topic") of tweetnlp 0.4.5 with urlextract 1.10 gives.
TWEET_TOPIC = {
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
    "watch:http://t.co/a now:t.co/b": "watch:{{URL}} now:t.co/b",
    "http://t.co/a\u3000b c": "{{URL}} c",  # only the white space of ASCII ends a link
}
# What preprocess_tweet of pysentimiento 0.7.3 with emoji 2.16 gives.
ROBERTUITO = {
    "": "",
    "  hola  ": "hola",
    "@ana y @b_1234567890123456": "@usuario y @usuario456",
    "a @ b": "a @usuario b",
    "mira https://t.co/aB1, www.foo.com/bar y x.es": "mira url, url y url",
    "https://t.co/aB1": "https://url",  # something must stand before a link
    "#MuyBienHecho #COVID19 #1 a#b": "hashtag muy bien hecho hashtag covid19 #1 a#b",
    "noooooo!!!! aa": "nooo!!! aa",
    "\n\n\n\nno": "no",
    "jajajaja jjajaja ajaj": "jaja jaja ajaj",
    "JAJAJAJA": "JAJAJAJA",
    "“hola” «sí» 5€ ‼ … ~": '"hola" "sí" 5$ !',
    "te ❤️ y ♥": "te  y  emoji corazón rojo emoji",
    "☺\ufe0e y 😂\ufe0e": "y  emoji cara llorando de risa emoji",
    "👍🏽👍": "emoji pulgar hacia arriba tono de piel medio emoji  emoji pulgar hacia arriba emoji",
    "👩\u200d👩\u200d👧": "emoji familia mujer mujer niña emoji",
    "🇪🇸 1️⃣": "emoji bandera españa emoji   emoji teclas 1 emoji",
    "😂😂😂😂": "  ".join(["emoji cara llorando de risa emoji"] * 3),
    "☺ ✈ |x_y| ¿qué? ñandú": "emoji x y emoji  ¿qué? ñandú",
}
EXPECTED: dict[Preprocessing, dict[str, str]] = {
    "none": {"@anna isn't at http://x": "@anna isn't at http://x"},
    "tweet": TWEET,
    "bertweet": BERTWEET,
    "tweet_topic": TWEET_TOPIC,
    "robertuito": ROBERTUITO,
}


@pytest.mark.parametrize(
    ("rule", "text", "expected"),
    [(rule, *example) for rule, examples in EXPECTED.items() for example in examples.items()],
)
def test_it_gives_what_the_rule_says(rule: Preprocessing, text: str, expected: str) -> None:
    """Under the name that the manifest has: users, links, emoji, entities and repeated signs."""
    assert normaliser(rule)(text) == expected


SIGNS = ["http", "Http", "&lt;", *"@aH/(😀א\uff20\u200f\u201c\u3000\u00a0\t\n", *" " * 4]


@given(st.lists(st.sampled_from(SIGNS)).map("".join))
def test_it_is_the_rule_word_by_word(text: str) -> None:
    """The model card's own code: split on single spaces, replace tokens, join."""
    tokens = [
        "@user" if t.startswith("@") and len(t) > 1 else "http" if t.startswith("http") else t
        for t in text.split(" ")
    ]
    assert normalise_tweet(text) == " ".join(tokens)


@given(st.text(alphabet="@.:/ a-\n(){é", max_size=60))
def test_topics_leave_other_texts_as_they_are(text: str) -> None:
    """Without a top-level domain there is no link, and without @ no user."""
    plain = text.replace("@", "")
    assert normalise_tweet_topic(plain) == plain


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
