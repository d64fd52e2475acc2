"""The normalisation for RoBERTuito."""

import pytest
from sentiment_service.engine.text.tweets import normalise_robertuito

# What preprocess_tweet of pysentimiento 0.7.3 with emoji 2.16 gives.
EXPECTED = {
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
    "👍🏽👍": "emoji pulgar hacia arriba tono de piel medio emoji  emoji pulgar hacia arriba emoji",
    "👩\u200d👩\u200d👧": "emoji familia mujer mujer niña emoji",
    "🇪🇸 1️⃣": "emoji bandera españa emoji   emoji teclas 1 emoji",
    "😂😂😂😂": "  ".join(["emoji cara llorando de risa emoji"] * 3),
    "☺ ✈ |x_y| ¿qué? ñandú": "emoji x y emoji  ¿qué? ñandú",
}


@pytest.mark.parametrize(("text", "expected"), EXPECTED.items())
def test_it_gives_what_pysentimiento_gives(text: str, expected: str) -> None:
    """Users, links, hashtags, emoji, laughter and repeated characters, in that order."""
    assert normalise_robertuito(text) == expected
