"""All answers to a corpus of requests, odd ones included, are the recorded ones.

If an answer is meant to change, record all answers again and review the diff (CONTRIBUTING.md).
"""

import sys
from pathlib import Path

from checks.replay.comparison import differences
from checks.replay.corpus import CORPUS, GUARDED
from checks.replay.corpus.guarded import GUARDED_FLAGS
from checks.replay.recording import read, recorded
from tests.conftest import FLAGS
from tests.support.serving import Process

HERE = Path(__file__).parent
# The logits of CPUs whose kernels round in another way may differ by this much.
TOLERANCE = 1e-4


# The parser of Python 3.13 has other words for these faults.
OTHER_WORDS = {f"json document: comma at the end of {place}" for place in ("a list", "an object")}


def test_the_answers_are_the_recorded_ones() -> None:
    """Status, headers and body are as recorded, and so is whether the connection stays open."""
    left_out = OTHER_WORDS if sys.version_info >= (3, 13) else set()
    with Process(*FLAGS) as service:
        answers = recorded(service.url, [one for one in CORPUS if one.name not in left_out])
    before = read(HERE / "recorded_answers.json")
    for name in left_out:
        del before[name]
    assert list(differences(before, answers, tolerance=TOLERANCE)) == []


def test_the_answers_with_keys_and_cors_are_the_recorded_ones() -> None:
    """Keys are checked, and origins get their headers, as recorded."""
    with Process(*FLAGS, *GUARDED_FLAGS) as service:
        answers = recorded(service.url, GUARDED)
    before = read(HERE / "recorded_answers_guarded.json")
    assert list(differences(before, answers, tolerance=TOLERANCE)) == []
