"""Serves a flat graph on the stand-ins: what clients, probes and the log see of a GPU's faults."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app.engine.model.device import CONTEXT_MB
from benchmarks.random_checkpoint import random_checkpoint, timed_export
from benchmarks.service import Service
from checks.cuda import graphs

TEXTS = [f"I love this, and that number {number} is not bad at all" for number in range(1000)]
MEMORY_MB = 140 * 2**30 // 1_000_000  # of the stand-in
ALLOCATIONS, KERNELS, NOTHING = "2", "700", ""  # the faults of stand_ins/cudart.c
PATIENCE_S = 60.0


def faults(folder: Path, variables: dict[str, str]) -> Iterator[str]:
    """What is wrong, a few words each. ``variables`` are those of ``stand_ins.build``."""
    folder.mkdir()
    checkpoint = random_checkpoint(folder / "checkpoint", "roberta", **graphs.SHAPE)
    timed_export(checkpoint, folder / "bundle", "--precision", "fp16")
    fault = Path(variables["STAND_IN_FAULT"])

    def serve(*flags: str) -> Service:
        where = ("--device", "cuda", "--cache-dir", str(folder / "cache"))
        return Service(folder / "bundle", *where, *flags, variables=variables)

    with serve(
        "--runners", "1", "--max-batch-tokens", "65536", "--max-queue-tokens", "999999"
    ) as one:
        yield from _alone(one, fault)
    yield from _not_json(one)
    with serve("--workers", "2", "--gpu-memory-mb", "0") as two:
        yield from _together(two, fault)
    yield from _not_json(two)


def _alone(service: Service, fault: Path) -> Iterator[str]:
    """One process: memory runs out in a batch; then the GPU is lost."""
    fault.write_text(ALLOCATIONS)
    status, answer = _classify(service)
    fault.write_text(NOTHING)
    labels = [result.get("label") for result in answer.get("results", [])]
    if status != 200 or len(labels) < len(TEXTS) or not all(labels):
        yield f"a batch without memory is not computed in parts: {status}"
    lowered = service.info()["limits"]["max_batch_tokens"]
    if not lowered < sum(map(len, map(str.split, TEXTS))):
        yield f"the budget is {lowered} after memory ran out"
    _classify(service)
    if (kept := service.info()["limits"]["max_batch_tokens"]) != lowered:
        yield f"the lowered budget {lowered} is {kept} after another batch"
    fault.write_text(KERNELS)
    seen = [_classify(service)[0], _status(service, "/health/live")]
    fault.write_text(NOTHING)
    seen += [_classify(service)[0], _status(service, "/health/live")]
    if seen != [503] * 4:
        yield f"a lost GPU is no lost GPU: {seen}"


def _together(service: Service, fault: Path) -> Iterator[str]:
    """Two workers on the GPU share it; one that loses it is replaced."""
    _until(lambda: [one["stage"] for one in service.info()["workers"]] == ["ready"] * 2)
    limit = service.info()["provider_options"].get("gpu_mem_limit")
    if limit != str((MEMORY_MB // 2 - CONTEXT_MB) * 1_000_000):
        yield f"a worker of two may take {limit} bytes"
    if (measured := service.log.count("kept in")) != 1:
        yield f"{measured} workers have measured"
    fault.write_text(KERNELS)
    if (status := _classify(service)[0]) != 503:
        yield f"a lost GPU gives {status}"
    fault.write_text(NOTHING)
    _until(lambda: "is replaced" in service.log)
    _until(lambda: {_classify(service)[0] for _ in range(8)} == {200})


def _not_json(service: Service) -> Iterator[str]:
    """The first line of the log that is none of its own."""
    for line in service.log.splitlines():
        try:
            json.loads(line)
        except ValueError:
            yield f"the log has the line: {line}"
            return


def _classify(service: Service) -> tuple[int, Any]:
    body = json.dumps({"inputs": TEXTS}).encode()
    asked = urllib.request.Request(  # noqa: S310
        f"{service.url}/classify", body, {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(asked) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, {}


def _status(service: Service, path: str) -> int:
    try:
        with urllib.request.urlopen(f"{service.url}{path}") as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _until(reached: Callable[[], bool]) -> None:
    """Wait for it.

    Raises:
        TimeoutError: it is not reached in time.
    """
    end = time.monotonic() + PATIENCE_S
    while not reached():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.1)
