"""Measures throughput, latency and overload of the service, beside ONNX Runtime alone.

Each measurement yields rows for the tables, and a ``Goal`` if it has one.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from app.engine.bundle import Bundle, Precision
from app.engine.machine.cpu import available_cpus
from app.engine.model import Model
from benchmarks.ideal import Ideal, lone_ms
from benchmarks.load import Generator, Load, Outcome, run
from benchmarks.service import Service
from benchmarks.texts import texts_of, tweet_lengths

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128)
OFFERED = (0.5, 0.8, 1.0, 1.5, 3.0)
LENGTHS = (8, 16, 32, 64, 128, 256, 512)
DEPTHS = (64, 256, 1024)
DEADLINE_MS = 2_000  # during overload; long enough to see how the queue fills
INTERACTIVE, BULK = 0.2, 0.6  # shares of the capacity in mixed traffic
MIXED_SECONDS = 6.0

Row = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """A row of the table of goals. With ``most``, the bound is an upper one."""

    name: str
    value: float
    bound: float
    most: bool = False
    remark: str = ""

    @property
    def reached(self) -> bool:
        """Whether the value keeps the bound."""
        return self.value <= self.bound if self.most else self.value >= self.bound


@dataclass(frozen=True)
class Subject:
    """A model to measure, and its texts."""

    name: str
    bundle: Path
    precision: Precision
    count: int  # texts in one pass; they take some two seconds
    seconds: float  # duration of one measurement
    connections: int  # for which the goal is set

    @cached_property
    def model(self) -> Model:
        """The model in this process."""
        bundle = Bundle.open(self.bundle)
        return Model.load(bundle, device="cpu", precision=self.precision, threads=1)

    @cached_property
    def texts(self) -> list[str]:
        """As long as tweets are."""
        return texts_of(self.model.tokenizer, tweet_lengths(self.count))

    @cached_property
    def ideal(self) -> Ideal:
        """ONNX Runtime alone, with the same model and texts."""
        return Ideal(self.model, self.texts, max(1, int(available_cpus())))

    def serve(self, *flags: str) -> Service:
        """Start the service with this model."""
        return Service(self.bundle, "--precision", self.precision, *flags)

    def load(self, service: Service, connections: int, texts: int = 1, **options: Any) -> Load:
        """A load whose requests have ``texts`` texts each."""
        wanted = options.pop("wanted", self.texts)
        lists = [wanted[start : start + texts] for start in range(0, len(wanted), texts)]
        bodies = [json.dumps({"inputs": one[0] if texts == 1 else one}) for one in lists]
        options = {"seconds": self.seconds} | options
        return Load(service.port, "/classify", bodies, connections, **options)


def against_ideal(subject: Subject, rounds: int, goals: dict[int, float]) -> Iterator[Row | Goal]:
    """Texts per second over HTTP ÷ those of ONNX Runtime alone, by texts per request."""
    ratios: dict[int, list[float]] = {texts: [] for texts in goals}
    rates: dict[int, list[float]] = {texts: [] for texts in goals}
    paddings: list[float] = []
    ideals = [subject.ideal.texts_per_second()]
    with subject.serve() as service:
        for _ in range(rounds):
            for texts in goals:
                rate, padding = _computed(subject, service, subject.connections, texts)
                ideals.append(subject.ideal.texts_per_second())
                rates[texts].append(rate)
                ratios[texts].append(rate / statistics.mean(ideals[-2:]))
                if texts == 1:
                    paddings.append(padding)
        log = next(line for line in service.log.splitlines() if "runners" in line)
    yield {
        "model": subject.name,
        "ideal texts/s": statistics.median(ideals),
        "ideal is": subject.ideal.name,
        **{f"HTTP, {n} a request": statistics.median(rate) for n, rate in rates.items()},
        **{f"÷ ideal, {n} a request": statistics.median(ratio) for n, ratio in ratios.items()},
        "padding": statistics.median(paddings),
        "tuning": log.partition(": ")[2],
    }
    for texts, bound in goals.items():
        name = f"{subject.name}, {subject.connections} connections, {texts} a request ÷ ideal"
        spread = f"{min(ratios[texts]):.2f} to {max(ratios[texts]):.2f}"
        yield Goal(name, statistics.median(ratios[texts]), bound, remark=spread)
    if subject.connections == 32:
        name = f"{subject.name}, padding's share of a batch at 32 connections"
        yield Goal(name, statistics.median(paddings), 0.06, most=True)


def sweep(subject: Subject) -> Iterator[Row | Goal]:
    """Throughput and latency by the number of connections, with one text per request."""
    # More texts than wait at the same time: equal ones would be computed once.
    texts = texts_of(subject.model.tokenizer, tweet_lengths(8 * max(CONCURRENCIES)))
    with subject.serve() as service:
        for connections in CONCURRENCIES:
            before, cpu, lag = service.metrics(), service.cpu_seconds(), service.lag_buckets()
            outcome = run(subject.load(service, connections, wanted=texts))
            after, used = service.metrics(), service.cpu_seconds() - cpu
            computed = after["batch_texts_sum"] - before["batch_texts_sum"]
            yield {
                "model": subject.name,
                "connections": connections,
                "texts/s": outcome.ok_per_second(),
                **_latencies(outcome),
                "texts a batch": computed / _grown("batch_texts_count", before, after),
                "padding": _mean("batch_padding_ratio", before, after),
                "CPU ms a text": used / computed * 1000,
                "p99 loop lag ms ≤": service.lag_percentile_ms(99, lag),
            }


def overload(subject: Subject, rounds: int) -> Iterator[Row | Goal]:
    """Open arrivals at fractions and multiples of the best throughput."""
    rejects: list[float] = []
    accepted: list[float] = []
    ratios: list[float] = []
    with subject.serve("--deadline-ms", str(DEADLINE_MS)) as service:
        run(subject.load(service, subject.connections, seconds=1.0))
        best = _best(subject, service)
        for offered in OFFERED:
            for _ in range(rounds if offered == max(OFFERED) else 1):
                if offered == max(OFFERED):
                    best = _best(subject, service)  # again, because the machine's speed changes
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
                **_latencies(outcome),
                "rejected": len(outcome.latencies.get("429", ())) / total,
                "late (504)": len(outcome.latencies.get("504", ())) / total,
                "p99 ms to reject": outcome.percentile_ms(99, "429"),
            }
    name = f"{subject.name}, 300 % offered"
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    yield Goal(f"{name}: goodput ÷ best throughput", statistics.median(ratios), 0.95, remark=spread)
    yield Goal(f"{name}: p99 ms to reject", statistics.median(rejects), 20, most=True)
    yield Goal(
        f"{name}: p99 ms of accepted (deadline {DEADLINE_MS})",
        statistics.median(accepted),
        DEADLINE_MS,
        most=True,
    )


def mixed(subject: Subject, rounds: int) -> Iterator[Row | Goal]:
    """Interactive requests beside a bulk client, and without it at the same total load."""
    ratios, rows = [], []
    long = texts_of(subject.model.tokenizer, [subject.model.max_tokens] * 8)
    tokens = statistics.mean(len(subject.model.encode(text)) for text in subject.texts)
    with subject.serve() as service:
        run(subject.load(service, subject.connections, seconds=1.0))
        for _ in range(rounds):
            best = _best(subject, service)
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
        yield {"model": subject.name, "interactive requests": name, **_latencies(outcome)}
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    name = f"{subject.name}, interactive p99 beside bulk ÷ alone at the same load"
    yield Goal(name, statistics.median(ratios), 2.0, most=True, remark=spread)


def lone(subject: Subject, rounds: int, most: float | None) -> Iterator[Row | Goal]:
    """One request at a time, with the service tuned for latency."""
    texts = [text for text in subject.texts if len(subject.model.encode(text)) < 48][:64]
    ratios, bare, medians = [], [], []
    with subject.serve("--target-latency-ms", "1") as service:
        threads = max(1, int(available_cpus()))
        model = subject.model.with_threads(threads)
        lone_ms(model, texts)
        for _ in range(rounds):
            before = statistics.median(lone_ms(model, texts))
            outcome = run(subject.load(service, 1, wanted=texts))
            after = statistics.median(lone_ms(model, texts))
            bare.append(statistics.mean((before, after)))
            medians.append(outcome.percentile_ms(50))
            ratios.append(medians[-1] / bare[-1])
        for count in (1, 16, 256):
            outcome = run(subject.load(service, 1, count))
            yield {"model": subject.name, "texts in the request": count, **_latencies(outcome)}
    ratio = statistics.median(ratios)
    yield {"model": subject.name, "p50 ÷ bare session.run": ratio}
    if most is not None:
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}; bare {statistics.median(bare):.1f} ms"
        name = f"{subject.name}, p50 of a lone request ÷ bare session.run"
        yield Goal(name, ratio, most, most=True, remark=spread)


def start(subject: Subject) -> Iterator[Row | Goal]:
    """Seconds until it serves, at the first start and with a filled cache; and memory."""
    seconds = []
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(4):
            with subject.serve("--cache-dir", cache) as service:
                seconds.append(service.start_seconds)
                idle = service.memory_mb()
                run(subject.load(service, 64))
                loaded = service.memory_mb()
    yield {
        "model": subject.name,
        "s to serve, first": seconds[0],
        "s to serve, then": statistics.median(seconds[1:]),
        "idle RSS MB": idle["Rss"],
        "PSS": idle["Pss"],
        "loaded RSS MB": loaded["Rss"],
        "loaded PSS": loaded["Pss"],
    }


def growth(subject: Subject) -> Iterator[Row | Goal]:
    """Throughput and memory by the length of texts."""
    with subject.serve() as service:
        for length in LENGTHS:
            wanted = texts_of(subject.model.tokenizer, [length] * 64)
            outcome = run(subject.load(service, 32, wanted=wanted))
            yield {
                "model": subject.name,
                "tokens a text": length,
                "texts/s": outcome.ok_per_second(),
                "tokens/s": outcome.ok_per_second() * length,
                "RSS MB": service.memory_mb()["Rss"],
            }


def depth(subject: Subject) -> Iterator[Row | Goal]:
    """Latency and memory by the depth of the queue."""
    # More texts than wait at the same time: equal ones would be computed once.
    texts = texts_of(subject.model.tokenizer, tweet_lengths(2 * max(DEPTHS)))
    with subject.serve() as service:
        for connections in DEPTHS:
            outcome = run(subject.load(service, connections, wanted=texts, warm_up_seconds=3.0))
            yield {
                "model": subject.name,
                "texts in flight": connections,
                "texts/s": outcome.ok_per_second(),
                **_latencies(outcome),
                "RSS MB": service.memory_mb()["Rss"],
            }


def _best(subject: Subject, service: Service) -> float:
    """Texts per second of a closed loop with many connections."""
    return run(subject.load(service, 64)).ok_per_second()


def _latencies(outcome: Outcome) -> Row:
    return {f"p{percent} ms": outcome.percentile_ms(percent) for percent in (50, 95, 99)}


def _grown(name: str, before: dict[str, float], after: dict[str, float]) -> float:
    return after[name] - before[name]


def _mean(name: str, before: dict[str, float], after: dict[str, float]) -> float:
    return _grown(f"{name}_sum", before, after) / _grown(f"{name}_count", before, after)


def _computed(
    subject: Subject, service: Service, connections: int, texts: int
) -> tuple[float, float]:
    """Texts per second and the share of padding, by the metrics of the server.

    The client's count of answers would be wrong: requests of many texts take turns and end
    together, so their answers come in waves.
    """
    load = subject.load(service, connections, texts, warm_up_seconds=2.0)
    with Generator(load) as generator:
        time.sleep(load.warm_up_seconds)
        before, started = service.metrics(), time.perf_counter()
        time.sleep(load.seconds - 0.2)
        after, seconds = service.metrics(), time.perf_counter() - started
        generator.outcome()
    rate = _grown("batch_texts_sum", before, after) / seconds
    return rate, _mean("batch_padding_ratio", before, after)
