"""What the service's own metrics say of a load."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from sentiment_service.cli.load_generator import Generator, Load, Outcome

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
        return self.after[name] - self.before[name]

    def mean(self, name: str) -> float:
        return self.grown(f"{name}_sum") / max(1, self.grown(f"{name}_count"))


def watched(service: Service, *loads: Load) -> Seen:
    """Send loads of equal length, and read metrics and CPU time after the warm-up and at the end.

    The clients' count of answers says less: requests of many texts take turns and end together, so
    their answers come in waves.
    """
    with ExitStack() as stack:
        generators = [stack.enter_context(Generator(load)) for load in loads]
        time.sleep(loads[0].warm_up_seconds)
        before, cpu, started = service.metrics(), service.cpu_seconds(), time.perf_counter()
        time.sleep(loads[0].seconds * 0.9)
        after, used = service.metrics(), service.cpu_seconds() - cpu
        seconds = time.perf_counter() - started
        outcome = Outcome()
        for generator in generators:
            outcome.add(generator.outcome())
        return Seen(seconds, before, after, used, outcome)
