"""Rows to classify on clusters: made-up texts, odd ones among them, and columns of other types."""

import random

import pyarrow as pa

SENTENCES = (
    "love it so much",
    "I hate this the worst day ever",
    "@user http://t.co/x meh",
    "fine not bad #fun",
    "never again terrible 😀",
    "naïve 日本 wonderful",
    "going to bed really tired",
)
WORDS = " ".join(SENTENCES).split()
# Rows that cannot be classified, or not as they are: without a text, with bytes that are not
# UTF-8, with a NUL character, longer than the model, and longer than a text may be.
ODD = [
    *(None, b"", b" \t", b"bad \xff\xfe", b"nul \0", b"line\nbreak", b"long " * 2_000),
    *(b"too long " * 6_000, b"x" * 40_000, "😀".encode() * 50),
]


def rows(count: int) -> pa.Table:
    """So many rows; every hundredth has an odd text."""
    order = random.Random(count)
    texts = [
        ODD[row // 100 % len(ODD)] if row % 100 == 50 else _text(order).encode()
        for row in range(count)
    ]
    columns = {
        "id": pa.array(range(count), pa.int64()),
        "text": pa.array(texts, pa.binary()).view(pa.string()),  # without a check of the bytes
        "label": ["taken"] * count,
        "tags": [[["a", None], [], None][row % 3] for row in range(count)],
        "at": pa.array(range(count), pa.timestamp("us", "UTC")),
    }
    return pa.table(columns)


def _text(order: random.Random) -> str:
    return " ".join(order.choices(WORDS, k=1 + int(order.expovariate(1 / 10))))
