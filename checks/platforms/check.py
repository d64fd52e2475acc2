"""Calls the service with the platforms' own clients: ``make platform-check``."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE

from benchmarks.service import Service, free_port
from checks.support.environments import CACHE, InstallFailed, python

HERE = Path(__file__).parent
# The name of a platform is that of its script, ``call_<name>.py``, and of its requirements.
PLATFORMS = ("sagemaker", "vertex", "kserve", "triton", "azure", "vllm", "huggingface")
VERTEX = "/v1/endpoints/1/deployedModels/2"
VARIABLES = {"AIP_HEALTH_ROUTE": VERTEX, "AIP_PREDICT_ROUTE": f"{VERTEX}:predict"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=PLATFORMS, help="may be repeated")
    names = parser.parse_args().only or PLATFORMS
    failed = False
    grpc_port = free_port()
    with Service(EMBEDDED_BUNDLE, "--grpc-port", str(grpc_port), variables=VARIABLES) as service:
        for name in names:
            problem = called(name, service.url, f"127.0.0.1:{grpc_port}")
            print(f"platform-check: {name}: {problem or 'ok'}", flush=True)
            failed = failed or bool(problem)
    return int(failed)


def called(name: str, *addresses: str) -> str:
    """Call the service with a platform's client; what went wrong, empty if nothing did.

    ``addresses`` are those of HTTP and gRPC.
    """
    try:
        interpreter = python(HERE / "requirements" / f"{name}.txt")
    except InstallFailed:
        return "FAILED: its client could not be installed; uv says above why"
    # Some clients choose a proxy or send telemetry by variables, so they get few.
    variables = {"PATH": os.environ["PATH"], "HOME": str(CACHE)}
    command: list[str | Path] = [interpreter, "-I", HERE / f"call_{name}.py", *addresses]
    done = subprocess.run(command, env=variables, check=False)
    return "FAILED: see the traceback above" if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
