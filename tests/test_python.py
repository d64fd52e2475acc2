"""`Classifier`: the service's model in a Python program."""

import asyncio
import copy
import gc
import inspect
import io
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr
from dataclasses import asdict, fields
from itertools import count
from pathlib import Path
from typing import Any, get_type_hints

import httpx2
import pandas as pd
import pyarrow as pa
import pytest
import sentiment_service
from sentiment_client import Results, outcome_of
from sentiment_service import Classifier, ItemError, Prediction, UserError
from sentiment_service.engine.model.model import Model
from sentiment_service.errors import EmptyText, InvalidRequest, TextTooLong
from sentiment_service.files.table import Chunk
from sentiment_service.results import Prediction as AnsweredPrediction
from sentiment_service.settings.settings import CheckpointOptions, Settings

from tests.support.batching import until
from tests.support.serving import Gate, Program, environment, run_program
from tests.support.tiny_bundle import LABELS, make_bundle

FIELDS = {field.name for field in fields(Prediction)}
WAYS: dict[str, Any] = {"runners": 2, "threads": 1}
# A program that classifies far more than it has time for; each batch takes 5 ms at least.
SLOW = """
import os, sys, time
from sentiment_service.engine.model.model import Model
from sentiment_service import Classifier
infer = Model.infer
Model.infer = lambda self, encodings: (time.sleep(0.005), infer(self, encodings))[1]
classifier = Classifier(sys.argv[1], runners=2, threads=1)
"""


@pytest.fixture(autouse=True)
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTIMENT_MAX_BATCH_TOKENS", "512")


@pytest.fixture
def classifier(bundle: Path) -> Iterator[Classifier]:
    with Classifier(bundle, runners=2, threads=1) as classifier:
        yield classifier


def test_it_gives_what_the_service_gives(url: str, classifier: Classifier) -> None:
    """Label, scores, logits and errors of each text are those of POST /classify, to the bit."""
    texts = ["love", "it is the worst", "", "love " * 400, "\0", None, "a" * 50_001]
    texts += [f"{'love ' * 400}. Dr. No is the worst! 🙂. It is love."]
    ways: list[Any] = [{"overflow": overflow} for overflow in ("truncate", "window", "error")]
    for options in (*ways, {**ways[2], "split": "sentences", "language": "de"}):
        answer = httpx2.post(f"{url}/classify", json={"inputs": texts, **options}).json()
        results = classifier.classify(texts, **options)
        for ours, theirs in zip(results, answer["results"], strict=True):
            if isinstance(ours, ItemError):
                assert ours.code == theirs["error"]["code"]
            else:
                assert _members(ours) == theirs
    assert classifier.labels == answer["labels"]


def _members(result: Any) -> dict[str, Any]:
    """A result as it is in an answer."""
    members = {k: v for k, v in asdict(result).items() if v is not None}
    if isinstance(result, ItemError):
        members["error"] = {name: members.pop(name) for name in ("code", "message")}
    elif result.sentences is not None:
        members["sentences"] = [*map(_members, result.sentences)]
    return members


def test_a_sentence_that_fails() -> None:
    """It has its error in its place, as in an answer."""
    error = {"error": {"code": "inference_failed", "message": "no logits"}, "start": 3, "end": 9}
    prediction = outcome_of({**dict.fromkeys(FIELDS), "sentences": [error]})
    assert [*map(_members, prediction.sentences or ())] == [error]


