"""Ray Serve: one replica on a local cluster of its own, batches by ``serve.batch``."""

import os
import signal

import ray
from ray import serve
from starlette.requests import Request

from benchmarks.peers.classifier import Classifier


class Classify:
    def __init__(self) -> None:
        self._classify = Classifier()

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.005)
    async def batch(self, texts: list[str]) -> list[list[float]]:
        return self._classify(texts)

    async def __call__(self, request: Request) -> dict[str, list[float]]:
        return {"logits": await self.batch((await request.json())["inputs"])}


if __name__ == "__main__":
    # Keep Ray's processes in our process group, which is killed at the end.
    os.environ["RAY_process_group_cleanup_enabled"] = "0"  # noqa: SIM112
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(os.environ["PORT"])})
    deployment = serve.deployment(max_ongoing_requests=256)(Classify)
    serve.run(deployment.bind(), route_prefix="/classify")
    signal.pause()
