"""Draws random gRPC calls, and checks their answers as those of HTTP are checked."""

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

from sentiment_service.adapters.grpc.messages import METHODS
from sentiment_service.adapters.tensors import pack, unpack

from checks.soak.calls.call import Call, tensors
from checks.soak.calls.truth import Truth
from checks.soak.wire import Answer

OIP = "/inference.GRPCInferenceService"
# Methods without texts, with a field that their answer must have.
READ = {
    f"{OIP}/ServerLive": "live",
    f"{OIP}/ServerReady": "ready",
    f"{OIP}/ModelReady": "ready",
    f"{OIP}/ServerMetadata": "version",
    f"{OIP}/ModelMetadata": "inputs",
    "/grpc.health.v1.Health/Check": "status",
}


class GrpcCalls:
    """Draws gRPC calls."""

    def __init__(self, truth: Truth, order: random.Random) -> None:
        self._truth = truth
        self._order = order

    def infer(self) -> Call:
        """ModelInfer with texts in its contents."""
        texts = self._texts(4)
        content = {"bytes_contents": [text.encode() for text in texts]}

        def sound(answer: Any) -> bool:
            found = {
                output.name: [*output.contents.fp32_contents]
                or [value.decode() for value in output.contents.bytes_contents]
                for output in answer.outputs
            }
            return found == tensors(self._truth, texts)

        return self._infer(texts, {"contents": content}, {}, sound)

    def infer_raw(self) -> Call:
        """ModelInfer with raw texts, whose outputs are raw, too."""
        texts = self._texts(4)

        def sound(answer: Any) -> bool:
            pairs = zip(answer.outputs, answer.raw_output_contents, strict=True)
            found = {
                output.name: unpack(raw, len(texts)) if output.datatype == "BYTES" else _floats(raw)
                for output, raw in pairs
            }
            return found == tensors(self._truth, texts)

        return self._infer(texts, {}, {"raw_input_contents": [pack(texts)]}, sound)

    def read(self) -> Call:
        """A method that describes the service, or a probe."""
        path, field = self._order.choice(list(READ.items()))
        request = METHODS[path].request
        name = {"name": self._truth.model.name} if path.startswith(f"{OIP}/Model") else {}
        return self._call(path, request(**name), (), lambda answer: bool(getattr(answer, field)))

    def _infer(
        self,
        texts: Sequence[str],
        of_input: dict[str, Any],
        of_request: dict[str, Any],
        sound: Callable[[Any], bool],
    ) -> Call:
        path = f"{OIP}/ModelInfer"
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], **of_input}
        name = self._truth.model.name
        request = METHODS[path].request(model_name=name, inputs=[tensor], **of_request)
        return self._call(path, request, texts, sound)

    def _call(
        self,
        path: str,
        request: Any,
        texts: Sequence[str],
        sound: Callable[[Any], bool],
    ) -> Call:
        response = METHODS[path].response

        def parsed_sound(answer: Answer) -> bool:
            return sound(response.FromString(answer.body))

        return Call(
            f"gRPC {path}",
            request.SerializeToString(),
            sum(map(self._truth.tokens, texts)) or 8,
            parsed_sound,
            self._truth,
            len(texts),
        )

    def _texts(self, most: int) -> list[str]:
        return self._order.choices(self._truth.tweets, k=self._order.randint(1, most))


def _floats(raw: bytes) -> list[float]:
    return [value for (value,) in struct.iter_unpack("<f", raw)]
