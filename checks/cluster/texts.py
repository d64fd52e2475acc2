"""Writes made-up texts for the check: a directory of Parquet files and one file with all rows."""

import random
import sys
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

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
ODD = [None, b"", b" \t", b"bad \xff\xfe", b"nul \0", b"long " * 2_000, b"too long " * 6_000]
FILES = 7


def main() -> None:
    """Write ``in/``, ``all.parquet`` and ``few.parquet`` to the folder that is given."""
    folder, rows = Path(sys.argv[1]), int(sys.argv[2])
    random.seed(rows)
    raw = [
        ODD[row // 1_000 % len(ODD)] if row % 1_000 == 500 else _text().encode()
        for row in range(rows)
    ]
    texts = pa.array(raw, pa.binary()).view(pa.string())  # without a check of the bytes
    table = pa.table({"id": range(rows), "text": texts})
    pq.write_table(table, folder / "all.parquet")
    pq.write_table(table.slice(0, 100), folder / "few.parquet")
    (folder / "in").mkdir()
    # One large file, and several that are smaller than a part.
    large = rows * 2 // 3
    ends = [0, *(large + (rows - large) * n // FILES for n in range(FILES + 1))]
    for number, (start, end) in enumerate(pairwise(ends)):
        pq.write_table(table.slice(start, end - start), folder / "in" / f"{number:02}.parquet")


def _text() -> str:
    return " ".join(random.choices(WORDS, k=1 + int(random.expovariate(1 / 10))))


if __name__ == "__main__":
    main()
