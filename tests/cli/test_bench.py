"""The command `sentiment bench`: when it sends, what it finds, and what it says."""

import asyncio
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from itertools import chain, count, islice, pairwise, repeat
from pathlib import Path
from typing import Any

import pytest
import yaml
from sentiment_service.cli import bench, bench_service
from sentiment_service.cli.bench import Measurement, Step
from sentiment_service.cli.bench_service import Target
from sentiment_service.cli.command import main
from sentiment_service.cli.load_generator import (
    PROCESS_RATE,
    Generator,
    Load,
    Outcome,
    arrivals,
    run,
)
from sentiment_service.errors import UserError
from sentiment_service.installation import child_command

from tests.support.serving import ROOT, Program, children_of, environment, eventually, patched, runs

# What a fake service does before it answers: the number of the request, and the status to answer.
Answer = Callable[[int], Awaitable[int]]
DOCUMENT = b'{"results": [], "detail": "no such key"}'


@contextmanager
def fake_service(answer: Answer) -> Iterator[str]:
    """A real HTTP server on a loop of its own; yields its URL."""
    numbers, started, loop = count(), threading.Event(), asyncio.new_event_loop()
    urls: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = next(
                    (
                        int(line.partition(b":")[2])
                        for line in head.lower().split(b"\r\n")
                        if line.startswith(b"content-length")
                    ),
                    0,
                )
                await reader.readexactly(size)
                status = await answer(next(numbers)) if head.startswith(b"POST") else 404
                lines = f"HTTP/1.1 {status} Any\r\ncontent-length: {len(DOCUMENT)}\r\n\r\n"
                writer.write(lines.encode() + DOCUMENT)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def until_stopped() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        started.set()
        await stopped.wait()
        server.close()
        await asyncio.sleep(0.05)  # what was accepted last has its task now
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)
        await asyncio.sleep(0.05)  # the transports close

    stopped = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(until_stopped()))
    thread.start()
    started.wait()
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join()
        loop.close()


