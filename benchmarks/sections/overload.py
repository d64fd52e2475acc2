"""Measures the service under overload, probes meanwhile, and interactive beside bulk requests.

Each measurement yields rows for the tables, and a ``Goal`` if it has one.
"""

import os
import socket
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress

import numpy as np
from sentiment_service.cli.load_generator import Generator, run

from benchmarks.subject import Goal, Subject, latencies
from benchmarks.tables import Row
from benchmarks.texts import texts_of

OFFERED = (0.5, 0.8, 1.0, 1.5, 3.0)
DEADLINE_MS = 2_000  # during overload; long enough to see how the queue fills
INTERACTIVE, BULK = 0.2, 0.6  # shares of the capacity in mixed traffic
MIXED_SECONDS = 6.0
PROBED = ("/health/live", "/health/ready", "/metrics")
ARRIVALS = (400, 1_200)  # requests per second while the service is probed
PROBE_SECONDS = 10.0
PROBE_GAP_S = 0.05


def overload(subject: Subject, rounds: int) -> Iterator[Row | Goal]:
    """Open arrivals at fractions and multiples of the best throughput."""
    rejects: list[float] = []
    accepted: list[float] = []
    ratios: list[float] = []
    with subject.serve("--deadline-ms", str(DEADLINE_MS)) as service:
        run(subject.load(service, subject.connections, seconds=1.0))
        best = subject.best(service)
        for offered in OFFERED:
            for _ in range(rounds if offered == max(OFFERED) else 1):
                if offered == max(OFFERED):
                    best = subject.best(service)  # again, because the machine's speed changes
                outcome = run(
                    subject.load(
                        service,
                        64,
                        rate=offered * best,
                        seconds=max(8.0, subject.seconds),
                        warm_up_seconds=2 * DEADLINE_MS / 1000,
                    )
                )
                if offered == max(OFFERED):
                    rejects.append(outcome.percentile_ms(99, "429"))
                    accepted.append(outcome.percentile_ms(99))
                    ratios.append(outcome.ok_per_second() / best)
            total = sum(map(len, outcome.latencies.values()))
            yield {
                "model": subject.name,
                "offered": f"{offered:.0%}",
                "goodput ÷ best": outcome.ok_per_second() / best,
                **latencies(outcome),
                "rejected": len(outcome.latencies.get("429", ())) / total,
                "late (504)": len(outcome.latencies.get("504", ())) / total,
                "p99 ms to reject": outcome.percentile_ms(99, "429"),
            }
    name = f"{subject.name}, 300 % offered"
    yield Goal.of_rounds(f"{name}: goodput ÷ best throughput", ratios, 0.95)
    yield Goal(f"{name}: p99 ms to reject", statistics.median(rejects), 20, most=True)
    yield Goal(
        f"{name}: p99 ms of accepted (deadline {DEADLINE_MS})",
        statistics.median(accepted),
        DEADLINE_MS,
        most=True,
    )


def probes(subject: Subject, rounds: int) -> Iterator[Row | Goal]:
    """Probes, each on a new connection, from a process of their own, while requests arrive.

    The probing process has priority, if it may, as if it ran on another machine.
    """
    with ProcessPoolExecutor(1, initializer=_hurry) as pool, subject.serve() as service:
        for rate in ARRIVALS:
            worst: dict[str, list[float]] = {path: [] for path in PROBED}
            for _ in range(rounds):
                load = subject.load(
                    service, 64, rate=rate, warm_up_seconds=2.0, seconds=PROBE_SECONDS
                )
                with Generator(load) as generator:
                    time.sleep(load.warm_up_seconds)
                    probing = pool.submit(_probe, service.port, PROBE_SECONDS)
                    measured = probing.result()
                    outcome = generator.outcome()
                for path, pairs in measured.items():
                    connected, answered = (
                        np.array(times) * 1000 for times in zip(*pairs, strict=True)
                    )
                    worst[path].append(float(np.percentile(answered, 99)))
                    yield {
                        "model": subject.name,
                        "arrivals/s": rate,
                        "answered/s": outcome.ok_per_second(),
                        "probe": path,
                        "p50 ms": float(np.median(answered)),
                        "p99 ms": worst[path][-1],
                        "p99 ms to connect": float(np.percentile(connected, 99)),
                    }
            for path, values in worst.items():
                name = f"{subject.name}, {rate} arrivals/s: p99 ms of {path}"
                yield Goal.of_rounds(name, values, 100, most=True)


def _hurry() -> None:
    with suppress(PermissionError):
        os.nice(-15)


def _probe(port: int, seconds: float) -> dict[str, list[tuple[float, float]]]:
    """For each probe the seconds until it was connected, and until it was answered."""
    times: dict[str, list[tuple[float, float]]] = {path: [] for path in PROBED}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for path, measured in times.items():
            begin = time.perf_counter()
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connected = time.perf_counter()
                head = f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
                connection.sendall(head.encode())
                while connection.recv(65_536):
                    pass
            measured.append((connected - begin, time.perf_counter() - begin))
            time.sleep(PROBE_GAP_S)
    return times


def mixed(subject: Subject, rounds: int) -> Iterator[Row | Goal]:
    """Interactive requests beside a bulk client, and without it at the same total load."""
    ratios, rows = [], []
    long = texts_of(subject.model.tokenizer.library, [subject.model.max_tokens] * 8)
    tokens = statistics.mean(len(subject.model.tokenizer.encode(text)) for text in subject.texts)
    with subject.serve() as service:
        run(subject.load(service, subject.connections, seconds=1.0))
        for _ in range(rounds):
            best = subject.best(service)
            alone = run(
                subject.load(service, 32, rate=best * (INTERACTIVE + BULK), seconds=MIXED_SECONDS)
            )
            interactive = subject.load(service, 32, rate=best * INTERACTIVE, seconds=MIXED_SECONDS)
            bulk = subject.load(service, 1, 64, rate=best * BULK / 64, seconds=MIXED_SECONDS)
            with Generator(bulk) as other:
                beside = run(interactive)
                other.outcome()
            rate = best * BULK * tokens / subject.model.max_tokens
            with Generator(
                subject.load(service, 4, rate=rate, wanted=long, seconds=MIXED_SECONDS)
            ) as other:
                beside_long = run(interactive)
                other.outcome()
            with Generator(subject.load(service, 1, 256, seconds=MIXED_SECONDS)) as other:
                beside_all = run(interactive)
                other.outcome()
            ratios.append(beside.percentile_ms(99) / alone.percentile_ms(99))
            rows = [
                ("alone, at 80 % of capacity", alone),
                ("at 20 %, beside requests of 64 texts at 60 %", beside),
                (
                    f"at 20 %, beside texts of {subject.model.max_tokens} tokens at 60 %",
                    beside_long,
                ),
                ("at 20 %, beside one client that always has 256 texts waiting", beside_all),
            ]
    for name, outcome in rows:
        yield {"model": subject.name, "interactive requests": name, **latencies(outcome)}
    name = f"{subject.name}, interactive p99 beside bulk ÷ alone at the same load"
    yield Goal.of_rounds(name, ratios, 2.0, most=True)
