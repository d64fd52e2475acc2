"""Calls the service with the platforms' own clients: ``make platform-check``.

Each client has an environment of its own, because their dependencies exclude each other. The
environments are kept in the user's cache directory, and made again when the requirements change.
To check some platforms only, give their names.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.serving import Process, free_port

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sentiment-platforms"
# The name of a platform is that of its script: ``call_<name>.py``.
REQUIREMENTS = {
    "sagemaker": ["sagemaker-core==2.27.0"],
    "vertex": ["google-cloud-aiplatform[prediction]==2.7.0"],
    "kserve": ["kserve==0.21.0"],
    "mlflow": ["mlflow-skinny==3.17.2", "pandas==3.1.1", "scipy==1.17.1"],
    "triton": ["tritonclient[grpc]==2.73.0"],
    "azure": ["azure-ai-ml==1.35.2"],
}
VERTEX = "/v1/endpoints/1/deployedModels/2"
VARIABLES = {"AIP_HEALTH_ROUTE": VERTEX, "AIP_PREDICT_ROUTE": f"{VERTEX}:predict"}


def main() -> int:
    """Check each platform; the exit code is 1 if one of the clients is not satisfied."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("platforms", nargs="*", metavar="NAME", help=", ".join(REQUIREMENTS))
    names = parser.parse_args().platforms or list(REQUIREMENTS)
    if unknown := [name for name in names if name not in REQUIREMENTS]:
        parser.error(f"unknown: {', '.join(unknown)}; the platforms are {', '.join(REQUIREMENTS)}")
    failed = []
    grpc_port = free_port()
    with Process("--grpc-port", str(grpc_port), variables=VARIABLES) as service:
        for name in names:
            script = HERE / f"call_{name}.py"
            # Some clients choose a proxy or send telemetry by variables, so they get few.
            variables = {"PATH": os.environ["PATH"], "HOME": str(CACHE), "MLFLOW_TRACKING_URI": ""}
            addresses = [service.url, f"127.0.0.1:{grpc_port}"]  # HTTP, gRPC
            command: list[str | Path] = [python(name), "-I", script, *addresses]
            done = subprocess.run(command, env=variables, check=False)
            print(f"platform-check: {name}: {'ok' if done.returncode == 0 else 'FAILED'}")
            failed += [name] if done.returncode else []
    return int(bool(failed))


def python(name: str) -> Path:
    """The interpreter of the client's environment, which is made if it does not exist."""
    text = " ".join([sys.version, *REQUIREMENTS[name]])
    folder = CACHE / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    interpreter = folder / "bin/python"
    complete = folder / ".complete"
    if not complete.exists():
        print(f"platform-check: installing {' '.join(REQUIREMENTS[name])}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(interpreter), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, *REQUIREMENTS[name]], check=True)
        complete.touch()
    return interpreter


if __name__ == "__main__":
    sys.exit(main())
