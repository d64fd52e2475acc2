"""A text's logits are bit-identical whatever other texts share its batch."""

import functools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE, Precision
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.text.text_tokenizer import Encoding
from sentiment_service.errors import InferenceFailed

from tests.support.checkpoints import ARCHITECTURES, MAX_TOKENS, PRECISIONS, exported
from tests.support.model_export.graphs import VOCABULARY
from tests.support.tiny_bundle import load

# The embedded model is read at whatever length, but a test has no time for 512 tokens.
LONGEST_EMBEDDED = 96


@functools.cache
def _embedded(threads: int) -> Model:
    return load(EMBEDDED_BUNDLE, "int8", threads=threads)


def _batches(vocabulary: int, longest: int) -> st.SearchStrategy[list[Encoding]]:
    token = st.integers(5, vocabulary - 1)
    short = st.lists(token, min_size=3, max_size=12)
    # A long mate makes for much padding; lists alone would hardly ever grow that long.
    long = st.tuples(st.integers(13, longest), st.lists(token, min_size=3, max_size=9)).map(
        lambda drawn: (drawn[1] * longest)[: drawn[0]]
    )
    return st.lists(st.one_of(short, long).map(Encoding.of), min_size=1, max_size=8)


def _assert_invariant(model: Model, batch: list[Encoding]) -> None:
    alone = [_bits(model, [encoding])[0] for encoding in batch]
    assert _bits(model, batch) == alone
    assert _bits(model, batch[::-1]) == alone[::-1]


def _bits(model: Model, batch: list[Encoding]) -> list[bytes]:
    results = model.infer(batch)
    assert not [result for result in results if isinstance(result, InferenceFailed)]
    return [result.tobytes() for result in results if not isinstance(result, InferenceFailed)]


@functools.cache
def _tiny(base: Path, architecture: str, precision: Precision, threads: int) -> Model:
    return exported(base, architecture).model(precision, threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@given(batch=_batches(VOCABULARY, MAX_TOKENS))
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_architecture_and_precision(
    base: Path, architecture: str, precision: Precision, threads: int, batch: list[Encoding]
) -> None:
    """The bits are the same alone, among others in either order, with or without padding."""
    _assert_invariant(_tiny(base, architecture, precision, threads), batch)


@pytest.mark.parametrize("threads", [1, 2])
@given(batch=_batches(30_000, LONGEST_EMBEDDED))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_embedded_model(threads: int, batch: list[Encoding]) -> None:
    """The embedded model gives every text the same logits in a batch as alone."""
    _assert_invariant(_embedded(threads), batch)


def test_one_thread_and_two_agree(base: Path) -> None:
    """The number of threads of a runner does not change the logits."""
    batch = [Encoding.of(range(5, 5 + length)) for length in (3, 40, 17, 64)]
    for architecture in ARCHITECTURES:
        for precision in PRECISIONS:
            one, two = (_tiny(base, architecture, precision, threads) for threads in (1, 2))
            assert _bits(one, batch) == _bits(two, batch)