def test_a_prediction_has_every_field_of_an_answer() -> None:
    """What is added to the results of HTTP must be added here."""
    assert set(get_type_hints(AnsweredPrediction)) == FIELDS


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"overflow": "windows"}, "overflow must be 'truncate', 'error' or 'window'"),
        ({"split": "words"}, "split must be 'sentences'"),
        ({"language": "english"}, "language must be a language tag"),
        ({"threshold": 1.1}, "threshold must be at most 1"),
        ({"threshold": 0.5}, "threshold is for multi-label models"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_options_are_refused(classifier: Classifier, options: Any, says: str) -> None:
    """With the words of POST /classify, also where no text needs the option."""
    for texts in ("love", ["love"], []):
        with pytest.raises(InvalidRequest, match=says):
            classifier.classify(texts, **options)


@pytest.mark.parametrize("texts", ["love", ["love"], []], ids=["one", "several", "none"])
@pytest.mark.parametrize("name", ["model", "inputs", "overflw"])
def test_an_unknown_option_is_refused_alike(classifier: Classifier, texts: Any, name: str) -> None:
    """Each way to classify raises TypeError at the call, also for a member of a request's body."""
    ways: list[Callable[..., Any]] = [
        classifier.classify,
        lambda *given, **options: asyncio.run(classifier.aclassify(*given, **options)),
        *([classifier.classify_iter] if texts != "love" else ()),
    ]
    for way in ways:
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            way(texts, **{name: "other"})


def test_options_for_a_checkpoint(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every flag that `serve` has for a checkpoint is a keyword; a bundle takes none."""
    keywords = inspect.signature(Classifier).parameters
    assert {*CheckpointOptions.model_fields, "refresh"} <= keywords.keys()
    with pytest.raises(UserError, match="is a bundle, and labels, text_pairs cannot change it"):
        Classifier(bundle, labels=["bad", "good"], text_pairs=True)
    seen: list[Settings] = []

    def caught(settings: Settings, _: Any) -> Settings:
        seen.append(settings)
        raise UserError("it is caught")

    monkeypatch.setattr("sentiment_service.python.with_bundles", caught)
    more: dict[str, Any] = {"preprocessing": "none", "max_tokens": 9, "refresh": True}
    for labels in ("bad,good", ("bad", "good")):
        with pytest.raises(UserError, match="it is caught"):
            Classifier("acme/tiny@v1", labels=labels, multi_label=False, **more)
        settings = seen.pop()
        assert (settings.model, settings.refresh) == ((Path("acme/tiny@v1"),), True)
        words = ["--labels", "bad,good", "--preprocessing", "none", "--single-label"]
        assert settings.checkpoint_flags() == [*words, "--max-tokens", "9"]


def test_half_of_a_surrogate_pair_is_said_alike(classifier: Classifier) -> None:
    """A string of Python has no encoding of which one could speak."""
    (chunk,) = classifier.classify_iter(["a\udce9"])
    for result in (*classifier.classify(["a\udce9"]), *chunk):
        assert isinstance(result, ItemError)
        assert "surrogate pair" in result.message


def test_a_single_bad_text_raises(classifier: Classifier) -> None:
    """The error says why, with the code that the service gives it."""
    with pytest.raises(EmptyText, match="blank"):
        classifier.classify("")
    for missing in (None, float("nan")):
        with pytest.raises(EmptyText, match="no text"):
            classifier.classify(missing)  # type: ignore[call-overload]
    for strange in (3, b"love"):
        with pytest.raises(InvalidRequest, match="string"):
            classifier.classify(strange)  # type: ignore[arg-type]
    with pytest.raises(TextTooLong):
        classifier.classify("love " * 400, overflow="error")
    with pytest.raises(InvalidRequest, match="takes single texts"):
        classifier.classify({"text": "love", "text_pair": "it"})


def test_any_sequence(classifier: Classifier) -> None:
    """Lists, tuples, Arrow arrays, long iterators; other values are errors in their place."""
    assert classifier.classify([]) == []
    many = classifier.classify("love" if n % 2 else "worst" for n in range(5_001))
    assert [one.label for one in many if isinstance(one, Prediction)][:2] == [
        "negative",
        "positive",
    ]
    assert len(many) == 5_001
    arrow = classifier.classify(pa.array(["love", None]))
    assert [type(one) for one in arrow] == [Prediction, ItemError]
    with pytest.warns(UserWarning, match="^4 of 6 values are neither .* int;"):
        mixed = classifier.classify(("love", {"text": "love"}, 3, b"love", ["love"], {"a": "love"}))
    assert mixed[0] == mixed[1]
    assert [getattr(one, "code", "") for one in mixed[2:]] == ["invalid_request"] * 4


def test_a_column_of_pandas(classifier: Classifier) -> None:
    """None, NaN and NA are errors in their place; the frame has the column's index."""
    texts = ["love", None, float("nan"), "", pd.NA, "worst"]
    frame = pd.DataFrame({"text": texts}, index=list("uvwxyz"))
    results = classifier.classify(frame["text"])
    codes = [getattr(one, "code", None) for one in results]
    assert codes == [None, *["empty_text"] * 4, None]
    made = results.to_frame()
    scores = [f"score_{label}" for label in LABELS]
    assert [*made.columns] == ["label", "score", *scores, "polarity", "warnings", "error"]
    assert [*made["label"].dropna().items()] == [("u", "positive"), ("z", "negative")]
    assert made["score"]["u"] == results[0].score
    assert made["error"]["x"].startswith("empty_text: ")
    assert [*classifier.classify([]).to_frame().columns] == [*made.columns]
    with pytest.raises(TypeError, match="one column"):
        classifier.classify(frame)
    words = pd.Series(["love"], index=["columns"])  # which is then an attribute of it
    assert classifier.classify(words).labels == ["positive"]


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.reverse(),
        lambda made: made.append(made[0]),
        lambda made: made.pop(0),
        lambda made: made.__setitem__(0, made[1]),
    ],
)
def test_results_that_were_changed_have_no_index(
    classifier: Classifier, change: Callable[[Results], None]
) -> None:
    """A row never gets another text's index; a list that is again as it was has its own."""
    results = classifier.classify(pd.Series(["love", "worst"], index=["a", "b"]))
    assert [*copy.deepcopy(results)[::-1].to_frame().index] == ["b", "a"]
    first, second = results
    change(results)
    assert [*results.to_frame().index] == [*results[:].to_frame().index] == [*range(len(results))]
    assert [*results.to_frame()["label"]] == results.labels
    results[:] = [first, second]
    assert [*results.to_frame().index] == ["a", "b"]


