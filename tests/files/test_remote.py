"""`sentiment classify --url` with a service that is away, limits clients or changes its model."""

import csv
import gc
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import sentiment_client
from sentiment_service.cli.command import main
from sentiment_service.files import remote
from sentiment_service.files import table as tables

URL = "http://service.test/"
MODEL = {"name": "tiny", "revision": None, "precision": "int8", "digest": "abc"}
LABELS = ["negative", "positive"]


class FakeService:
    """Answers with ``model`` and ``labels``, except where a step of ``script`` is left.

    A step is an answer, or an error to raise. Several threads ask, so ``script`` must not be a
    generator. ``classified`` counts the requests with texts, and ``change`` gets the results of
    each before they are sent.
    """

    def __init__(self) -> None:
        self.model, self.labels = dict(MODEL), list(LABELS)
        self.script: Iterator[httpx.Response | Exception] = iter(())
        self.classified = 0
        self.change: Callable[[list[dict[str, Any]]], None] = lambda _: None

    def handle(self, request: httpx.Request) -> httpx.Response:
        """The answer to the request."""
        if request.method == "GET":
            return httpx.Response(200, json={"models": [{**self.model, "labels": self.labels}]})
        step = next(self.script, None)
        if isinstance(step, Exception):
            raise step
        if step is not None:
            return step
        self.classified += 1
        return httpx.Response(200, json=self.answer(json.loads(request.content)["inputs"]))

    def answer(self, texts: list[str]) -> dict[str, Any]:
        """A correct answer."""
        scores = dict.fromkeys(self.labels, 0.5)
        result = {"label": self.labels[0], "score": 0.5, "scores": scores, "logits": scores}
        results = [{**result, "tokens": 3, "truncated": False} for _ in texts]
        self.change(results)
        return {"model": self.model, "labels": self.labels, "results": results}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> FakeService:
    """A service without a socket; the client does not wait long for it."""
    fake = FakeService()
    transport = httpx.MockTransport(fake.handle)
    monkeypatch.setattr(httpx, "HTTPTransport", lambda **_: transport)
    monkeypatch.setattr(sentiment_client, "FIRST_BACKOFF_S", 1e-5)
    monkeypatch.setattr(tables, "CHUNK_CHARS", 300)
    return fake


def _classify(directory: Path, *more: str) -> int:
    source, target = directory / "in.csv", directory / "out.csv"
    if not source.exists():
        source.write_text("text\n" + "I love this\n" * 400)
    options = ["--url", URL, "--input", str(source), "--output", str(target), *more]
    return main(["classify", *options])


def _rows(directory: Path) -> int:
    with (directory / "out.csv").open(newline="") as file:
        return len([row for row in csv.DictReader(file) if row["label"] == "negative"])


def _refused() -> Exception:
    return httpx.ConnectError("Connection refused")


def _busy(status: int, **headers: str) -> httpx.Response:
    document = {"status": status, "code": "busy", "detail": "it is busy"}
    return httpx.Response(status, json=document, headers=headers)


@pytest.mark.parametrize(
    "step",
    [
        _refused,
        partial(_busy, 429),
        partial(_busy, 429, **{"retry-after": "0.001"}),
        partial(_busy, 503),
        partial(httpx.Response, 502, html="<h1>Bad Gateway</h1>"),
    ],
)
def test_a_service_that_is_away_or_busy(
    service: FakeService, tmp_path: Path, step: Callable[[], httpx.Response | Exception]
) -> None:
    """The run goes on when the service is back, after many more attempts than the client's own."""
    service.script = iter([step() for _ in range(100)])
    assert _classify(tmp_path) == 0
    assert _rows(tmp_path) == 400


@pytest.mark.parametrize("code", ["deadline_exceeded", "not_ready", "shutting_down"])
def test_a_text_whose_error_passes_is_sent_again(
    service: FakeService, tmp_path: Path, code: str
) -> None:
    """Only that text, until it has a result: such an error is no row of the output."""
    asked: list[int] = []
    late = {"error": {"code": code, "message": "later"}}

    def hurried(results: list[dict[str, Any]]) -> None:
        asked.append(len(results))
        results[10:] = [late] * len(results[10:])

    service.change = hurried
    assert _classify(tmp_path) == 0
    assert _rows(tmp_path) == 400
    assert {32, 22, 12, 2} <= {*asked}


def test_a_text_that_is_never_in_time_ends_the_run(
    service: FakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After a minute without any result the run fails; --resume goes on where it was.

    The input is closed.
    """
    late = {"error": {"code": "deadline_exceeded", "message": "it took too long"}}

    def silent(results: list[dict[str, Any]]) -> None:
        results[:] = [late] * len(results)

    service.change = silent
    gc.disable()  # nothing but the run itself closes its input
    with monkeypatch.context() as patch:
        patch.setattr(remote, "PATIENCE_S", 0.01)
        assert _classify(tmp_path) == 1
    assert tmp_path / "in.csv" not in {path.resolve() for path in Path("/proc/self/fd").iterdir()}
    gc.enable()
    service.change = lambda _: None
    assert "it took too long" in capsys.readouterr().err
    assert _classify(tmp_path, "--resume") == 0
    assert _rows(tmp_path) == 400


def test_why_the_run_waits_is_shown_once(
    service: FakeService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Eight requests wait at the same time, and one of them says so."""
    monkeypatch.setattr(sentiment_client, "SHOWN_FROM_S", 0.0)
    service.script = iter([_refused() for _ in range(50)])
    assert _classify(tmp_path) == 0
    assert [message for message in caplog.messages if "HTTP Request" not in message] == [
        f"connection_failed: cannot reach {URL}: Connection refused; trying again in 0 s"
    ]


def test_a_model_that_changes_during_a_run(
    service: FakeService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run stops with the first model's results, and --resume continues with that model only."""

    def reload(_: list[dict[str, Any]]) -> None:
        if service.classified >= 10:
            service.model["digest"] = "def"

    service.change = reload
    assert _classify(tmp_path) == 1
    service.change = lambda _: None
    (line,) = capsys.readouterr().err.splitlines()
    assert "the service now serves tiny (digest def, revision None, int8, labels" in line
    assert line.endswith(f" rows are in {tmp_path}/out.csv.partial")
    assert not (tmp_path / "out.csv").exists()
    assert _classify(tmp_path, "--resume") == 1
    assert "cannot be continued: digest was 'abc' and is 'def' now" in capsys.readouterr().err
    service.model["digest"] = "abc"
    assert _classify(tmp_path, "--resume") == 0
    assert "of them in earlier runs" in capsys.readouterr().err
    assert _rows(tmp_path) == 400


def test_a_complete_output_of_another_model_is_called_that(
    service: FakeService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--resume has nothing to do only if the model and the options were the same."""
    try:
        os.setxattr(tmp_path, "user.sentiment.test", b"")
    except (AttributeError, OSError):
        pytest.skip("this file system has no extended attributes")
    assert _classify(tmp_path) == 0
    assert _classify(tmp_path, "--resume") == 0
    assert "is complete; nothing is left to do" in capsys.readouterr().err
    before = (tmp_path / "out.csv").read_bytes()
    service.model["digest"] = "def"
    assert _classify(tmp_path, "--resume") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "is complete, but of another run: digest was 'abc' and is 'def' now; --over" in line
    assert (tmp_path / "out.csv").read_bytes() == before
    assert _classify(tmp_path, "--overwrite") == _classify(tmp_path, "--resume") == 0
