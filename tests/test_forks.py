"""The tests' own way to start the command: a fork instead of a start, which imports everything."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.serving import Program, environment, patched

TELLING = """
import json, os, signal
# Pipes and sockets: imports may open files.
links = [os.path.realpath(f"/proc/self/fd/{number}") for number in range(100)]
files = [[file.encoding, file.errors] for file in (sys.stdin, sys.stdout, sys.stderr)]
print(json.dumps({
    "command": open("/proc/self/cmdline").read(), "directory": os.getcwd(), "words": sys.argv,
    "own": sys.orig_argv, "variables": dict(os.environ), "parent": os.getppid(), "files": files,
    "group": os.getpgid(0), "session": os.getsid(0),
    "open": [number for number, link in enumerate(links) if link.endswith("]")],
    "signals": {number: str(signal.getsignal(number)) for number in signal.valid_signals()},
}), flush=True)
print(repr(sys.stdin.read()), file=sys.stderr)
"""


@pytest.mark.parametrize("end", ["sys.exit(3)", "os.kill(os.getpid(), 9)", "os.abort()"])
def test_a_fork_is_as_a_start(tmp_path: Path, end: str) -> None:
    """Words, directory, variables, files, signals, parent, group and exit code are the same."""
    told: list[dict[str, Any]] = []
    options: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    options |= {"cwd": tmp_path, "env": environment(SENTIMENT_MAX_TEXT="5"), "text": True}
    for popen in (subprocess.Popen, Program):
        with popen(patched(TELLING + end, "a", "é"), **options) as process:
            written, said = process.communicate("given\r\n", timeout=60)
        told.append({**json.loads(written), "said": said, "code": process.returncode})
    assert ["forks.py" in one.pop("command") for one in told] == [False, True]
    assert told[0] == told[1]
