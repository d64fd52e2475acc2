"""Environments of the platforms' clients: one for each, because they exclude each other.

An environment has the packages of ``requirements/<name>.txt``. It is kept in the user's cache
directory, and made again when these packages or the version of Python change.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sentiment-platforms"
ATTEMPTS = 2  # a download may fail once


class InstallFailed(Exception):
    """The packages of a client could not be installed; uv has written why."""


def python(name: str) -> Path:
    """The interpreter of a client's environment, which is made if it does not exist.

    Raises:
        InstallFailed: the packages could not be installed.
    """
    packages = REQUIREMENTS / f"{name}.txt"
    digest = hashlib.sha256(sys.version.encode() + packages.read_bytes()).hexdigest()
    folder = CACHE / f"{name}-{digest[:12]}"
    interpreter, complete = folder / "bin/python", folder / ".complete"

    def install() -> bool:
        print(f"platform-check: {name}: installing its client", flush=True)
        made = _uv("venv", "--clear", "--python", sys.executable, folder)
        return made and _uv("pip", "install", "--python", interpreter, "--requirements", packages)

    if not complete.exists():
        if not any(install() for _ in range(ATTEMPTS)):
            raise InstallFailed
        complete.touch()
    return interpreter


def _uv(*arguments: str | Path) -> bool:
    """Run uv; whether it succeeded."""
    command = [sys.executable, "-m", "uv", "--quiet", *arguments]
    return subprocess.run(command, check=False).returncode == 0
