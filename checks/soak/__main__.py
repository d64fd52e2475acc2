"""Runs a server with mixed traffic and faults, and checks every answer, memory, files and threads.

    python -m checks.soak [--minutes N] [--seed N]

The exit code is 1 if an answer was wrong, lost or an unexplained error, or if the server did not
exit with 0 after SIGTERM under load.
"""

import argparse
import asyncio
import random
import signal
import sys
import time
from dataclasses import asdict
from typing import Any

import uvloop

from app.engine.model.bundle import EMBEDDED_BUNDLE
from benchmarks.conditions import conditions
from benchmarks.service import ROOT, Service, free_port
from checks.soak import grpc_abuse, report
from checks.soak.calls import Calls
from checks.soak.faults import Faults
from checks.soak.tally import Tally
from checks.soak.traffic import FINAL_LOAD_S, Traffic
from checks.soak.truth import Truth
from checks.soak.watch import MEASURES, Sample, Watch
from checks.soak.wire import ADMIN_KEY, KEY

FIGURES = ROOT / "checks/soak/results.json"
PAGE = ROOT / "docs/measurements/soak.md"
TEXTS = 3_000
WARM_UP = 0.2  # share of the whole time
REST_S = 5.0  # without traffic, before the process is measured at rest


def main() -> int:
    """Run the soak, store the outcome and print it."""
    parser = argparse.ArgumentParser(
        "checks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30, help="duration (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of texts and faults (default: %(default)s)"
    )
    options = parser.parse_args()
    truth = Truth(TEXTS, options.seed)
    for done in truth.compute():
        if done % 1_000 == 0:
            print(f"computed the expected answers of {done} texts", flush=True)
    grpc_port = free_port()
    keys = {"SENTIMENT_API_KEYS": KEY, "SENTIMENT_ADMIN_KEYS": ADMIN_KEY}
    with Service(EMBEDDED_BUNDLE, "--grpc-port", str(grpc_port), variables=keys) as service:
        outcome = _soak(service, grpc_port, truth, options.minutes, options.seed)
    report.keep(outcome, FIGURES, PAGE)
    print(report.tables(outcome), *outcome["examples"], sep="\n")
    return 1 if outcome["failures"] or outcome["exit_code"] else 0


def _soak(
    service: Service, grpc_port: int, truth: Truth, minutes: float, seed: int
) -> dict[str, Any]:
    """Run traffic and faults until the server ends; returns the outcome."""
    calls = Calls(truth, random.Random(seed))
    tally, watch = Tally(), Watch(service.pid)
    traffic = Traffic(service.port, grpc_port, calls, tally, random.Random(seed + 1))
    faults = Faults(traffic, service.pid, truth.model.name, seed + 2)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        capacity, at_rest = runner.run(_ask(service, traffic, faults, watch, 60 * minutes))
    code, _ = service.wait()
    for line in service.log.splitlines():
        if "Traceback" in line:
            tally.failed("tracebacks in the log", line)
    warm_up_s = WARM_UP * 60 * minutes
    warm = next(sample for sample in watch.samples if sample.seconds >= warm_up_s)
    slopes = {what: watch.per_hour(what, after_s=warm_up_s) for what in MEASURES}
    return {
        "conditions": conditions(),
        "minutes": minutes,
        "seed": seed,
        "capacity_tokens_per_second": capacity,
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
    service: Service, traffic: Traffic, faults: Faults, watch: Watch, seconds: float
) -> tuple[float, Sample]:
    """Send traffic and faults, then rest, then send SIGTERM under load.

    Returns the capacity in tokens per second, and the process at rest.
    """
    capacity = await traffic.capacity()
    until = time.monotonic() + seconds
    watching = asyncio.create_task(watch.run())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(traffic.run(until, capacity=capacity))
        tasks.create_task(faults.run(until))
    watching.cancel()
    await asyncio.sleep(REST_S)
    at_rest = watch.look()
    with grpc_abuse.ignores_goaway(traffic.grpc_port):
        await traffic.final_load(_terminate(service))
    return capacity, at_rest


async def _terminate(service: Service) -> None:
    await asyncio.sleep(FINAL_LOAD_S)
    service.signal(signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
