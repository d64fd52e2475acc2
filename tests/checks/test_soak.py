"""The soak's own parts: it asks every route, and a wrong or a lost answer cannot escape it."""

import asyncio
import json
import math
import os
import random
import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from sentiment_service.adapters.grpc.messages import METHODS
from sentiment_service.api.application import OWN_PATHS
from sentiment_service.config.settings import Settings
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE
from sentiment_service.main import create_app

from benchmarks.service import free_port
from checks.soak.calls.call import Call
from checks.soak.calls.http import Calls
from checks.soak.calls.truth import Truth
from checks.soak.faults import grpc_abuse
from checks.soak.faults.deaths import Deaths
from checks.soak.faults.drawn import Faults
from checks.soak.faults.outcomes import KILLED
from checks.soak.grpc_wire import GrpcClient
from checks.soak.measuring import report
from checks.soak.measuring.counters import Counters
from checks.soak.measuring.tally import Tally
from checks.soak.measuring.watch import MEASURES, Watch
from checks.soak.traffic import Traffic
from checks.soak.wire import ADMIN_KEY, KEY, Answer, Connection, Lost
from tests.conftest import FLAGS, SET_BY_HAND
from tests.support.serving import ROOT, Process

GRPC_PORT = free_port()


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """A few texts, and what each gives alone with a copy of the embedded model."""
    return _truth(tmp_path_factory.mktemp("soak"))


def _truth(folder: Path) -> Truth:
    return Truth(shutil.copytree(EMBEDDED_BUNDLE, folder / "bundle"), 60, seed=1)


@pytest.fixture(scope="module")
def process(truth: Truth) -> Iterator[Process]:
    """This copy, served."""
    with _serve(truth, "--grpc-port", str(GRPC_PORT)) as process:
        yield process


def _serve(truth: Truth, *flags: str) -> Process:
    keys = {"SENTIMENT_API_KEYS": KEY, "SENTIMENT_ADMIN_KEYS": ADMIN_KEY}
    return Process("--model", str(truth.model.path), *FLAGS, *flags, variables=keys)


@pytest.fixture
def calls(truth: Truth) -> Calls:
    """Requests on these texts."""
    return Calls(truth, random.Random(1))


def test_every_route_is_asked(calls: Calls) -> None:
    """A new route must find its place in the traffic."""
    app: FastAPI = create_app(Settings.model_validate(SET_BY_HAND))
    asked = {calls.draw().route for _ in range(3_000)}
    for route in (route for route in app.routes if isinstance(route, APIRoute)):
        for method in route.methods or ():
            if not (method == "POST" and route.path in OWN_PATHS.admin):  # those are the faults
                assert f"{method} {route.path}" in asked
    for path in METHODS:
        if not path.endswith(("/Watch", "/ServerReflectionInfo")):  # Watch is a fault
            assert f"gRPC {path}" in asked


def test_every_answer_is_the_texts_own_to_the_last_bit(calls: Calls, process: Process) -> None:
    """Whatever route it comes from, and in whatever company it was computed."""
    tally = Tally()
    traffic = Traffic(process.port, GRPC_PORT, calls, tally, random.Random(1))

    async def ask() -> None:
        for _ in range(3):
            await asyncio.gather(*(traffic.ask(calls.draw()) for _ in range(30)))
        await traffic.close()
        await asyncio.sleep(0)  # they close in the event loop's next turn

    asyncio.run(ask())
    assert tally.failures == {}, tally.examples
    assert sum(sum(counts.values()) for counts in tally.requests.values()) == 90
    assert tally.texts > 90


def test_one_wrong_digit_is_found(calls: Calls, process: Process) -> None:
    """In one number of an answer, on each route that gives some."""

    async def answer(call: Call) -> Answer:
        if call.is_grpc:
            async with GrpcClient(GRPC_PORT) as client:
                return await client.ask(call)
        async with await Connection.open(process.port) as connection:
            return await connection.ask(call.request)

    makers = [calls.one, calls.several, calls.passage, calls.windows, calls.hugging_face]
    makers += [calls.predict, calls.infer, calls.infer_binary, calls.vllm, calls.explain]
    makers += [calls.grpc.infer, calls.grpc.infer_raw]
    for make in [*makers, calls.stream]:
        call = make()
        sound = asyncio.run(answer(call))
        assert call.sound(sound)
        if call.is_grpc:
            assert not call.sound(_other_bit(call, sound)), call.route
            continue
        changed = bytearray(sound.body)
        if make == calls.infer_binary:
            changed[-4] ^= 1  # the lowest bit of the last number
        else:
            *_, number = re.finditer(rb"\d\.\d{6}", sound.body)
            changed[number.end() - 1] ^= 1  # its sixth place: 0 and 1, 2 and 3, ...
        assert not call.sound(replace(sound, body=bytes(changed))), call.route