def test_results_are_columns(classifier: Classifier) -> None:
    """Each column has a value for each text, None where there is none; a part has them, too."""
    results = classifier.classify(["love", "", "worst"])
    assert results.labels == ["positive", None, "negative"]
    assert results.scores == [results[0].score, None, results[2].score]
    assert results.polarity == [results[0].polarity, None, results[2].polarity]
    assert [error and error.split(":")[0] for error in results.errors] == [None, "empty_text", None]
    assert (len(results), results[1:].labels) == (3, [None, "negative"])
    frame, table = results.to_frame(), results.to_arrow()
    assert table.column_names == [*frame.columns]
    assert table["label"].to_pylist() == results.labels
    assert results[::-1].to_frame()["error"].to_list()[1] == results.errors[1]
    assert classifier.classify([]).to_arrow().schema == table.schema


def test_what_a_notebook_shows_of_results(classifier: Classifier) -> None:
    """Counts by label, the first rows and the first errors, and never all of a long list."""
    results = classifier.classify(["love", *["worst"] * 20_000, "", "love"])
    shown = repr(results).splitlines()
    assert shown[0] == "20,003 texts: negative 20,000, neutral 0, positive 2, errors 1"
    assert [line.split()[:2] for line in shown[1:]] == [
        ["0", "positive"],
        *([str(row), "negative"] for row in range(1, 5)),
        ["20,001", "error"],
    ]
    html = results._repr_html_()
    assert html.count("<tr>") == 6
    assert html.startswith(f"<p>{shown[0]}</p>")
    assert results.summary() == {
        "texts": 20_003,
        "labels": {"negative": 20_000, "neutral": 0, "positive": 2},
        "errors": {"empty_text": 1},
        "truncated": 0,
        "polarity": pytest.approx(results[1].polarity, abs=0.01),
    }
    assert repr(classifier.classify([])).splitlines() == [
        "0 texts: negative 0, neutral 0, positive 0, errors 0"
    ]
    assert repr(classifier) == f"<Classifier of {results.model}>"  # its name, digest and labels


