"""A Debian with its own Python and the packages of the locks, and commands in it."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.service import ROOT
from checks.support import debian
from checks.support.environments import CACHE, SERVICE, InstallFailed

DEV = ROOT / "requirements/dev.txt"
# For the tests: the fake driver is compiled, other CPUs are emulated, and documentation uses curl.
PACKAGES = ("python3-venv", "gcc", "libc6-dev", "qemu-user", "curl", "procps")
# In a mount namespace, so that no mount outlives the command. PATH:PATH pairs, then the command.
ENTER = """
set -eu
cd "$1"; shift
for name in proc sys dev; do mount --rbind "/$name" "$name"; done
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p ".$2"; else mkdir -p ".${2%/*}"; touch ".$2"; fi
    mount --bind "$1" ".$2"; shift 2
done
shift
exec chroot . "$@"
"""
COPY = "/work"  # of this clone


class RootError(Exception):
    """No root can be made here."""


@dataclass(frozen=True)
class Root:
    folder: Path

    def run(self, *command: str) -> int:
        """Run a command in the copy of this clone; its exit code."""
        with self._entering(*command) as words:
            return subprocess.run(words, check=False).returncode

    def output(self, *command: str) -> str:
        """What a command wrote."""
        with self._entering(*command) as words:
            done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode:
            raise InstallFailed((done.stderr or done.stdout)[-300:])
        return done.stdout.strip()

    @contextmanager
    def _entering(self, *command: str) -> Iterator[list[str]]:
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as pip:
            mounts = [("/etc/resolv.conf", "/etc/resolv.conf"), *debian.pip_sources(Path(pip.name))]
            variables = ["HOME=/root", "LANG=C.UTF-8", "PATH=/venv/bin:/usr/sbin:/usr/bin"]
            # There, a missing tool is a failure, not a reason to skip a test.
            variables += [f"CI={os.environ['CI']}"] if "CI" in os.environ else []
            yield [
                *("unshare", "--mount", "sh", "-c", ENTER, "enter", str(self.folder)),
                *(path for mount in mounts for path in mount),
                *("--", "env", "-i", f"--chdir={COPY}", *variables, *command),
            ]


def made(suite: str) -> Root:
    """The root of a suite, from the cache or made now, with a fresh copy of this clone."""
    files = [*SERVICE, DEV]
    content = [*PACKAGES, *(file.read_text() for file in files)]
    digest = hashlib.sha256("\n".join(content).encode()).hexdigest()
    folder = CACHE / f"python-{suite}-{digest[:12]}"
    root, complete = Root(folder), folder / ".complete"
    if not complete.exists():
        # Those of earlier locks as well: a few of 7 GB each fill a disk.
        for earlier in CACHE.glob(f"python-{suite}-*"):
            shutil.rmtree(earlier, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        _debian(suite, folder)
        _copy(folder)
        _install(root)
        complete.touch()
    _copy(folder)
    return root


def _debian(suite: str, folder: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as apt:
        # How this machine fetches packages: a proxy, and a mirror that is older than its files say.
        options = subprocess.run(["apt-config", "dump"], check=True, capture_output=True, text=True)
        lines = options.stdout.splitlines(keepends=True)
        apt.writelines(line for line in lines if line.startswith("Acquire::"))
        apt.flush()
        try:
            debian.make(suite, folder, *PACKAGES, apt_options=Path(apt.name))
        except subprocess.CalledProcessError as error:
            raise RootError(f"mmdebstrap: {error.stderr[-300:]}") from None


def _copy(folder: Path) -> None:
    """Copy what git tracks, and new files."""
    copy = folder / COPY[1:]
    shutil.rmtree(copy, ignore_errors=True)
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (source := ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy / name)


def _install(root: Root) -> None:
    """Install as ``make install-dev`` does; here pip has only the PyTorch that brings CUDA."""
    pip = "/venv/bin/python -m pip --disable-pip-version-check install --quiet --no-cache-dir"
    serving = [word for file in SERVICE for word in ("-r", f"requirements/{file.name}")]
    root.output("python3", "-m", "venv", "/venv")
    root.output(*pip.split(), "--require-hashes", *serving)
    root.output(*pip.split(), "-r", f"requirements/{DEV.name}")
    root.output(*pip.split(), "--no-deps", "--no-build-isolation", "--editable", ".")
