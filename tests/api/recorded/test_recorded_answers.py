"""All answers to a corpus of requests, odd ones included, are the recorded ones.

If an answer is meant to change, record all answers again and review the diff (CONTRIBUTING.md).
"""

import sys
from pathlib import Path

from tests.conftest import FLAGS
from tests.replay.comparison import differences
from tests.replay.corpus import CORPUS, GUARDED, GUARDED_FLAGS
from tests.replay.recording import read, recorded
from tests.support.serving import Process

HERE = Path(__file__).parent
# Logits of another kind of CPU may differ by this much: its steps in fp32 round otherwise, so a
# value can become the next of the 256 levels of uint8 (docs/performance.md). The rest is exact.
TOLERANCE = 0.1
IF_MEANT = "if this is meant, record again, as CONTRIBUTING.md says"


# The parser of Python 3.13 has other words for these faults, and that of 3.14 reads deep documents.
OTHER_WORDS = {f"json document: comma at the end of {place}" for place in ("a list", "an object")}
DEEP = ("json document: deep list", "json document: deep object")
READ_BY_3_14 = {*DEEP, "json document: deep list, not closed", "stream: deep"}


def test_the_answers_are_the_recorded_ones() -> None:
    """Status, headers and body are as recorded, and so is whether the connection stays open."""
    before = read(HERE / "recorded_answers.json")
    left_out = OTHER_WORDS if sys.version_info >= (3, 13) else set()
    left_out = left_out | READ_BY_3_14 if sys.version_info >= (3, 14) else left_out
    with Process(*FLAGS) as service:
        answers = recorded(service.url, [one for one in CORPUS if one.name not in left_out])
    for name in left_out:
        del before[name]
    assert list(differences(before, answers, tolerance=TOLERANCE)) == [], IF_MEANT


def test_the_answers_with_keys_and_cors_are_the_recorded_ones() -> None:
    """Keys are checked, and origins get their headers, as recorded."""
    with Process(*FLAGS, *GUARDED_FLAGS) as service:
        answers = recorded(service.url, GUARDED)
    before = read(HERE / "recorded_answers_guarded.json")
    assert list(differences(before, answers, tolerance=TOLERANCE)) == [], IF_MEANT
