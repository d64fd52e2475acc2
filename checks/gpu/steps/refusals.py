"""What ``sentiment serve`` does where CUDA finds no GPU: CUDA_VISIBLE_DEVICES hides them all."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE

from benchmarks.service import Service
from benchmarks.tables import Row
from checks.gpu.setup import Setup

HUMAN = ("--log-format", "human")
SERVE = (sys.executable, "-m", "sentiment_service", "serve", "--port", "0", *HUMAN)
LIMIT_S = 30


def run(setup: Setup) -> Iterator[Row]:
    """Ask for CUDA, which must be refused with the cure; then leave it to the service."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    bundle = setup.others if setup.others.exists() else EMBEDDED_BUNDLE
    refused = subprocess.run(
        [*SERVE, "--device", "cuda", "--model", str(bundle)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    failures = [line for line in refused.stderr.splitlines() if line.startswith("sentiment: ")]
    yield {"--device": "cuda", "exit code": refused.returncode, "says": "; ".join(failures)}
    assert (refused.returncode, len(failures)) == (1, 1), refused.stderr
    assert re.search("driver|GPU|onnxruntime|libraries", failures[0]), failures[0]
    with Service(bundle, *HUMAN, "--device", "auto") as service:
        device = service.info()["device"]
        warnings = [line for line in service.log.splitlines() if "warning" in line.lower()]
    yield {"--device": "auto", "serves on": device, "says": "; ".join(warnings)}
    assert device == "cpu", device
