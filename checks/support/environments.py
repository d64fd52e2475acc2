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
# Built wheels of what has none in the index. uv alone would unpack 480 MB of pyspark's source again
# for each resolution, and keep them all.
WHEELS = CACHE / "wheels"
WITHOUT_WHEELS = ("pyspark",)


class InstallFailed(Exception):
    """The packages of an environment could not be installed; uv has written why."""


def python(packages: Path, *, service: bool = False) -> Path:
    """The interpreter of an environment, which is made if it does not exist.

    ``packages`` is the file that lists them with their versions. With ``service``, the service of
    this clone and its own packages are there as well.
    """
    files = [packages, *(SERVICE if service else [])]
    content = [sys.version, str(ROOT) if service else "", *(file.read_text() for file in files)]
    digest = hashlib.sha256("\n".join(content).encode()).hexdigest()
    folder = CACHE / f"{packages.stem}-{digest[:12]}"
    interpreter, complete = folder / "bin/python", folder / ".complete"

    def install() -> bool:
        print(f"{packages.stem}: installing its packages", flush=True)
        pip = ("pip", "install", "--find-links", WHEELS, "--python", interpreter)
        listed = (word for file in files for word in ("--requirements", file))
        editable = ("--no-deps", "--no-build-isolation", "--editable", ROOT)
        return (
            _uv("venv", "--clear", "--python", sys.executable, folder)
            and _uv(*pip, *listed)
            and (not service or _uv(*pip, *editable))
        )

    if not complete.exists():
        WHEELS.mkdir(parents=True, exist_ok=True)  # uv looks for it also where none is needed
        for line in packages.read_text().splitlines():
            if line.startswith(WITHOUT_WHEELS):
                build_wheel(line.split()[0])
        if not any(install() for _ in range(ATTEMPTS)):
            raise InstallFailed(packages.name)
        complete.touch()
    return interpreter


def build_wheel(requirement: str) -> None:
    """Add the wheel of a package to ``WHEELS``, unless it is there."""
    folders = ("--find-links", WHEELS, "--wheel-dir", WHEELS)
    command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *folders, requirement)
    if subprocess.run(command, check=False).returncode:
        raise InstallFailed(requirement)


def _uv(*arguments: str | Path) -> bool:
    command = [sys.executable, "-m", "uv", "--quiet", *arguments]
    return subprocess.run(command, check=False).returncode == 0
