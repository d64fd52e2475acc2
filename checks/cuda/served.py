"""Serves a flat graph on the stand-ins: what clients, probes and the log see of a GPU's faults."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
from sentiment_service.engine.model.device import CONTEXT_MB

from benchmarks.random_checkpoint import random_checkpoint, timed_export
from benchmarks.service import Service
from checks.cuda import graphs
from checks.support.waiting import wait

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
    seen = {"answers": _classify(service)[0]}
    fault.write_text(NOTHING)
    seen["later answers"] = _classify(service)[0]
    seen |= {probe: _status(service, f"/health/{probe}") for probe in ("live", "ready")}
    if set(seen.values()) != {503}:
        yield f"after error 700 not all is 503: {seen}"


def _together(service: Service, fault: Path) -> Iterator[str]:
    """Two workers on the GPU share it; one that loses it is replaced."""
    wait(lambda: _ready(service, replaced=0), PATIENCE_S, "both workers are ready")
    limit = service.info()["provider_options"].get("gpu_mem_limit")
    if limit != str((MEMORY_MB // 2 - CONTEXT_MB) * 1_000_000):
        yield f"a worker of two may take {limit} bytes"
    if (measured := service.log.count("kept in")) != 1:
        yield f"{measured} workers have measured"
    fault.write_text(KERNELS)
    if (status := _classify(service)[0]) != 503:
        yield f"a lost GPU gives {status}"
    fault.write_text(NOTHING)
    replaced = "a worker that lost its GPU is replaced"
    wait(lambda: _ready(service, replaced=1), PATIENCE_S, replaced)
    if (found := {_classify(service)[0] for _ in range(8)}) != {200}:
        yield f"when both workers are ready again, they answer {found}"


def _ready(service: Service, *, replaced: int) -> bool:
    """Whether both workers serve, and at least so many are not the first of their number."""
    workers = service.info()["workers"]
    stages = [one["stage"] for one in workers]
    return stages == ["ready"] * 2 and sum(one["restarts"] for one in workers) >= replaced


def _not_json(service: Service) -> Iterator[str]:
    """The first line of the log that is none of its own."""
    for line in service.log.splitlines():
        try:
            json.loads(line)
        except ValueError:
            yield f"the log has the line: {line}"
            return


def _classify(service: Service) -> tuple[int, Any]:
    asked = {"inputs": TEXTS}
    answer = httpx2.post(f"{service.url}/classify", json=asked, timeout=PATIENCE_S)
    return answer.status_code, answer.json()


def _status(service: Service, path: str) -> int:
    return httpx2.get(f"{service.url}{path}", timeout=PATIENCE_S).status_code
