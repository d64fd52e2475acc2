"""What a benchmark of the service measures, and the rows and goals that it yields."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from sentiment_service.cli.load_generator import Load, Outcome, run, tweet_lengths
from sentiment_service.engine.host import available_cpus
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE, Bundle, Precision
from sentiment_service.engine.model.model import Model

from benchmarks.ideal import Ideal
from benchmarks.service import Service
from benchmarks.tables import Row
from benchmarks.texts import texts_of


@dataclass(frozen=True)
class Goal:
    """A row of the table of goals. With ``most``, the bound is an upper one."""

    name: str
    value: float
    bound: float
    most: bool = False
    remark: str = ""

    @classmethod
    def of_rounds(
        cls, name: str, values: Sequence[float], bound: float, most: bool = False, remark: str = ""
    ) -> Self:
        """The median of the rounds. The lowest and the highest stand before the ``remark``."""
        spread = f"{min(values):.2f} to {max(values):.2f}"
        remark = f"{spread}; {remark}" if remark else spread
        return cls(name, statistics.median(values), bound, most, remark)

    @property
    def reached(self) -> bool:
        return self.value <= self.bound if self.most else self.value >= self.bound


@dataclass(frozen=True)
class Subject:
    name: str
    bundle: Path
    precision: Precision
    count: int  # texts in one pass; they take some two seconds
    seconds: float  # duration of one measurement
    connections: int  # for which the goal is set

    @cached_property
    def model(self) -> Model:
        bundle = Bundle.open(self.bundle)
        return load_model(bundle, device="cpu", precision=self.precision, threads=1)

    @cached_property
    def texts(self) -> list[str]:
        return texts_of(self.model.tokenizer.library, tweet_lengths(self.count))

    @cached_property
    def ideal(self) -> Ideal:
        """ONNX Runtime alone, with the same model and texts."""
        return Ideal(self.model, self.texts, max(1, int(available_cpus())))

    def serve(self, *flags: str, **options: Any) -> Service:
        """Start the service with this model; the options are those of ``Service``."""
        return Service(self.bundle, "--precision", self.precision, *flags, **options)

    def bodies(self, texts: int, wanted: Sequence[str] = ()) -> list[str]:
        """The bodies of requests for ``texts`` texts each: the wanted ones, or those of a pass."""
        wanted = wanted or self.texts
        lists = [wanted[start : start + texts] for start in range(0, len(wanted), texts)]
        return [json.dumps({"inputs": one[0] if texts == 1 else one}) for one in lists]

    def load(self, service: Service, connections: int, texts: int = 1, **options: Any) -> Load:
        """A load whose requests have ``texts`` texts each."""
        bodies = self.bodies(texts, options.pop("wanted", ()))
        options = {"seconds": self.seconds} | options
        return Load(f"{service.url}/classify", bodies, connections, **options)

    def best(self, service: Service) -> float:
        """Requests of one text per second, of a closed loop with many connections."""
        return run(self.load(service, 64)).ok_per_second()


EMBEDDED = Subject("embedded int8", EMBEDDED_BUNDLE, "int8", 2_000, 4.0, 64)


def latencies(outcome: Outcome) -> Row:
    """The cells of a row for the percentiles of the latency."""
    return {f"p{percent} ms": outcome.percentile_ms(percent) for percent in (50, 95, 99)}
