"""Runs the example of Ray Serve: the service's answers and refusals, and autoscaling."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from checks.cluster.rerun import ROOT, rerun_with

EXAMPLE = ROOT / "deploy/ray-serve"
BODIES = [json.dumps({"inputs": text}) for text in ("I love this!", "worst service ever", "meh")]
# With these headers, the service must answer or refuse behind Ray Serve as it does alone.
REQUESTS: list[tuple[str, dict[str, str]]] = [
    *((body, {}) for body in (*BODIES, '{"inputs": ["fine", ""]}', '{"inputs": ""}', "[")),
    (BODIES[0], {"x-request-timeout-ms": "soon"}),
]
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
    rerun_with("ray", "ray_serve.txt")
    os.environ |= VARIABLES | {"RAY_AUTH_MODE": "disabled"}
    sys.path.insert(0, str(EXAMPLE))
    from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE

    from benchmarks.service import Service

    with Service(EMBEDDED_BUNDLE) as alone, _behind_ray() as port:
        _check_answers(alone.port, port)
        _check_autoscaling(port)


@contextmanager
def _behind_ray() -> Iterator[int]:
    """The example in a cluster of its own; the port of Ray's proxy."""
    import ray
    import sentiment_serve
    from ray import serve

    from benchmarks.service import free_port

    # Ray believes in four CPUs, so that there is room for a second replica.
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        example: Any = sentiment_serve.Sentiment
        config = example._deployment_config.autoscaling_config.model_dump()  # noqa: SLF001 - Ray has no other way
        quick = {"upscale_delay_s": 1, "metrics_interval_s": 0.5, "look_back_period_s": 2}
        deployment = example.options(autoscaling_config=config | quick)
        serve.run(deployment.bind())
        yield port
    finally:
        serve.shutdown()
        ray.shutdown()


def _check_answers(*ports: int) -> None:
    """The same bodies and statuses, also for refusals of the service."""
    import httpx

    for body, more in REQUESTS:
        headers = {"x-request-id": "same", "content-type": "application/json", **more}
        found = [
            httpx.post(f"http://127.0.0.1:{port}/classify", content=body, headers=headers)
            for port in ports
        ]
        alone, behind = ((answer.status_code, answer.json()) for answer in found)
        assert alone == behind, (body[:50], alone, behind)
    print("Ray Serve: the same answers, errors included")


def _check_autoscaling(port: int) -> None:
    """A long queue adds a replica."""
    from ray import serve
    from sentiment_service.cli.load_generator import Generator, Load

    from checks.support.waiting import wait

    def replicas() -> int:
        (deployment,) = serve.status().applications["default"].deployments.values()
        return sum(deployment.replica_states.values())

    assert replicas() == 1
    with Generator(Load(f"http://127.0.0.1:{port}/classify", [LONG_BODY], 64, 120)):
        wait(lambda: replicas() > 1, 120, "a replica is added for the tokens in the queue")
    print("Ray Serve: a replica was added for the tokens in the queue")


if __name__ == "__main__":
    main()
