"""Environments of the checks beside the suite, because what they need excludes each other.

An environment is kept in the user's cache directory, and made again when its packages or the
version of Python change.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.service import ROOT

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sentiment-checks"
# What the service runs on.
SERVICE = [ROOT / "requirements" / name for name in ("cpu.txt", "files.txt", "build.txt")]
ATTEMPTS = 2  # a download may fail once


class InstallFailed(Exception):
    """The packages of an environment could not be installed; uv has written why."""


def python(packages: Path, *, service: bool = False) -> Path:
    """The interpreter of an environment, which is made if it does not exist.

    ``packages`` is the file that lists them with their versions. With ``service``, the service of
    this clone and its own packages are there as well.

    Raises:
        InstallFailed: the packages could not be installed.
    """
    files = [packages, *(SERVICE if service else [])]
    content = [sys.version, str(ROOT) if service else "", *(file.read_text() for file in files)]
    digest = hashlib.sha256("\n".join(content).encode()).hexdigest()
    folder = CACHE / f"{packages.stem}-{digest[:12]}"
    interpreter, complete = folder / "bin/python", folder / ".complete"

    def install() -> bool:
        print(f"{packages.stem}: installing its packages", flush=True)
        pip = ("pip", "install", "--python", interpreter)
        listed = (word for file in files for word in ("--requirements", file))
        editable = ("--no-deps", "--no-build-isolation", "--editable", ROOT)
        return (
            _uv("venv", "--clear", "--python", sys.executable, folder)
            and _uv(*pip, *listed)
            and (not service or _uv(*pip, *editable))
        )

    if not complete.exists():
        if not any(install() for _ in range(ATTEMPTS)):
            raise InstallFailed(packages.name)
        complete.touch()
    return interpreter


def _uv(*arguments: str | Path) -> bool:
    """Run uv; whether it succeeded."""
    command = [sys.executable, "-m", "uv", "--quiet", *arguments]
    return subprocess.run(command, check=False).returncode == 0
