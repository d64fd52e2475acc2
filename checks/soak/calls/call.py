"""One request of the soak, and what the texts of a request give."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checks.soak.calls.truth import Truth
from checks.soak.wire import Answer


@dataclass(frozen=True, slots=True)
class Call:
    """A request, its cost in tokens, and the check of its answer.

    The route of a gRPC call is ``gRPC`` and the method's path.
    """

    route: str
    request: bytes  # of HTTP, or the message of gRPC
    tokens: int
    sound: Callable[[Answer], bool]  # checks an answer with status 200
    texts: int = 0  # the number of texts whose results are compared

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
    }


def ranking(values: Mapping[str, float]) -> list[dict[str, Any]]:
    """Labels with their scores, the highest first."""
    ranked = sorted(values.items(), key=lambda item: -item[1])
    return [{"label": label, "score": value} for label, value in ranked]
