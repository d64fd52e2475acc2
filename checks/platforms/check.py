"""Calls the service with the clients of platforms and clouds, and with generated ones.

``make platform-check`` runs it. What a client needs is said once more where it differs:
docs/migrate.md.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE

from benchmarks.service import Service, free_port
from checks.platforms.generated_clients import (
    CALLS,
    GENERATORS,
    found,
    node_modules,
    problem_of,
    run,
)
from checks.support.environments import CACHE, InstallFailed, python

HERE = Path(__file__).parent
# The name of each is that of its script, ``call_<name>.py``, and of its requirements.
PLATFORMS = ("sagemaker", "vertex", "kserve", "triton", "azure", "vllm", "huggingface")
CLOUDS = ("azure_language", "comprehend", "google_language")
JAVASCRIPT = "clouds-javascript"
VERTEX = "/v1/endpoints/1/deployedModels/2"
VARIABLES = {"AIP_HEALTH_ROUTE": VERTEX, "AIP_PREDICT_ROUTE": f"{VERTEX}:predict"}
KEY = "key-of-the-check"
# Two requests of the clients' crowds fill it. Each takes the model longer than it takes a client
# to send the next, so that some of eight are refused on any machine.
CROWDED = ("--max-queue-tokens", "8192")


def main() -> int:
    """Run each check; the exit code is 1 if one of the clients is not satisfied."""
    known = (*PLATFORMS, *CLOUDS, JAVASCRIPT, *GENERATORS)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=known, help="may be repeated")
    names = parser.parse_args().only or known
    failed = False
    grpc_port = free_port()
    with (
        Service(EMBEDDED_BUNDLE) as plain,
        Service(EMBEDDED_BUNDLE, "--grpc-port", str(grpc_port), variables=VARIABLES) as hosted,
        Service(EMBEDDED_BUNDLE, "--api-keys", KEY) as keyed,
        Service(EMBEDDED_BUNDLE, "--api-keys", KEY, *CROWDED) as crowded,
    ):
        checks: dict[str, Callable[[], str]] = {
            **{
                name: partial(called, name, hosted.url, f"127.0.0.1:{grpc_port}")
                for name in PLATFORMS
            },
            **{name: partial(called, name, keyed.url, KEY, crowded.url) for name in CLOUDS},
            JAVASCRIPT: partial(problem_of, javascript, keyed.url),
            **{name: partial(problem_of, one, plain.url) for name, one in GENERATORS.items()},
        }
        for name in names:
            problem = checks[name]()
            print(f"platform-check: {name}: {problem or 'ok'}", flush=True)
            failed |= problem.startswith("FAILED")
    return int(failed)


def called(name: str, *arguments: str) -> str:
    """Call the service with a client for Python; what went wrong, empty if nothing did."""
    try:
        interpreter = python(HERE / "requirements" / f"{name}.txt")
    except InstallFailed:
        return "FAILED: its client could not be installed; uv says above why"
    # Some clients choose a proxy or send telemetry by variables, so they get few.
    variables = {"PATH": os.environ["PATH"], "HOME": str(CACHE)}
    command: list[str | Path] = [interpreter, "-I", HERE / f"call_{name}.py", *arguments]
    done = subprocess.run(command, env=variables, check=False)
    return "FAILED: see the traceback above" if done.returncode else ""


def javascript(folder: Path, url: str) -> None:
    """Azure's clients and AWS' client, in Node."""
    (folder / "node_modules").symlink_to(node_modules())
    script = Path(folder, "call.mjs")
    script.write_text((CALLS / "call_clouds.mjs").read_text())
    run([found("node"), script, url, KEY], folder)


if __name__ == "__main__":
    sys.exit(main())
