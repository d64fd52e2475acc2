"""All answers to a corpus of requests, odd ones included, are the recorded ones."""

from pathlib import Path

from benchmarks.replay.comparison import differences
from benchmarks.replay.corpus import CORPUS
from benchmarks.replay.recording import read, recorded
from tests.support.serving import Process

RECORDING = Path(__file__).with_name("recorded_answers.jsonl")
# For logits of a CPU whose kernels round in another way.
TOLERANCE = 1e-4


def test_the_answers_are_the_recorded_ones() -> None:
    """Status, headers and body stay as they are.

    If a change of answers is meant, record them again and review the diff:
    ``python -m benchmarks.replay record http://127.0.0.1:8000 tests/api/recorded_answers.jsonl``.
    """
    with Process("--runners", "2", "--threads", "1", "--max-batch-tokens", "512") as service:
        answers = recorded(service.url, CORPUS)
    found = list(differences(read(RECORDING), answers, tolerance=TOLERANCE))
    assert not found, "\n".join(found)
