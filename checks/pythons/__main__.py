"""Runs the tests on the Pythons of Debian 13 and of Debian unstable: ``make python-check``.

It needs mmdebstrap, root and the right to mount. Each root is kept in the user's cache directory
(not in CI), and made again in its place when a lock changes. A root takes 7 GB, because the PyTorch
of PyPI brings CUDA.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time

from checks.pythons.root import Root, RootError, made
from checks.support.environments import InstallFailed

# Debian 13 has Python 3.13. What Debian unstable has is printed; it was 3.14 when this was written.
SUITES = ("trixie", "sid")
# Left out, because no Python of the root runs there: files of the repository, Helm, Prometheus,
# nginx, plots, and the pages in Chromium. CI runs them with Python 3.11.
ELSEWHERE = (
    "tests/project",
    "tests/deploy",
    "tests/benchmarks",
    "tests/api/openapi/test_docs.py",
    "tests/api/routes/test_page.py",
    "tests/api/routes/test_page_files.py",
    "tests/api/routes/test_prefix.py",
)

TOGETHER = (
    *("-m", "not beside", "--dist", "loadfile", "--numprocesses", "auto", "--maxprocesses", "4"),
    *(f"--ignore={path}" for path in ELSEWHERE),
)
# As in .ci/run.
FAILED_ALONE = ("--last-failed", "--last-failed-no-failures", "none")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python-check", description=__doc__)
    parser.add_argument("--suite", action="append", choices=SUITES, help="may be repeated")
    parser.add_argument("tests", nargs="*", help="only these files or folders")
    options = parser.parse_args()
    if reason := _missing():
        print(f"python-check: not run: {reason}")
        return 0
    failed = False
    for suite in options.suite or SUITES:
        started = time.perf_counter()
        try:
            root = made(suite)
            version = root.output("/venv/bin/python", "--version")
        except RootError as error:
            print(f"python-check: {suite}: not run: {' '.join(str(error).split())}", flush=True)
            continue
        except InstallFailed as error:
            print(f"python-check: {suite}: FAILED to install: {error}", flush=True)
            failed = True
            continue
        making, started = time.perf_counter() - started, time.perf_counter()
        print(f"python-check: {suite}: {version}, root ready in {making:.0f} s", flush=True)
        code = _tests(root, *TOGETHER, *(options.tests or ["tests"])) and _tests(
            root, *FAILED_ALONE
        )
        result = "FAILED" if code else "passed"
        seconds = time.perf_counter() - started
        print(f"python-check: {suite}: {version}: {result} in {seconds:.0f} s", flush=True)
        failed |= code != 0
        if "CI" in os.environ:  # both at once would take twice the disk
            shutil.rmtree(root.folder)
    return int(failed)


def _missing() -> str:
    """What this machine lacks for a root; empty if nothing."""
    if os.geteuid():
        return "without root, no mount can be made"
    if not shutil.which("mmdebstrap"):
        return "mmdebstrap is not here"
    may_mount = ["unshare", "--mount", "true"]
    if subprocess.run(may_mount, check=False, capture_output=True).returncode:
        return "this machine lets no process have mounts of its own"
    return ""


def _tests(root: Root, *options: str) -> int:
    return root.run("/venv/bin/python", "-m", "pytest", "--quiet", "--tb", "short", *options)


if __name__ == "__main__":
    sys.exit(main())
