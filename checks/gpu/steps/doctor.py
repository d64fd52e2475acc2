"""What ``sentiment doctor`` says of this machine."""

import subprocess
import sys
from collections.abc import Iterator

from sentiment_service.engine.model.device import cuda_state

from benchmarks.tables import Row
from checks.gpu.models import precisions
from checks.gpu.setup import Setup

LIMIT_S = 50


def run(setup: Setup) -> Iterator[Row]:
    """Its lines, with the bundle if there is one."""
    bundle = setup.bundle
    flags = []
    if bundle.exists():
        flags = ["--model", str(bundle), "--precision", precisions(bundle)[-1]]
    command = [sys.executable, "-m", "sentiment_service", "doctor", *flags]
    found = subprocess.run(
        [*command, "--device", setup.device],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    for line in (found.stdout + found.stderr).splitlines():
        yield {"doctor": line}
    expected = int(setup.device == "cuda" and bool(cuda_state().problem))
    assert found.returncode == expected, f"exit code {found.returncode} in place of {expected}"
