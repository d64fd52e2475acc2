"""The wheels of the check, without what they depend on, as requirements/gpu.txt has them."""

import re
import subprocess
import sys
from pathlib import Path

from benchmarks.service import ROOT
from checks.support.environments import CACHE, InstallFailed

# The provider, and the headers for what stands in for CUDA.
NAMES = ("onnxruntime-gpu", "nvidia-cuda-runtime")


def install() -> Path:
    """The directory for PYTHONPATH that has the packages. It is made once, in the user's cache."""
    locked = (ROOT / "requirements/gpu.txt").read_text()
    wanted = re.findall(rf"^(?:{'|'.join(NAMES)})==[\w.]+", locked, re.MULTILINE)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = CACHE / "-".join(["cuda", version, *(name.partition("==")[2] for name in wanted)])
    complete = folder / ".complete"
    if not complete.exists():
        print(f"installing {' and '.join(wanted)}", flush=True)
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        options = ["--no-deps", "--only-binary=:all:", "--upgrade", "--target", str(folder)]
        if subprocess.run([*pip, *options, *wanted], check=False).returncode != 0:
            raise InstallFailed(", ".join(wanted))
        complete.touch()
    return folder
