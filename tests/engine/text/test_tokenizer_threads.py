"""Long lists are tokenised by several threads where CPUs are idle: when, and with what result."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sentiment_service.engine import loading
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE
from sentiment_service.engine.model.device import CPU, CUDA
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.text.text_tokenizer import PARALLELISM, WordCache
from sentiment_service.settings.settings import Settings

from tests.conftest import SET_BY_HAND
from tests.support.serving import run_program

# Prints how many threads were started by a list, and by single texts before it.
COUNTING = """
import os, sys
from pathlib import Path
from sentiment_service.engine.model.bundle import Bundle
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.text.text_tokenizer import use_idle_cpus
model = load_model(Bundle.open(Path(sys.argv[1])), device="cpu", precision="auto", threads=1)
def threads():
    return len(os.listdir("/proc/self/task"))
at_first = threads()
model.tokenizer.texts.divides_lists = use_idle_cpus(int(sys.argv[2]))
for text in ["one new text of several words", "Grüße an alle", "日本語 😀"]:
    model.tokenizer.encode_batch([text])
alone = threads() - at_first
model.tokenizer.encode_batch([f"text {number}" for number in range(1_000)])
print(alone, threads() - at_first)
"""


# Prints what the tokenizer's library is told with a model in a program, then with the service.
TELLING = """
import os, sys
from sentiment_service import Classifier, Settings, create_app
ways = {"runners": 1, "threads": 1}
Classifier(sys.argv[1], **ways)
print(os.environ["TOKENIZERS_PARALLELISM"])
create_app(Settings(model=(sys.argv[1],), max_batch_tokens=512, **ways))
print(os.environ["TOKENIZERS_PARALLELISM"])
"""


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a test, the tokenizer's library has the variables that it had before."""
    for name in (PARALLELISM, "RAYON_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


def _texts() -> list[str]:
    draw = random.Random(5)
    pieces = ["love", "worst", "new", "Grüße", "日本語", "😀", "", "\0", "\ud800", "word " * 400]
    texts = [" ".join(draw.choices(pieces, (9, 9, 9, 3, 3, 3, 2, 0.1, 0.1, 0.1), k=6))]
    return [*texts, *(f"{number} {draw.choice(pieces)}" for number in range(1_000))]


def _load(monkeypatch: pytest.MonkeyPatch, provider: str, cpus: float, path: Path) -> Model:
    """The model as it is loaded with so many CPUs, with this provider's name."""
    load = load_model

    def named(*args: Any, **keywords: Any) -> Model:
        model = load(*args, **keywords)
        model.provider = provider
        return model

    monkeypatch.setattr(loading, "load_model", named)
    settings = Settings.model_validate({"model": (path,), **SET_BY_HAND})
    return loading.load(path, settings.engine_config(), cpus)[0]


@pytest.mark.parametrize(
    ("provider", "cpus", "divides"),
    [(CUDA, 6.9, False), (CUDA, 7, True), (CUDA, 64, True), (CPU, 64, False)],
)
def test_lists_are_divided_where_cpus_are_idle(
    monkeypatch: pytest.MonkeyPatch, bundle: Path, provider: str, cpus: float, divides: bool
) -> None:
    """Lists are divided on a GPU if four CPUs are left by two runners and the event loop."""
    assert _load(monkeypatch, provider, cpus, bundle).tokenizer.texts.divides_lists is divides


@pytest.mark.parametrize(("idle", "started"), [(3, 0), (4, 4), (100, 8)])
def test_a_list_starts_the_threads_and_a_single_text_does_not(idle: int, started: int) -> None:
    """A long list starts as many threads as CPUs are idle, from 4 to 8; single texts start none."""
    command = [sys.executable, "-c", COUNTING, str(EMBEDDED_BUNDLE), str(idle)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["0", str(started)]


@pytest.mark.parametrize(("given", "kept"), [(None, "false"), ("true", "true")])
def test_what_a_program_tells_the_library_is_kept(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, kept: str
) -> None:
    """A Classifier leaves a program's tokenizers as they are told to be; the service decides."""
    monkeypatch.delenv(PARALLELISM)
    if given:
        monkeypatch.setenv(PARALLELISM, given)
    monkeypatch.setenv("SENTIMENT_MAX_BATCH_TOKENS", "512")
    done = run_program(sys.executable, "-c", TELLING, str(bundle))
    assert done.stdout.split() == [kept, "false"], done.stderr


def test_a_divided_list_has_the_same_encodings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads give the same encodings and errors in the same order, without the cache of words."""
    texts = _texts()
    one = _load(monkeypatch, CPU, 7, EMBEDDED_BUNDLE).tokenizer.encode_batch(texts)
    divided = _load(monkeypatch, CUDA, 7, EMBEDDED_BUNDLE)
    monkeypatch.setattr(WordCache, "encode", None)
    assert [*map(repr, divided.tokenizer.encode_batch(texts))] == [*map(repr, one)]
