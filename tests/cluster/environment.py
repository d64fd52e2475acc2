"""An environment of its own for a check, kept in the user's cache directory."""

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sentiment-cluster"
LOCKS = [ROOT / "requirements/cpu.txt", ROOT / "requirements/files.txt"]


def interpreter(name: str, packages: list[str]) -> Path:
    """The interpreter of an environment with the packages for serving and files, and ``packages``.

    The environment is made if it does not exist, and again when the locks or ``packages`` change.
    """
    locks = [path.read_text(encoding="utf-8") for path in LOCKS]
    text = " ".join([sys.version, *locks, *packages])
    folder = CACHE / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    python = folder / "bin/python"
    complete = folder / ".complete"
    if not complete.exists():
        print(f"cluster-check: installing {' '.join(packages)}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        locked = [argument for path in LOCKS for argument in ("-r", path)]
        subprocess.run([*pip, "--require-hashes", *locked], check=True)
        subprocess.run([*pip, *packages], check=True)
        subprocess.run([*pip, "--no-deps", ROOT], check=True)  # for its version; see restart_in
        complete.touch()
    return python


def restart_in(name: str, packages: list[str]) -> None:
    """Run this script again in its environment, unless it runs there. Does not return then.

    The service's code is that of this tree.
    """
    python = interpreter(name, packages)
    if Path(sys.prefix) != python.parents[1]:
        variables = os.environ | {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
        os.execve(python, [str(python), *sys.argv], variables)  # noqa: S606
