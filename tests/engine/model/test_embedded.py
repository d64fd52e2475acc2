"""The bundle that is included in the service."""

import pytest
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE, Bundle
from sentiment_service.engine.model.model import Model
from sentiment_service.errors import InferenceFailed

from tests.support.tiny_bundle import load


@pytest.fixture(scope="module")
def model() -> Model:
    """The model as a CPU serves it."""
    return load(EMBEDDED_BUNDLE, "auto")


def test_every_file_is_what_the_manifest_says() -> None:
    """All digests and sizes match the manifest, and there is no other file."""
    bundle = Bundle.open(EMBEDDED_BUNDLE)
    manifest = bundle.manifest
    for precision, variant in manifest.variants.items():
        assert bundle.variant_path(precision).stat().st_size == variant.bytes
    known = {*manifest.files, *(variant.file for variant in manifest.variants.values())}
    found = {
        str(path.relative_to(EMBEDDED_BUNDLE))
        for path in EMBEDDED_BUNDLE.rglob("*")
        if path.is_file()
    }
    assert found == known | {"manifest.json", "README.md"}


def test_it_is_small_enough_for_a_repository() -> None:
    """The bundle has at most 26 MB in total."""
    total = sum(path.stat().st_size for path in EMBEDDED_BUNDLE.rglob("*") if path.is_file())
    assert total <= 26_000_000


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("I love this!", "positive"),
        ("What a wonderful day, thank you all so much!", "positive"),
        ("@anna congratulations, best news ever 🎉 http://t.co/x", "positive"),
        ("This is the best album of the year, absolutely brilliant.", "positive"),
        ("worst service ever", "negative"),
        ("I hate waiting on hold, what a horrible company.", "negative"),
        ("@bob this is disgusting and you should be ashamed", "negative"),
        ("Terrible food, rude staff, never again.", "negative"),
        ("On my way to the office", "neutral"),
        ("On my way to the office 😭", "negative"),
        ("On my way to the office 😍", "positive"),
        ("The meeting is at 3pm.", "neutral"),
        ("The store opens at 9am on Monday.", "neutral"),
        ("Tickets for the Friday show go on sale tomorrow.", "neutral"),
    ],
)
def test_it_is_right_where_nobody_could_doubt(model: Model, text: str, label: str) -> None:
    """Obvious texts get their obvious label."""
    assert _label(model, text) == label


POSITIVE = "😍❤👍😊🎉🥰😀😘👏💖😁🥳💕😃"
NEGATIVE = "😡💔👎😢😭🤬😞🤢😠💩😩😔🤮😣"


@pytest.mark.parametrize("before", ["", "The meeting is on Monday. ", "I am going to the office. "])
def test_it_reads_emoji(model: Model, before: str) -> None:
    """Of 14 pairs of plain emoji, 12 get their label, alone and after a neutral sentence."""
    right = [
        [_label(model, before + emoji) for emoji in pair] == ["positive", "negative"]
        for pair in zip(POSITIVE, NEGATIVE, strict=True)
    ]
    assert sum(right) >= 12


@pytest.mark.parametrize("plain", ["👍", "❤", "👩🎓"])
def test_signs_that_only_change_how_an_emoji_looks_do_not_matter(model: Model, plain: str) -> None:
    """A skin tone, a variation selector and a joiner change no token."""
    expected = model.tokenizer.encode(plain).ids
    for drawn in (f"{plain}\ufe0f", f"{plain[0]}\U0001f3fd{plain[1:]}", "\u200d".join(plain)):
        assert model.tokenizer.encode(drawn).ids == expected


def _label(model: Model, text: str) -> str:
    (logits,) = model.infer([model.tokenizer.encode(text)])
    assert not isinstance(logits, InferenceFailed)
    return model.labels[int(logits.argmax())]
