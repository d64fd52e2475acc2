"""mosec: a Rust front, one worker process, dynamic batches."""

from mosec import Server, Worker

from benchmarks.peers.classifier import Classifier


class Classify(Worker):
    def __init__(self) -> None:
        super().__init__()
        self._classify = Classifier()

    def forward(self, data: list[dict[str, str]]) -> list[dict[str, list[float]]]:
        rows = self._classify([request["inputs"] for request in data])
        return [{"logits": row} for row in rows]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Classify, max_batch_size=32, max_wait_time=5)
    server.run()  # reads --port from the command line