def _other_bit(call: Call, answer: Answer) -> Answer:
    """The gRPC answer with another lowest bit in one of its numbers."""
    response = METHODS[call.method].response.FromString(answer.body)
    if response.raw_output_contents:
        raw = bytearray(response.raw_output_contents[-1])
        raw[-4] ^= 1
        response.raw_output_contents[-1] = bytes(raw)
    else:
        last = response.outputs[-1].contents.fp32_contents
        last[-1] = float(np.nextafter(np.float32(last[-1]), np.float32(9)))
    return replace(answer, body=response.SerializeToString())


def test_an_answer_has_a_temperature_that_may_be_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until all serve the other one, either may come; both in one answer only in a stream."""
    truth = _truth(tmp_path)
    calls, texts = Calls(truth, random.Random(1)), truth.tweets[:2]
    monkeypatch.setattr(calls, "_texts", lambda count: texts)
    old, new = ([truth.of(text) for text in texts] for _ in truth.views(-math.inf))
    mixed = [old[0], new[1]]
    answers = [json.dumps({"results": results}) for results in (old, new, mixed)]
    lines = [json.dumps({"id": n, **one}) for n, one in enumerate(mixed)]

    def seen(call: Call) -> list[bool]:
        return [call.sound(Answer(200, {}, answer.encode())) for answer in answers]

    def streamed(call: Call, lines: list[str]) -> bool:
        return call.sound(Answer(200, {}, "\n".join(lines).encode()))

    before, stream = calls.classify(texts), calls.stream()
    assert seen(before) == [True, False, False]
    truth.recalibrate()
    assert seen(before) == seen(calls.classify(texts)) == [True, True, False]
    truth.switched()
    assert seen(before) == [True, True, False]
    assert seen(calls.classify(texts)) == [False, True, False]
    assert streamed(stream, lines)
    assert not streamed(stream, lines[:1])
    assert not streamed(calls.stream(), lines)


def test_what_must_not_happen_is_a_failure(calls: Calls) -> None:
    """Each kind has its line in the report, and makes the exit code 1."""
    tally, call = Tally(), calls.one()
    tally.lost(call, "reset")
    tally.answered(call, Answer(500, {}, b""), {200, 429})
    tally.answered(call, Answer(200, {}, b"{}"), {200, 429})
    tally.fault("sends bytes that are not HTTP", "none", {"400"})
    tally.failed("tracebacks in the log", "Traceback ...")
    counters = Counters(0, tally)
    counters.compare('# TYPE a_total counter\na_total{b="c"} 2.0\na_total{b="d"} 1.0\n')
    assert "counters that fell" not in tally.failures
    counters.compare('# TYPE a_total counter\na_total{b="c"} 1.0\n')
    assert tally.failures["counters that fell"] == 2  # one is lower, one is gone
    assert set(tally.failures) == set(report.FAILURES)


def test_faults_are_drawn_and_their_outcomes_counted(calls: Calls, process: Process) -> None:
    """What clients see of those that break nothing is what they should."""
    tally = Tally()
    traffic = Traffic(process.port, GRPC_PORT, calls, tally, random.Random(1))
    faults = Faults(traffic, process.pid, seed=1)
    asked = [
        "reload by HTTP",
        "reload of a damaged bundle",
        "recalibration, loaded by HTTP",
        "recalibration, loaded by SIGHUP",
        "sends bytes that are not HTTP",
        "sends a header of 100 KB",
        "sends an invalid request body",
        "sends invalid Unicode",
        "sends a decompression bomb",
        "sends thousands of empty gzip members",
        "sends half of a compressed body",
        "sends damaged compressed data",
        "sends an unknown content-encoding",
        "sends a wrong key",
        "sends its body in chunks of one byte",
        "50 clients read the open pages",
        "requests an unknown path or model",
        "pipelines several requests",
        *grpc_abuse.faults(traffic),
    ]

    async def inflict() -> None:
        await asyncio.gather(*map(faults.inflict, asked))
        await traffic.close()

    asyncio.run(inflict())
    assert tally.failures == {}, tally.examples
    assert set(tally.faults) == set(asked)


async def _ask_kept(process: Process, calls: Calls, tally: Tally) -> None:
    """Kill a worker under load, and wait until another has taken its place."""
    traffic = Traffic(process.port, GRPC_PORT, calls, tally, random.Random(1))
    faults = Faults(traffic, process.pid, seed=1, of_workers=True)
    await asyncio.gather(*(traffic.ask(calls.one()) for _ in range(8)))  # 8 kept connections
    killing = asyncio.create_task(faults.inflict("kill -9 of a worker"))
    while not killing.done():
        await asyncio.gather(*(traffic.ask(calls.one()) for _ in range(8)))
    for kind in (
        "reload by SIGHUP while a worker restarts",
        "SIGSTOP of a worker for some seconds",
        "recalibration, loaded by the successor of a killed worker",
    ):
        await faults.inflict(kind)
    await traffic.close()


def test_a_killed_worker_explains_the_loss_of_its_connections(tmp_path: Path) -> None:
    """Only those that it had when it was killed: any other lost answer is a failure."""
    calls, tally = Calls(_truth(tmp_path), random.Random(1)), Tally()
    with _serve(calls.truth, "--workers", "2") as process:
        asyncio.run(_ask_kept(process, calls, tally))
    assert tally.failures == {}, tally.examples
    assert 1 <= tally.requests["POST /classify"][KILLED] <= 8
    assert sum(counts["done"] for counts in tally.faults.values()) == 4

    async def lose() -> Lost:
        with socket.create_server(("127.0.0.1", 0)) as server:
            async with await Connection.open(server.getsockname()[1]) as connection:
                server.accept()[0].close()
                with pytest.raises(Lost) as lost:
                    await connection.answer()
        return lost.value

    assert not Deaths().explain(asyncio.run(lose()))


def test_the_outcome_stands_between_the_marks_of_the_page(tmp_path: Path) -> None:
    """And nothing else of the page changes; figures are kept as JSON."""
    page = tmp_path / "page.md"
    page.write_text((ROOT / "docs/measurements/soak.md").read_text("utf-8"), "utf-8")
    before, after = report.MARKS.split(page.read_text("utf-8"))[:: report.MARKS.groups + 1]
    looked = dict.fromkeys(MEASURES, 7)
    outcome = {
        "conditions": {"date": "2026-01-02"},
        "workers": 1,
        "cpu_share_of_other_programs": 0.0,
        "minutes": 1.0,
        "seed": 3,
        "capacity_tokens_per_second": 9_000.0,
        "requests": {"GET /health": {"200": 12_345}},
        "faults": {"sends bytes that are not HTTP": {"400": 2}},
        "texts_compared": 99,
        "failures": {"wrong answers": 1},
        "exit_code": 0,
        **dict.fromkeys(("after_warm_up", "at_the_end", "at_rest", "per_hour"), looked),
    }
    two = outcome | {"workers": 2, "requests": {"GET /health": {"200": 6, KILLED: 5}}}
    report.keep([outcome, two], tmp_path / "soak.json", page)
    text = page.read_text("utf-8")
    assert text.startswith(before)
    assert text.endswith(after)
    for line in (
        "| what | one process | 2 workers |",
        "| wrong answers | 1 | 1 |",
        "| requests | 12,345 | 11 |",
        "| not answered, because the soak killed their worker | 0 | 5 |",
    ):
        assert line in text
    assert report.MARKS.search(text)


def test_growth_is_seen() -> None:
    """A straight line through the samples, an hour's worth of it."""
    watch = Watch(pid=1)
    look = partial(replace, Watch(os.getpid()).look())
    watch.samples = [look(seconds=float(s), memory_mb=100 + s / 36) for s in range(0, 360, 10)]
    assert watch.per_hour("memory_mb", after_s=60) == pytest.approx(100)
