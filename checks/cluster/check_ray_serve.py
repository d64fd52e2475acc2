"""Runs the example of Ray Serve: answers, refusals, autoscaling, and what Ray's proxy costs.

The service alone and the one behind Ray Serve get the same requests in turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from checks.cluster.rerun import ROOT, rerun_with

EXAMPLE = ROOT / "deploy/ray-serve"
ALONE, BEHIND = 18_000, 18_001  # ports
BODIES = [json.dumps({"inputs": text}) for text in ("I love this!", "worst service ever", "meh")]
# Enough texts, at 64 connections, for more than the example's tokens in one queue.
LONG_BODY = json.dumps({"inputs": [f"{number} " + "so so " * 60 for number in range(8)]})
# Settings of both. No replica measures its plan, and none answers from another's cache.
VARIABLES = {
    "PYTHONPATH": f"{EXAMPLE}:{ROOT}",
    "SENTIMENT_RUNNERS": "2",
    "SENTIMENT_THREADS": "1",
    "SENTIMENT_MAX_BATCH_TOKENS": "512",
}


def main() -> None:
    """Run the check; an AssertionError says what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="paired measurements [%(default)s]")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each one [%(default)s]")
    arguments = parser.parse_args()
    rerun_with("ray", "ray_serve.txt")
    os.environ |= VARIABLES | {"RAY_AUTH_MODE": "disabled"}
    sys.path.insert(0, str(EXAMPLE))
    with _alone(), _behind_ray():
        _check_answers()
        _measure(arguments.rounds, arguments.seconds)
        _check_autoscaling()


@contextmanager
def _alone() -> Iterator[None]:
    command = "import sys; from app.cli.command import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "serve", "--port", str(ALONE)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _eventually(lambda: _get(ALONE, "/health/ready") == 200, "the service became ready")
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _behind_ray() -> Iterator[None]:
    import ray
    import sentiment_serve
    from ray import serve

    started = time.monotonic()
    # Ray believes in four CPUs, so that there is room for a second replica.
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": BEHIND})
        example: Any = sentiment_serve.Sentiment
        config = example._deployment_config.autoscaling_config.model_dump()  # noqa: SLF001 - Ray has no other way
        quick = {"upscale_delay_s": 1, "metrics_interval_s": 0.5, "look_back_period_s": 2}
        deployment = example.options(autoscaling_config=config | quick)
        serve.run(deployment.bind())
        print(f"Ray Serve: ready after {time.monotonic() - started:.1f} s")
        yield
    finally:
        serve.shutdown()
        ray.shutdown()


def _check_answers() -> None:
    """The same bodies and statuses, also for refusals of the service."""
    requests: list[tuple[bytes, dict[str, str]]] = [(body.encode(), {}) for body in BODIES]
    requests += [
        (b'{"inputs": ["fine", ""]}', {}),
        (b'{"inputs": ""}', {}),
        (b"[", {}),
        (BODIES[0].encode(), {"x-request-timeout-ms": "soon"}),
    ]
    for body, headers in requests:
        headers = {"x-request-id": "same", "content-type": "application/json", **headers}
        alone, behind = (_post(port, body, headers) for port in (ALONE, BEHIND))
        assert alone == behind, (body[:50], alone, behind)
    print("Ray Serve: the same answers, errors included")


def _measure(rounds: int, seconds: float) -> None:
    """Requests of one text: throughput with 32 connections, and p50 with one."""
    from benchmarks.load import Load, run

    for connections in (32, 1):
        ratios = []
        for _ in range(rounds):
            rates, medians = [], []
            for port in (ALONE, BEHIND):
                outcome = run(Load(port, "/classify", BODIES, connections, seconds))
                assert set(outcome.latencies) == {"200"}, outcome.latencies.keys()
                rates.append(outcome.ok_per_second())
                medians.append(outcome.percentile_ms(50))
            ratios.append(rates[1] / rates[0])
            print(
                f"{connections} connections: alone {rates[0]:,.0f}/s, p50 {medians[0]:.1f} ms; "
                f"behind Ray Serve {rates[1]:,.0f}/s, p50 {medians[1]:.1f} ms"
            )
        print(f"{connections} connections: Ray Serve ÷ alone: {statistics.median(ratios):.2f}")


def _check_autoscaling() -> None:
    """A long queue adds a replica."""
    from ray import serve

    from benchmarks.load import Generator, Load

    def replicas() -> int:
        (deployment,) = serve.status().applications["default"].deployments.values()
        return sum(deployment.replica_states.values())

    assert replicas() == 1
    with Generator(Load(BEHIND, "/classify", [LONG_BODY], 64, 120)):
        _eventually(lambda: replicas() > 1, "a replica was added for the tokens in the queue")


def _post(port: int, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/classify", body, headers)
    with _opened(request) as response:
        return response.status, json.load(response)


def _get(port: int, path: str) -> int:
    with _opened(urllib.request.Request(f"http://127.0.0.1:{port}{path}")) as response:
        status: int = response.status
        return status


def _opened(request: urllib.request.Request) -> Any:
    try:
        return urllib.request.urlopen(request, timeout=60)  # noqa: S310
    except HTTPError as error:
        return error


def _eventually(condition: Callable[[], bool], what: str) -> None:
    for _ in range(240):
        try:
            if condition():
                print(f"Ray Serve check: {what}")
                return
        except OSError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"in two minutes, it did not happen that {what}")


if __name__ == "__main__":
    main()
