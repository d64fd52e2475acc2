"""Python environments that some checks have for themselves, kept in the user's cache directory."""

import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.support.serving import ROOT

LOCKS = [ROOT / "requirements" / name for name in ("cpu.txt", "files.txt", "build.txt")]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sentiment-cluster"


def interpreter(name: str, requirements: Sequence[str]) -> Path:
    """The Python of an environment with this clone, its locked packages and ``requirements``.

    It is made if it does not exist, or if any of them has changed.
    """
    locks = [path.read_text() for path in LOCKS]
    project = (ROOT / "pyproject.toml").read_text()
    text = "\n".join([sys.version, str(ROOT), project, *locks, *requirements])
    folder = CACHE / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    python, complete = folder / "bin/python", folder / ".complete"
    if not complete.exists():
        print(f"{name}: installing {' '.join(requirements)}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        locked = [argument for path in LOCKS for argument in ("-r", str(path))]
        subprocess.run([*pip, "--require-hashes", *locked], check=True)
        # The versions of the locks stay: what the service runs on is what is checked.
        subprocess.run([*pip, *requirements], check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], check=True)
        complete.touch()
    return python
