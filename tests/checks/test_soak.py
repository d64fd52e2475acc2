"""The soak's own parts: it asks every route, and a wrong or a lost answer cannot escape it."""

import asyncio
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from sentiment_service.adapters import google_language
from sentiment_service.adapters.grpc.messages import METHODS
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE
from sentiment_service.http.pages import OWN_PATHS
from sentiment_service.main import create_app
from sentiment_service.settings.settings import Settings

from benchmarks.service import free_port
from checks.soak.calls.call import Call
from checks.soak.calls.http import Calls
from checks.soak.calls.truth import Truth
from checks.soak.faults import grpc_abuse
from checks.soak.grpc_wire import GrpcClient
from checks.soak.measuring import report
from checks.soak.measuring.counters import Counters
from checks.soak.measuring.tally import Tally
from checks.soak.traffic import Traffic
from checks.soak.wire import ADMIN_KEY, KEY, Answer, Connection
from tests.conftest import FLAGS, SET_BY_HAND
from tests.support.serving import Process

GRPC_PORT = free_port()


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """A few texts, and what each gives alone with a copy of the embedded model."""
    folder = tmp_path_factory.mktemp("soak")
    return Truth(shutil.copytree(EMBEDDED_BUNDLE, folder / "bundle"), 60, seed=1)


@pytest.fixture(scope="module")
def process(truth: Truth) -> Iterator[Process]:
    """This copy, served."""
    flags = ("--model", str(truth.model.path), *FLAGS, "--grpc-port", str(GRPC_PORT))
    keys = {"SENTIMENT_API_KEYS": KEY, "SENTIMENT_ADMIN_KEYS": ADMIN_KEY}
    with Process(*flags, variables=keys) as process:
        yield process


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
            if route.path in OWN_PATHS.admin and method == "POST":  # those are the faults
                continue
            if route.endpoint is not google_language.other:  # it refuses
                where = "checks/soak/calls/http.py: Calls draws no such request"
                assert f"{method} {route.path}" in asked, where
    for path in METHODS:
        if not path.endswith(("/Watch", "/ServerReflectionInfo")):  # Watch is a fault
            assert f"gRPC {path}" in asked


async def test_one_wrong_digit_is_found(calls: Calls, process: Process) -> None:
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
        sound = await answer(call)
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


async def test_faults_are_drawn_and_their_outcomes_counted(calls: Calls, process: Process) -> None:
    """What clients see of those that break nothing is what they should."""
    from checks.soak.faults.drawn import Faults  # it compresses 150 MB

    tally = Tally()
    traffic = Traffic(process.port, GRPC_PORT, calls, tally, random.Random(1))
    faults = Faults(traffic, process.pid, 1, tls_port=0)
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
        "asks for the metrics in 100 versions",
        "20 streams with windows of 16 MB",
        "20 unread streams with long ids",
        "requests an unknown path or model",
        "pipelines several requests",
        *grpc_abuse.faults(traffic),
    ]

    await asyncio.gather(*map(faults.inflict, asked))
    await traffic.close()
    assert tally.failures == {}, tally.examples
    assert set(tally.faults) == set(asked)
