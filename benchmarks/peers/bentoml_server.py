"""BentoML: one service process, adaptive batches."""

import bentoml

from benchmarks.peers.classifier import Classifier


@bentoml.service(workers=1, traffic={"timeout": 60})
class Classify:
    """Each request has a list of one text; BentoML joins the lists into batches."""

    def __init__(self) -> None:
        self._classify = Classifier()

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=60_000)
    def classify(self, inputs: list[str]) -> list[list[float]]:
        return self._classify(inputs)