@contextmanager
def raw_server(answer: Callable[[], Iterator[bytes]]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that sends these pieces to each client; its URL, and what the clients sent first."""
    seen: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                # The system may take minutes to notice that a client is gone that read no further.
                connection.settimeout(10)
                if not (head := connection.recv(65_536)):
                    return
                seen.append(head)
                for piece in answer():
                    connection.sendall(piece)

    thread = threading.Thread(target=serve)
    thread.start()
    port = listener.getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}", seen
    finally:
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()
        listener.close()


def one_by_one(seconds: float) -> Answer:
    """A service that computes one request at a time, each for so long."""
    lock = asyncio.Lock()

    async def answer(number: int) -> int:
        async with lock:
            await asyncio.sleep(seconds)
        return 200

    return answer


def _statuses(*statuses: int) -> Answer:
    """The first request gets the first status, and so on; the last is for all others."""

    async def answer(number: int) -> int:
        return statuses[min(number, len(statuses) - 1)]

    return answer


def _measurement(
    target: Target, goal_ms: float = 1_000, seconds: float = 0.5, **more: Any
) -> Measurement:
    return Measurement(target, ['{"inputs": "love"}'], 1, goal_ms, seconds, **more)


def _step(rate: float, fault: str = "", **more: Any) -> Step:
    return Step(rate, rate, 2.0, 4.0, 8.0, fault=fault, **more)


def test_arrivals_are_those_of_a_poisson_process() -> None:
    """As many as the rate says, with gaps whose deviation is their mean, at other times by seed."""
    times = list(arrivals(500.0, 10.0, 210.0, seed=0))
    gaps = [after - before for before, after in pairwise(times)]
    assert len(times) == pytest.approx(100_000, rel=0.02)
    assert statistics.mean(gaps) == pytest.approx(1 / 500, rel=0.02)
    assert statistics.stdev(gaps) == pytest.approx(1 / 500, rel=0.02)
    assert list(islice(arrivals(500.0, 10.0, 210.0, seed=1), 3)) != times[:3]


def test_several_processes_share_a_high_rate() -> None:
    """No process sends more than it can; each begins elsewhere in the texts, at other times."""
    shares = Load("http://x/", [*"abcdef"], 16, 1.0, rate=2.5 * PROCESS_RATE).shares()
    assert [share.rate for share in shares] == [pytest.approx(2.5 * PROCESS_RATE / 3)] * 3
    assert [share.bodies[0] for share in shares] == ["a", "c", "e"]
    assert {len(share.bodies) for share in shares} == {6}
    assert len({share.seed for share in shares}) == 3
    assert Load("http://x/", ["a"], 16, 1.0).shares() == [Load("http://x/", ["a"], 16, 1.0)]


def test_a_stall_is_in_the_latency_of_all_who_waited() -> None:
    """Requests that were due while the service stood still count from then, not from its end.

    A client that waits for one answer before it sends the next would see one slow request of
    hundreds (coordinated omission).
    """

    async def answer(number: int) -> int:
        if number == 150:  # half a second after the warm-up
            time.sleep(1.0)  # noqa: ASYNC251 - nobody is answered meanwhile
        return 200

    with fake_service(answer) as url:
        load = Target(url).load(["{}"], 2.0, rate=100.0)
        outcome = run(load)
    waited = [latency for latency in outcome.latencies["200"] if latency > 0.1]
    assert outcome.percentile_ms(99) >= 900
    assert len(waited) > outcome.ok() / 5


def test_the_wait_for_a_connection_is_in_the_latency() -> None:
    """Where no connection is free and no more may be opened, a latency begins when it was due."""
    one = (
        "from sentiment_service.cli import load_generator as g; "
        "g.MAX_CONNECTIONS = 1; main = g.main"
    )
    with fake_service(one_by_one(0.05)) as url:
        load = Target(url).load(["{}"], 0.5, rate=50.0)
        outcome = run(replace(load, connections=1, warm_up_seconds=0), child_command(one))
    assert outcome.percentile_ms(100) >= 400  # it answers 20 of the 50 a second


@pytest.mark.parametrize("start", [1.0, 300.0, 40_000.0])
def test_the_search_ends_close_below_the_capacity(start: float) -> None:
    """Whether it begins below or above; no rate is called too high after one bad measurement."""
    measured: list[float] = []

    def measure(rate: float) -> Step:
        measured.append(rate)
        hiccup = measured.count(rate) == 1 and len(measured) % 3 == 0
        return _step(rate, "too slow" if hiccup or rate > 777 else "")

    found = bench.best(bench.search(measure, start, least=1.0))
    assert found is not None
    assert 777 / bench.CLOSE <= found.rate <= 777


def test_the_search_gives_up_at_the_least_rate() -> None:
    """A service that is always too slow has no best rate, and the search ends."""
    steps = bench.search(lambda rate: _step(rate, "too slow"), 8.0, least=2.0)
    assert bench.best(steps) is None
    assert [step.rate for step in steps] == [8.0, 8.0, 4.0, 4.0, 2.0, 2.0]


def test_the_capacity_of_a_real_server_is_not_overrated() -> None:
    """It answers 50 requests a second. At twice that, the last of a step wait for over a second."""
    with fake_service(one_by_one(0.02)) as url:
        measurement = _measurement(Target(url), goal_ms=1_000, seconds=1)
        steps = [measurement.step(rate) for rate in (measurement.start(), 100.0)]
    assert 10 < steps[0].rate <= 25
    assert [step.fault for step in steps] == ["", "too slow"]
    assert {step.cpu_ms for step in steps} == {None}  # it has no metrics
    options = Namespace(p99_ms=1_000, target_rps=500)
    (found,) = json.loads(bench.document({1: steps}, options))["results"]
    assert found["replicas"] >= 500 / found["requests_per_second"]
    assert found["scaling_threshold_ms"] is None


def test_answers_that_are_not_200_are_no_throughput() -> None:
    """However fast they come, the rate is too high, and the line says how many they were."""
    with fake_service(_statuses(*[200] * 60, 429)) as url:
        step = _measurement(Target(url)).step(100.0)
    assert step.fault.endswith(" 429")
    assert " of " in step.fault
    assert not step.client_late


def test_many_answers_do_not_block_the_load() -> None:
    """Their latencies are more than a pipe holds, and the metrics are looked at meanwhile."""
    seen = dict.fromkeys(("queue_wait_seconds", "texts_total", "process_cpu_seconds_total"), 1.0)

    class Metered(Target):
        def metrics(self) -> dict[str, float]:
            return seen

    with fake_service(_statuses(200)) as url:
        step = _measurement(Metered(url), seconds=4.0).step(600.0)
    assert step.answered > 0
    assert step.wait_ms == 1_000.0


class _Sent:
    """A generator that has ended with this outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def __call__(self, load: Load) -> "_Sent":
        return self

    def __enter__(self) -> "_Sent":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def outcome(self) -> Outcome:
        return self._outcome


@pytest.mark.parametrize(
    ("latency_s", "fault"),
    [(0.09, ""), (0.28, "this client was late to send by 250 ms"), (2.0, "too slow")],
    ids=["in time", "client", "service"],
)
def test_a_weak_client_is_not_taken_for_a_slow_service(latency_s: float, fault: str) -> None:
    """If the step failed because this client was late, it says so, and not that it was too slow.

    It is good if answers were in time all the same, and the service's fault if they would have been
    too late without the client's part.
    """
    outcome = Outcome(1.0, {"200": [latency_s] * 100}, [0.25] * 100)
    target = Target("http://127.0.0.1:9")
    step = _measurement(target, goal_ms=100, generator=_Sent(outcome)).step(100.0)
    assert (step.fault, step.client_late) == (fault, fault.startswith("this client"))


OPTIONS = Namespace(p99_ms=50, target_rps=None, seconds=10.0)


def _said(*steps: Step) -> str:
    return bench.conclusions(steps, 1, OPTIONS)


def test_the_result_says_when_the_client_was_the_limit() -> None:
    """Then the rate is a lower bound."""
    late = _step(200, "this client was late", client_late=True)
    limited = _said(_step(100), late, _step(400, "429"))
    assert "at least 100.0 requests/s" in limited
    assert "run it on a machine of its own" in limited
    honest = _said(_step(100), _step(200, "too slow"))
    assert "100.0 requests/s (100 texts/s) of 1 text within 50 ms" in honest
    assert "at least" not in honest


@pytest.mark.parametrize(
    ("target", "rate", "replicas"), [(2_000, 812, 4), (100, 812, 2), (2_000, 2_000, 2)]
)
def test_replicas_have_a_reserve_and_one_may_fail(
    target: float, rate: float, replicas: int
) -> None:
    """At most 70 % of each is used, and without one the others still answer in time."""
    assert bench.replicas(target, rate) == replicas
    assert target / replicas <= 0.7 * rate
    assert target / (replicas - 1) <= rate


def test_the_threshold_is_written_as_in_deploy() -> None:
    """Half of the wait at the highest rate, in the units of the components and the chart."""
    shown = _said(_step(100, wait_ms=24.4), _step(200, "too slow", wait_ms=900.0))
    components = ROOT / "deploy/kubernetes/components"
    hpa = (components / "hpa-queue/horizontalpodautoscaler.yaml").read_text()
    target = yaml.safe_load(hpa)["spec"]["metrics"][0]["pods"]["target"]
    assert target["averageValue"].endswith("m")
    assert "averageValue: 12m in hpa-queue" in shown
    assert 'threshold: "0' in (components / "keda/scaledobject.yaml").read_text()
    assert 'threshold: "0.012" in keda' in shown
    values = yaml.safe_load((ROOT / "deploy/helm/sentiment/values.yaml").read_text())
    assert "queueWaitMs" in values["autoscaling"]
    assert "autoscaling.queueWaitMs=12 in the chart" in shown


@pytest.mark.parametrize(("wait_ms", "ms"), [(0.0, 10), (4.2, 10), (19.0, 10), (60.0, 30)])
def test_the_threshold_is_never_what_a_batch_takes(wait_ms: float, ms: int) -> None:
    """A shorter wait says nothing of load; what is said then, and after short steps, is why."""
    step = _step(100, wait_ms=wait_ms)
    shown = _said(step)
    assert f"scale out at a predicted wait of {ms} ms: averageValue: {ms}m in hpa-queue" in shown
    assert (f"half of the {wait_ms:.1f} ms" in shown) == (wait_ms < 18)
    assert "too short" not in shown
    short = bench.conclusions([step], 1, Namespace(**{**vars(OPTIONS), "seconds": 2.0}))
    assert "steps of 2 s are too short" in short
    assert "--seconds 10 or more" in short
    (found,) = json.loads(bench.document({1: [step]}, OPTIONS))["results"]
    assert found["scaling_threshold_ms"] == ms


def test_own_service_is_measured_and_ended(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the texts of a file, one or three a request: CPU time and wait come from its metrics.

    No process is left.
    """
    texts, made = tmp_path / "a.csv", tmp_path / "found.json"
    texts.write_text('id,review\n1,love\n2,""\n3,worst\n')
    monkeypatch.setattr(bench, "search", lambda measure, start, least: [measure(60.0)])
    monkeypatch.setenv("SENTIMENT_API_KEYS", "secret-key")  # which are not for the own service
    options = ["--input", str(texts), "--column", "review", "--texts-per-request", "1,3"]
    options += ["--p99-ms", "20000", "--seconds", "1", "--json", str(made)]
    code = main(["bench", "--model", str(bundle), *options])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    for texts_each, found in zip((1, 3), json.loads(made.read_text())["results"], strict=True):
        assert found["texts_per_request"] == texts_each
        (step,) = found["steps"]
        assert step["cpu_ms"] > 0
        assert found["scaling_threshold_ms"] >= 10
    assert "60.0 requests/s (180 texts/s) of 3 texts within 20000 ms" in shown.out


def test_a_service_that_does_not_start_is_one_line(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line of its log says why."""
    assert main(["bench", "--model", str(bundle), "--device", "cuda:9"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("sentiment: ")
    assert "Traceback" not in last
    assert "cuda" in last.lower()


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        ([401], "answers 401: set SENTIMENT_API_KEY to a key it accepts"),
        ([404], "answers 404: no such key"),
        ([200, 503], "requests that are sent one by one fail"),
    ],
)
def test_a_service_that_refuses_is_one_line(
    statuses: list[int], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured of a service that answers with errors."""
    with fake_service(_statuses(*statuses)) as url:
        assert main(["bench", "--url", url]) == 1
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_a_service_that_is_too_slow_at_any_rate_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table shows what was tried, and the exit code is 1."""
    monkeypatch.setattr(bench.Measurement, "step", lambda own, rate: _step(rate, "too slow"))
    with fake_service(_statuses(200)) as url:
        assert main(["bench", "--url", url, "--p99-ms", "20000", "--target-rps", "9"]) == 1
    shown = capsys.readouterr()
    assert shown.out.count(" too slow |") > 2
    assert "no rate was answered within 20000 ms" in shown.err


def test_a_goal_below_one_lone_request_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The search would only confirm it, in minutes."""
    with fake_service(one_by_one(0.05)) as url:
        assert main(["bench", "--url", url, "--p99-ms", "20"]) == 1
    assert "(p50) without other load; give a longer --p99-ms" in capsys.readouterr().err


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_key_stays_at_its_url(status: int) -> None:
    """A redirect is not followed, neither by the first request nor for the metrics."""
    with raw_server(lambda: iter([b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"])) as (
        other,
        seen,
    ):
        head = f"HTTP/1.1 {status} X\r\nlocation: {other}/\r\ncontent-length: 0\r\n\r\n"
        with raw_server(lambda: iter([head.encode()])) as (url, asked):
            target = Target(url, "secret-key")
            with pytest.raises(UserError, match=f"answers {status}, a redirect"):
                target.check("{}")
            assert not target.metrics()["texts_total"]
        assert seen == []
    assert all(b"authorization: Bearer secret-key\r\n" in head for head in asked)


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "piece", "timeout_s", "words"),
    [
        # Python limits the number of these since 3.14.
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.5, "(within 0.5 s|it does not speak HTTP)"),
        (OK, b"x: y\r\n", 60, "it does not speak HTTP"),
        (CHUNKED, b"10000\r\n" + b" " * 65_536 + b"\r\n", 60, "has more than 16777216 bytes"),
        (CHUNKED, b"4\r\n[[[[\r\n", 0.5, "(within 0.5 s|more than 16777216 bytes)"),
    ],
    ids=["100s", "headers", "body", "small pieces"],
)
def test_an_answer_without_an_end_is_given_up(
    head: bytes, piece: bytes, timeout_s: float, words: str
) -> None:
    """Whether it is another 100 each time, a header or a piece of the body."""
    endless = raw_server(lambda: chain([head], repeat(piece)))
    with endless as (url, _), pytest.raises(UserError, match=words):
        Target(url, timeout_s=timeout_s).check("{}")


def test_answers_that_announce_another_are_not_counted() -> None:
    """A 100 or 103 before an answer is none: each request has one latency."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    with raw_server(lambda: iter([early + answer])) as (url, _):
        outcome = run(replace(Target(url).load(["{}"], 0.5, None), warm_up_seconds=0.0))
    assert outcome.latencies.keys() <= {"200", "lost"}
    assert outcome.ok() > 0


def test_the_outcome_may_come_with_the_word_that_it_is_connected() -> None:
    """Both are read in one piece where this process was late to look; nothing is lost."""
    told = json.dumps(asdict(Outcome(1.0, {"200": [0.1]}, [0.0])))
    write = f"import os; os.write(1, b'\\n' + {told.encode()!r})"
    load = Load("http://127.0.0.1:9/", ["{}"], 1, 1.0)
    with Generator(load, (sys.executable, "-c", write)) as generator:
        assert generator.outcome().ok() == 1


def test_a_service_that_cannot_be_reached_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Its address and the reason, without a traceback."""
    with fake_service(_statuses(200)) as url:
        pass
    assert main(["bench", "--url", url]) == 1
    assert capsys.readouterr().err == f"sentiment: {url} does not answer: Connection refused\n"
    assert main(["bench", "--url", "http://localhost:http"]) == 1
    said = "sentiment: http://localhost:http does not answer: Port could not be cast"
    assert capsys.readouterr().err.startswith(said)


def test_a_service_that_has_gone_ends_the_search() -> None:
    """A step that reaches nobody is an error with the URL."""
    with fake_service(_statuses(200)) as url:
        measurement = _measurement(Target(url))
    with pytest.raises(UserError, match=f"{url}/classify cannot be reached"):
        measurement.step(100.0)


@pytest.mark.parametrize(
    ("content", "column", "said"),
    [("text\n\n", "text", "has no text to send"), ("a,b\n1,2\n", "text", "has no column 'text'")],
    ids=["empty", "column"],
)
def test_a_file_without_texts_is_refused(
    content: str, column: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started."""
    path = tmp_path / "texts.csv"
    path.write_text(content)
    assert main(["bench", "--input", str(path), "--column", column]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--p99-ms", "0"],
        ["--p99-ms", "nan"],
        ["--target-rps", "0"],
        ["--seconds", "-1"],
        ["--texts-per-request", "0"],
        ["--texts-per-request", "many"],
        ["--url", "127.0.0.1:8000"],
        ["--url", "http://127.0.0.1:9", "--model", "x"],
        ["--input", "texts.docx"],
        ["--column", "review"],
        ["--json", "no/such/directory/found.json"],
    ],
    ids=" ".join,
)
def test_wrong_usage(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and a line that names the option, before anything is started."""
    try:
        code: Any = main(["bench", *options])
    except SystemExit as left:
        code = left.code
    assert code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert options[0] in said or options[1] in said


def test_ctrl_c_ends_service_and_load(bundle: Path) -> None:
    """The exit code is 130; no traceback is shown, and no process is left."""
    options = ["bench", "--model", str(bundle), "--seconds", "60", "--p99-ms", "20000"]
    # In the background of a shell, these tests and what they start ignore Ctrl-C.
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    with Program(
        [*patched(heeds), *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment(),
    ) as process:
        assert process.stderr is not None
        while "requests of 1 text" not in process.stderr.readline():
            assert process.poll() is None
        eventually(lambda: len(children_of(process.pid)) == 2)
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == ""
    eventually(lambda: not any(map(runs, children)))


def test_a_log_that_is_held_open_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the service has started may live on, and be the only one that could end the log."""
    code = """
import subprocess, sys, time
holder = subprocess.Popen(["sleep", "60"])
print(f"http://127.0.0.1:{holder.pid}", file=sys.stderr, flush=True)
time.sleep(60)
"""
    with bench_service.Server(sys.executable, "-c", code) as server:
        monkeypatch.setattr(bench_service, "WAIT_S", 2.0)
        holder = server.port
    assert runs(holder)
    os.kill(holder, signal.SIGKILL)


def test_unknown_figures_are_null_in_json() -> None:
    """JSON has no NaN, which is the p99 of a step without an answer."""
    nothing = Step(100.0, 0.0, math.nan, math.nan, math.nan, fault="no answer")
    written_ones = json.loads(bench.document({1: [_step(50), nothing]}, OPTIONS))["results"]
    written = written_ones[0]["steps"][1]
    assert (written["rate"], written["p99_ms"]) == (100.0, None)