def test_a_notebook_shows_no_labels_of_many_that_no_text_has(tmp_path: Path) -> None:
    """A thousand zeros would hide what there is."""
    bundle = make_bundle(
        tmp_path / "many", outputs=1_000, labels=[f"mood {n}" for n in range(1_000)]
    )
    with Classifier(bundle, runners=1, threads=1) as many:
        shown = repr(many.classify(["love", "worst", ""])).splitlines()
    assert shown[0] == "3 texts: mood 0 1, mood 2 1, errors 1"


def test_results_are_drawn(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar for each label."""
    pytest.importorskip("matplotlib").use("agg")
    axes = classifier.classify(["love", "love", "worst", ""]).plot()
    assert [bar.get_height() for bar in axes.patches] == [1, 0, 2]
    assert [label.get_text() for label in axes.get_xticklabels()] == LABELS


def test_a_generator_of_any_length(classifier: Classifier) -> None:
    """It is read as its results are used, a few chunks ahead, and then closed."""
    read = 0

    def endless() -> Iterator[str | None]:
        nonlocal read
        while True:
            read += 1
            yield ("love", None, "worst")[read % 3]

    chunks = classifier.classify_iter(endless())
    assert read == 0
    for number, chunk in zip(range(1, 4), chunks, strict=False):
        assert len(chunk) == 2_000
        assert read <= (number + 3) * 2_000
        assert [*map(bool, chunk.errors)].count(True) in (666, 667)
    three = classifier.classify_iter(pa.array(["love", None, "worst"]))
    assert [chunk.labels for chunk in three] == [["positive", None, "negative"]]
    assert [*classifier.classify_iter([])] == []
    with pytest.raises(TypeError, match="classify takes a single one"):
        classifier.classify_iter("love")
    with pytest.raises(InvalidRequest, match="overflow must be"):
        classifier.classify_iter(["love"], overflow="cut")  # type: ignore[arg-type]


async def test_asyncio(classifier: Classifier, gate: Gate) -> None:
    """The event loop goes on meanwhile; results and errors are those of ``classify``."""
    texts = ["love", None, "worst"] * 1_000
    gate.close()
    waiting = asyncio.create_task(classifier.aclassify(texts))
    await until(gate.reached.is_set)
    gate.open.set()
    assert await waiting == classifier.classify(texts)
    series = pd.Series(["love", ""], index=["a", "b"])
    assert [*(await classifier.aclassify(series)).to_frame().index] == ["a", "b"]
    assert (await classifier.aclassify("love")).label == "positive"
    with pytest.raises(EmptyText):
        await classifier.aclassify("")


async def test_a_cancelled_call_of_asyncio(classifier: Classifier, gate: Gate) -> None:
    """What was being computed is finished, and nothing more is read."""
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "love"

    gate.close()
    task = asyncio.create_task(classifier.aclassify(endless()))
    await until(gate.reached.is_set)
    task.cancel()
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert read <= 8_000
    assert classifier.classify("love").label == "positive"


def test_a_cancelled_call_computes_no_further(
    classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches that are being computed are finished; most of a list's are never begun."""
    compute, begun = Model.compute, 0

    def slowly(self: Model, encodings: Any) -> Any:
        nonlocal begun
        begun += 1
        time.sleep(0.05)
        return compute(self, encodings)

    monkeypatch.setattr(Model, "compute", slowly)

    async def call() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(classifier.aclassify(["love " * 40] * 2_000), 0.2)

    asyncio.run(call())  # which waits for the threads
    assert begun < 30  # of more than 60
    assert classifier.classify("love").label == "positive"


async def test_a_call_that_is_cancelled_between_chunks_computes_no_further(
    classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a notebook cancels a cell, whose traceback it keeps; the next texts are not computed."""
    compute, begun = Model.compute, 0
    first = asyncio.Event()

    def counted(self: Model, encodings: Any) -> Any:
        nonlocal begun
        begun += 1
        time.sleep(0.01)
        return compute(self, encodings)

    async def to_thread(*call: Any) -> Any:
        result = await asyncio.get_running_loop().run_in_executor(None, *call)
        first.set()
        await asyncio.sleep(0)  # is cancelled here, when no thread waits for a result
        return result

    monkeypatch.setattr(Model, "compute", counted)
    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    task = asyncio.create_task(classifier.aclassify(["love " * 40] * 6_000))
    await first.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as kept:
        await task
    begun = 0
    await asyncio.sleep(0.5)
    assert begun <= 2  # of some 50 that there is time for
    assert kept.tb


def test_a_column_of_numbers_is_warned_of_once(classifier: Classifier) -> None:
    """One warning for more than a tenth of the values; none for missing values or a few numbers.

    It names the line that called, also of the three chunks that asyncio gets.
    """

    async def call(texts: list[Any]) -> None:
        await classifier.aclassify(texts)

    def call_asyncio(texts: list[Any]) -> None:
        asyncio.run(call(texts))

    ways: list[Callable[..., object]] = [classifier.classify, call_asyncio]
    for way in ways:
        with pytest.warns(UserWarning, match="^4,500 of 4,501 values are neither text nor") as seen:
            way([*range(4_500), "love"])
        assert [one.filename for one in seen] == [__file__]
    with pytest.warns(UserWarning, match="2,000 of 2,000 values"):
        assert len([*classifier.classify_iter(range(5_000))]) == 3
    assert classifier.classify(["love"] * 9 + [3]).labels.count(None) == 1
    assert classifier.classify([None, float("nan"), "love"]).labels[:2] == [None, None]


def test_threads_share_a_model(
    bundle: Path, classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight threads get what one gets, and together compute two batches at a time at most."""
    texts = ["love it", "worst", "it is"] * 200
    alone = classifier.classify(texts)
    lock, busy, most = threading.Lock(), 0, 0
    compute = Model.compute

    def counted(self: Model, encodings: Any) -> Any:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        try:
            return compute(self, encodings)
        finally:
            with lock:
                busy -= 1

    monkeypatch.setattr(Model, "compute", counted)
    with ThreadPoolExecutor(8) as threads:
        together = threads.map(lambda _: classifier.classify(texts), range(8))
        assert all(results == alone for results in together)
    assert most == 2


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stderr", "module", "shown"),
    [(_Terminal(), "os", True), (io.StringIO(), "ipykernel", True), (io.StringIO(), "os", False)],
    ids=["terminal", "notebook", "neither"],
)
def test_the_progress_bar(
    classifier: Classifier,
    monkeypatch: pytest.MonkeyPatch,
    stderr: io.StringIO,
    module: str,
    shown: bool,
) -> None:
    """It counts the texts of a long list, on a terminal and in a notebook only."""
    monkeypatch.setattr("sentiment_service.python.BAR_AFTER_S", 0.0)
    monkeypatch.setitem(sys.modules, module, sys.modules["os"])
    with redirect_stderr(stderr):
        classifier.classify(["love", None] * 2_000)
    assert ("/4000" in stderr.getvalue()) is shown


def _closed() -> io.StringIO:
    with io.StringIO() as file:
        return file


class _Odd:
    isatty = False


@pytest.mark.parametrize("module", ["os", "ipykernel"])
@pytest.mark.parametrize(
    "stderr", [None, _closed(), object(), _Odd()], ids=["none", "closed", "empty", "odd"]
)
def test_standard_error_may_be_anything(
    bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stderr: object,
    module: str,
) -> None:
    """A program may have none, a closed one, or an object without its methods: lines are left out.

    They are not written to standard output either.
    """

    def exported(settings: Settings, say: Callable[[str], None]) -> Settings:
        say("exporting ORG/NAME; this is done once")
        return settings

    monkeypatch.setattr("sentiment_service.python.with_bundles", exported)
    monkeypatch.setattr("sentiment_service.python.BAR_AFTER_S", 0.0)
    monkeypatch.setitem(sys.modules, module, sys.modules["os"])
    monkeypatch.setattr(sys, "stderr", stderr)
    with Classifier(bundle, **WAYS) as classifier:
        assert len(classifier.classify(["love"] * 2_000)) == 2_000
    assert capsys.readouterr().out == ""


def test_without_onnx_runtime() -> None:
    """The import says what to install."""
    code = "import sys; sys.modules['onnxruntime'] = None; from sentiment_service import Classifier"
    done = run_program(sys.executable, "-c", code)
    assert "which the extra 'cpu' (or 'gpu', for CUDA) installs: run" in done.stderr


def test_two_models_at_once(bundle: Path, classifier: Classifier) -> None:
    """Each has its own model and options; closing one leaves the other."""
    with Classifier(bundle, max_text_chars=3, **WAYS) as other:
        assert [one.code for one in other.classify(["love"])] == ["text_too_long"]
        assert classifier.classify("love").label == "positive"
    assert classifier.classify("love").label == "positive"


def test_a_closed_one_says_so(bundle: Path) -> None:
    """After close, which may be called again, there is no model to classify with."""
    with Classifier(bundle, **WAYS) as closed:
        pass
    closed.close()
    with pytest.raises(RuntimeError, match="closed"):
        closed.classify("love")


def test_closing_does_not_disturb_another_thread(classifier: Classifier, gate: Gate) -> None:
    """What is being classified is finished."""
    gate.close()
    with ThreadPoolExecutor(1) as thread:
        results = thread.submit(classifier.classify, ["love"] * 100)
        assert gate.reached.wait(30)
        classifier.close()
        gate.open.set()
        assert len(results.result()) == 100


def test_a_run_that_is_given_up_ends_on_any_thread(
    classifier: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector may find it on a thread that holds a lock of all pools of threads."""
    calls, given_up, freed = count(1), threading.Event(), threading.Event()

    class Pool(ThreadPoolExecutor):
        def _adjust_thread_count(self) -> None:  # ``submit`` calls it while it holds the lock
            of_tokenizer = threading.current_thread() is not threading.main_thread()
            if of_tokenizer and next(calls) == 2:
                assert given_up.wait(30)
                gc.collect()
                freed.set()
            super()._adjust_thread_count()

    monkeypatch.setattr("sentiment_service.files.local.ThreadPoolExecutor", Pool)
    assert classifier._model
    run: list[Any] = [classifier._model.outcomes([Chunk(None, ["love"])] * 2, read_ahead=1)]
    run.append(run)
    next(run[0])
    del run
    given_up.set()
    assert freed.wait(30)
    assert classifier.classify("love").label == "positive"


def test_it_is_freed_without_close(bundle: Path) -> None:
    """Nothing keeps a classifier that is no longer used, and it leaves no thread."""
    before = threading.active_count()
    forgotten = Classifier(bundle, **WAYS)
    forgotten.classify(["love"] * 100)
    model = weakref.ref(forgotten._model)
    del forgotten
    assert model() is None
    for thread in threading.enumerate()[before:]:
        thread.join(30)
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "/nothing"}, "there is no directory"),
        ({"precision": "int4"}, "^precision: must be 'auto'"),
        ({"precision": "fp16"}, "no fp16"),
        ({"runners": -1}, "^runners: must be at least 0, not -1$"),
        ({"max_text_chars": 0}, "^max_text_chars: must be at least 1"),
        ({"labels": "a,b"}, "is a bundle, and labels cannot change it"),
        ({"multi_label": False}, "is a bundle, and multi_label cannot change it"),
        ({"refresh": True}, "^refresh is for a branch or tag of the hub: give a model ORG/NAME"),
        ({"device": "cuda"}, "to serve without a GPU, use device cpu$"),
    ],
)
def test_errors_speak_of_options_and_not_of_flags(options: dict[str, Any], words: str) -> None:
    """Where the command's error has a flag, this one has the keyword."""
    with pytest.raises((ValueError, UserError), match=words):
        Classifier(**options)


def test_it_cannot_be_sent_to_another_process(classifier: Classifier) -> None:
    """Pickling it, as multiprocessing does, says what to do instead."""
    with pytest.raises(TypeError, match="give it all texts at once, or make one in each process"):
        pickle.dumps(classifier)


def test_after_a_fork(bundle: Path) -> None:
    """The child, which has none of the threads, gets an error that says where to make another."""
    code = """
import multiprocessing
print(classifier.classify("love").label, flush=True)
child = multiprocessing.get_context("fork").Process(target=classifier.classify, args=["love"])
child.start()
child.join()
print(child.exitcode)
"""
    done = run_program(sys.executable, "-c", f"{SLOW}\n{code}", str(bundle))
    assert (done.returncode, done.stdout) == (0, "positive\n1\n")
    assert "RuntimeError: a Classifier is of one process" in done.stderr
    assert "a function with functools.cache, which you call with os.getpid()" in done.stderr


def test_the_end_of_a_program_without_close(bundle: Path) -> None:
    """It ends as usual, also while another thread is in the middle of a long list."""
    code = """
import threading
threading.Thread(target=classifier.classify, args=(["love"] * 10**6,), daemon=True).start()
print(classifier.classify("love").label)
"""
    done = run_program(sys.executable, "-c", f"{SLOW}\n{code}", str(bundle))
    assert (done.returncode, done.stdout) == (0, "positive\n"), done.stderr


def test_threads_go_on_after_the_main_thread(bundle: Path) -> None:
    """In the middle of a list, later, with a new one, and in what ``atexit`` calls."""
    code = """
import atexit, threading, time
def go_on():
    long = classifier.classify(["love"] * 6_000)
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    print(len(long), classifier.classify("love").label, [r.label for r in classifier.classify(two)])
    print(Classifier(sys.argv[1]).classify("worst").label, flush=True)
two = ["love", "worst"]
atexit.register(lambda: print(classifier.classify("love").label, classifier.classify(two)[1].label))
threading.Thread(target=go_on).start()
"""
    done = run_program(sys.executable, "-c", f"{SLOW}\n{code}", str(bundle))
    lines = ["6000 positive ['positive', 'negative']", "negative", "positive negative"]
    assert (done.returncode, done.stdout.splitlines()) == (0, lines), done.stderr


def test_closing_while_other_threads_classify(bundle: Path) -> None:
    """Each call has its result, or says that the classifier is closed."""
    for _ in range(5):
        classifier = Classifier(bundle, **WAYS)
        with ThreadPoolExecutor(4) as pool:
            calls = [pool.submit(classifier.classify, "love") for _ in range(200)]
            classifier.close()
        errors = {str(call.exception()) for call in calls if call.exception() is not None}
        assert errors <= {"the Classifier is closed"}


def test_an_error_has_what_a_prediction_has(classifier: Classifier) -> None:
    """Each figure of an error is None, so that results can be read as columns, and the other way
    round; none is a part of what the other is as a dict. Those of the client are of these classes.
    """
    results = classifier.classify(["love", ""])
    assert [one.label for one in results] == ["positive", None]
    assert [one.code for one in results] == [None, "empty_text"]
    assert [one.message is None for one in results] == [True, False]
    assert asdict(results[0]).keys() == FIELDS
    assert [getattr(results[1], name) for name in sorted(FIELDS)] == [None] * len(FIELDS)
    assert asdict(results[1]).keys() == {"code", "message"}


def test_ctrl_c(bundle: Path) -> None:
    """A long list ends at once with KeyboardInterrupt, and the classifier can still be used."""
    code = """
import itertools
calls = itertools.count()  # each runner's thread makes some
def computing(self, encodings):
    if next(calls) == 0:
        print("computing", flush=True)
    return slow(self, encodings)
slow, Model.infer = Model.infer, computing
try:
    classifier.classify(["love"] * 10**6)
except KeyboardInterrupt:
    print(classifier.classify("love").label)
    raise
"""
    with Program(
        [sys.executable, "-c", f"{SLOW}\n{code}", str(bundle)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
    ) as program:
        assert program.stdout
        assert program.stdout.readline() == "computing\n"
        program.send_signal(signal.SIGINT)
        said, traceback = program.communicate(timeout=30)
    assert said == "positive\n"
    assert traceback.splitlines()[-1] == "KeyboardInterrupt"
    assert "Exception ignored" not in traceback
    assert program.returncode == -signal.SIGINT


@pytest.mark.parametrize("name", sorted({*sentiment_service.__all__} - {"classify_frame"}))
def test_each_public_name_is_there(name: str) -> None:
    """What the package says that programs import can be imported; only Spark's needs its extra."""
    assert getattr(sentiment_service, name).__module__.startswith(
        ("sentiment_service.", "sentiment_client")
    )
