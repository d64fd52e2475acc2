"""LitServe: FastAPI in front of one worker process, dynamic batches."""

import os

import litserve

from benchmarks.peers.classifier import Classifier


class Classify(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self._classify = Classifier()

    def decode_request(self, request: dict[str, str]) -> str:
        return request["inputs"]

    def predict(self, texts: list[str]) -> list[list[float]]:
        return self._classify(texts)

    def encode_response(self, row: list[float]) -> dict[str, list[float]]:
        return {"logits": row}


if __name__ == "__main__":
    litserve.LitServer(
        Classify(max_batch_size=32, batch_timeout=0.005), accelerator="cpu", timeout=False
    ).run(
        host="127.0.0.1",
        port=int(os.environ["PORT"]),
        num_api_servers=1,
        generate_client_file=False,
        log_level="warning",
    )
