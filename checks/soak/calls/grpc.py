"""Draws random gRPC calls, and checks their answers as those of HTTP are checked."""

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

from app.adapters.open_inference.bytes_tensor import pack, unpack
from app.grpc_api.messages import METHODS
from checks.soak.calls.call import Call, ranking, tensors
from checks.soak.calls.truth import Truth
from checks.soak.wire import Answer

OIP = "/inference.GRPCInferenceService"
PREDICT = "/tei.v1.Predict/Predict"
# Methods without texts, with a field that their answer must have.
READ = {
    f"{OIP}/ServerLive": "live",
    f"{OIP}/ServerReady": "ready",
    f"{OIP}/ModelReady": "ready",
    f"{OIP}/ServerMetadata": "version",
    f"{OIP}/ModelMetadata": "inputs",
    "/tei.v1.Info/Info": "model_id",
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

    def predict(self) -> Call:
        """Predict, one text."""
        (text,) = self._texts(1)
        return self._predict(PREDICT, [text])

    def predict_stream(self) -> Call:
        """PredictStream with all texts sent at once."""
        return self._predict("/tei.v1.Predict/PredictStream", self._texts(30))

    def read(self) -> Call:
        """A method that describes the service, or a probe."""
        path, field = self._order.choice(list(READ.items()))
        request = METHODS[path].request
        name = {"name": self._truth.model.name} if path.startswith(f"{OIP}/Model") else {}
        return self._call(path, [request(**name)], (), lambda a: bool(getattr(a[0], field)))

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
        return self._call(path, [request], texts, lambda answers: sound(answers[0]))

    def _predict(self, path: str, texts: Sequence[str]) -> Call:
        raw = self._order.random() < 0.5
        values = [self._truth.of(text)["logits" if raw else "scores"] for text in texts]
        expected = [ranking(one) for one in values]
        make = METHODS[path].request
        requests = [make(inputs=text, raw_scores=raw, truncate=True) for text in texts]

        def sound(answers: Sequence[Any]) -> bool:
            found = [
                [{"label": one.label, "score": one.score} for one in answer.predictions]
                for answer in answers
            ]
            return found == expected

        return self._call(path, requests, texts, sound)

    def _call(
        self,
        path: str,
        requests: Sequence[Any],
        texts: Sequence[str],
        sound: Callable[[Sequence[Any]], bool],
    ) -> Call:
        response = METHODS[path].response

        def parsed_sound(answer: Answer) -> bool:
            return sound([response.FromString(message) for message in answer.messages])

        return Call(
            f"gRPC {path}",
            b"",
            sum(map(self._truth.tokens, texts)) or 8,
            parsed_sound,
            len(texts),
            tuple(request.SerializeToString() for request in requests),
        )

    def _texts(self, most: int) -> list[str]:
        return self._order.choices(self._truth.tweets, k=self._order.randint(1, most))


def _floats(raw: bytes) -> list[float]:
    return [value for (value,) in struct.iter_unpack("<f", raw)]
