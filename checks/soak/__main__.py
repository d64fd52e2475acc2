"""Runs a server with mixed traffic and faults, and checks every answer, memory, files and threads.

    python -m checks.soak [--minutes N] [--seed N] [--workers N ...]

First it runs the server as one process, which is the default, and then with two workers, whose
processes have faults of their own. The exit code is 1 if an answer was wrong, lost or an
unexplained error, if a counter fell, or if a server did not exit with 0 after SIGTERM under load.
"""

import argparse
import asyncio
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE

from benchmarks.service import ROOT, Service, free_port
from benchmarks.tables import conditions
from checks.soak.calls.http import Calls
from checks.soak.calls.truth import Truth
from checks.soak.faults import grpc_abuse
from checks.soak.faults.drawn import Faults
from checks.soak.measuring import report
from checks.soak.measuring.counters import Counters
from checks.soak.measuring.neighbours import Neighbours
from checks.soak.measuring.tally import Tally
from checks.soak.measuring.watch import MEASURES, Watch
from checks.soak.traffic import FINAL_LOAD_S, Traffic
from checks.soak.wire import ADMIN_KEY, KEY
from checks.support.tls import make_certificate

FIGURES = ROOT / "checks/soak/results.json"
PAGE = ROOT / "docs/measurements/soak.md"
TEXTS = 3_000
WARM_UP = 0.2  # share of the whole time
BETWEEN_SIGNALS_S = 0.05
REST_S = 5.0  # without traffic, before the process is measured at rest


def main() -> int:
    """Run the soak, store the outcome and print it."""
    parser = argparse.ArgumentParser(
        "checks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=30, help="of all servers together (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of texts and faults (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[1, 2], help="of each server (default: 1 2)"
    )
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        bundle = shutil.copytree(EMBEDDED_BUNDLE, Path(folder, "bundle"))  # faults change it
        certificate, key = make_certificate(Path(folder), "soak")
        tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
        outcomes = _outcomes(bundle, tls, options.minutes, options.seed, options.workers)
    report.keep(outcomes, FIGURES, PAGE)
    print(report.tables(outcomes))
    return int(any(outcome["failures"] or outcome["exit_code"] for outcome in outcomes))


def _outcomes(
    bundle: Path, tls: Sequence[str], minutes: float, seed: int, servers: Sequence[int]
) -> list[dict[str, Any]]:
    """The outcome of each server, one after the other; they have these numbers of workers.

    Beside each is one with the flags ``tls``, for the floods of TLS.
    """
    truth = Truth(bundle, TEXTS, seed)
    for done in truth.compute():
        if done % 1_000 == 0:
            print(f"computed the expected answers of {done} texts", flush=True)
    outcomes = []
    for workers in servers:
        grpc_port = free_port()
        keys = {"SENTIMENT_API_KEYS": KEY, "SENTIMENT_ADMIN_KEYS": ADMIN_KEY}
        flags = ["--grpc-port", str(grpc_port), "--workers", str(workers)]
        with (
            Service(bundle, *tls, variables=keys) as beside,
            Service(bundle, *flags, variables=keys) as service,
        ):
            share = minutes / len(servers)
            outcomes.append(_soak(service, beside, workers, grpc_port, truth, share, seed))
        print(f"{workers} workers: {outcomes[-1]['failures'] or 'no failures'}")
        print(*outcomes[-1]["examples"], sep="\n", flush=True)
    return outcomes


def _soak(
    service: Service,
    beside: Service,
    workers: int,
    grpc_port: int,
    truth: Truth,
    minutes: float,
    seed: int,
) -> dict[str, Any]:
    """Run traffic and faults until the server ends; returns the outcome."""
    calls = Calls(truth, random.Random(seed))
    tally, watch = Tally(), Watch(service.pid)
    traffic = Traffic(service.port, grpc_port, calls, tally, random.Random(seed + 1))
    neighbours = Neighbours(service.pid, traffic.may_be_late)
    faults = Faults(traffic, service.pid, seed + 2, beside.port, of_workers=workers > 1)
    watching = [watch.run, neighbours.run, Counters(service.port, tally).run]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        capacity = runner.run(_ask(traffic, faults, watching, 60 * minutes))
        at_rest = watch.look()
        runner.run(_end(service, traffic))
    code, _ = service.wait()
    beside.signal(signal.SIGTERM)
    code = code or beside.wait()[0]
    for log in (service.log, beside.log):
        for found in re.finditer("Traceback", log):
            tally.failed("tracebacks in the log", log[max(0, found.start() - 500) :])
    warm_up_s = WARM_UP * 60 * minutes
    warm = next(sample for sample in watch.samples if sample.seconds >= warm_up_s)
    slopes = {what: watch.per_hour(what, after_s=warm_up_s) for what in MEASURES}
    return {
        "conditions": conditions(),
        "workers": workers,
        "minutes": minutes,
        "seed": seed,
        "capacity_tokens_per_second": capacity,
        "cpu_share_of_other_programs": round(neighbours.share, 3),
        "requests": tally.requests,
        "faults": tally.faults,
        "texts_compared": tally.texts,
        "failures": tally.failures,
        "examples": tally.examples,
        "exit_code": code,
        "after_warm_up": asdict(warm),
        "at_the_end": asdict(watch.samples[-1]),
        "at_rest": asdict(at_rest),
        "per_hour": slopes,
        "samples": [asdict(sample) for sample in watch.samples],
    }


async def _ask(
    traffic: Traffic,
    faults: Faults,
    watching: Sequence[Callable[[], Coroutine[Any, Any, None]]],
    seconds: float,
) -> float:
    """Send traffic and faults, then rest; the capacity in tokens per second."""
    async with asyncio.TaskGroup() as tasks:
        watches = [tasks.create_task(watch()) for watch in watching]
        capacity = await traffic.capacity()
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as sending:
            sending.create_task(traffic.run(until, capacity=capacity))
            sending.create_task(faults.run(until))
        await traffic.close()
        for watch in watches:
            watch.cancel()
    await asyncio.sleep(REST_S)
    return capacity


async def _end(service: Service, traffic: Traffic) -> None:
    """Send the signals under load."""
    with grpc_abuse.ignores_goaway(traffic.grpc_port):
        await traffic.final_load(_terminate(service))


async def _terminate(service: Service) -> None:
    """A second SIGTERM, and the reload that has begun, change nothing."""
    await asyncio.sleep(FINAL_LOAD_S)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):
        service.signal(number)
        await asyncio.sleep(BETWEEN_SIGNALS_S)


if __name__ == "__main__":
    sys.exit(main())
