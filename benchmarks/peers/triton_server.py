"""NVIDIA Triton with PyTriton: Triton's HTTP server and batcher, the model in this process."""

import os
import signal
import sys
import sysconfig

import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

from benchmarks.peers.classifier import Classifier

classifier = Classifier()


@batch
def classify(text: np.ndarray) -> dict[str, np.ndarray]:
    return {"logits": np.array(classifier([row[0].decode() for row in text]), np.float32)}


if __name__ == "__main__":
    # Triton's stub loads libpython; it must be that of this Python, not the system's.
    os.environ["LD_LIBRARY_PATH"] = str(sysconfig.get_config_var("LIBDIR"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that the block below ends normally
    config = TritonConfig(
        http_address="127.0.0.1",
        http_port=int(os.environ["PORT"]),
        allow_grpc=False,
        allow_metrics=False,
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="classifier",
            infer_func=classify,
            inputs=[Tensor(name="text", dtype=np.bytes_, shape=(1,))],
            outputs=[Tensor(name="logits", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(
                max_batch_size=32, batcher=DynamicBatcher(max_queue_delay_microseconds=5_000)
            ),
            strict=True,
        )
        triton.serve()
