"""What the service's own metrics say of a load."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from app.cli.bench.load import Generator, Load, Outcome
from benchmarks.service import Service


@dataclass(frozen=True)
class Seen:
    """What the service's metrics said before and after ``seconds`` of a load.

    Metrics are summed over their labels.
    """

    seconds: float
    before: Mapping[str, float]
    after: Mapping[str, float]
    cpu_seconds: float  # of the server meanwhile
    outcome: Outcome  # what the client saw

    def grown(self, name: str) -> float:
        """How much a counter grew."""
        return self.after[name] - self.before[name]

    def mean(self, name: str) -> float:
        """The mean of what a histogram observed."""
        return self.grown(f"{name}_sum") / max(1, self.grown(f"{name}_count"))


def watched(service: Service, load: Load) -> Seen:
    """Send the load, and read the service's metrics and CPU time after the warm-up and at the end.

    The client's count of answers says less: requests of many texts take turns and end together, so
    their answers come in waves.
    """
    with Generator(load) as generator:
        time.sleep(load.warm_up_seconds)
        before, cpu, started = service.metrics(), service.cpu_seconds(), time.perf_counter()
        time.sleep(load.seconds * 0.9)
        after, used = service.metrics(), service.cpu_seconds() - cpu
        seconds = time.perf_counter() - started
        return Seen(seconds, before, after, used, generator.outcome())
