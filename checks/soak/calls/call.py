"""One request of the soak, and what the texts of a request give."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from checks.soak.calls.truth import Truth
from checks.soak.wire import Answer


@dataclass(frozen=True, slots=True)
class Call:
    """A request, its cost in tokens, and the check of its answer.

    The route of a gRPC call is ``gRPC`` and the method's path. ``check`` says whether an answer
    with status 200 is right by the ``truth`` of one temperature. If parts of the answer may have
    different ones, because the model was loaded again meanwhile, it says so of each part.
    """

    route: str
    request: bytes  # of HTTP, or the message of gRPC
    tokens: int
    check: Callable[[Answer], bool | list[bool]]
    truth: Truth
    texts: int = 0  # the number of texts whose results are compared
    overloaded: int = 429  # the status of the answer if the queue is full
    since: float = field(default_factory=time.monotonic)

    def sound(self, answer: Answer) -> bool:
        """Whether an answer with status 200 is right by what may have been served since then."""
        views = [self.check(answer) for _ in self.truth.views(self.since)]
        return bool(np.all(np.any(views, axis=0)))

    @property
    def is_grpc(self) -> bool:
        """Whether it goes over gRPC."""
        return self.route.startswith("gRPC ")

    @property
    def method(self) -> str:
        """The path of the gRPC method."""
        return self.route.removeprefix("gRPC ")


def tensors(truth: Truth, texts: Sequence[str]) -> dict[str, list[Any]]:
    """The outputs of the Open Inference Protocol for these texts."""
    found = [truth.of(text) for text in texts]
    return {
        "label": [one["label"] for one in found],
        "score": [one["score"] for one in found],
        "logits": [value for one in found for value in one["logits"].values()],
        "scores": [value for one in found for value in one["scores"].values()],
        "polarity": as_fp32([one["polarity"] for one in found]),
    }


def as_fp32(values: Sequence[float]) -> list[float]:
    """Differences as a tensor has them; in JSON, they have more digits."""
    return [float(value) for value in np.asarray(values, np.float32)]


def ranking(values: Mapping[str, float]) -> list[dict[str, Any]]:
    """Labels with their scores, the highest first."""
    ranked = sorted(values.items(), key=lambda item: -item[1])
    return [{"label": label, "score": value} for label, value in ranked]
