"""The ``sentiment`` command without its imports, which take 0.6 s of CPU: tests start it often.

A prepared process has imported the service, and becomes the command in a fork. Each process that
runs tests starts one when it first needs it. This file is the module that asks for forks, and the
program of that process. A test of what a start imports or reads has ``subprocess.Popen`` instead.
"""

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

COMMAND = [str(Path(sys.executable).with_name("sentiment"))]
MAIN = "import sys\nfrom sentiment_service.__main__ import main\nsys.exit(main())"
# With other changes to the variables, nothing is forked: they may be read before or at an import.
# The last ones are set by the service and the export in the process of the tests.
CHANGING = (
    *("SENTIMENT_", "SAGEMAKER_", "AIP_", "AZUREML_", "PORT", "PYTEST_"),
    *("GRPC_", "OMP_", "OPENBLAS_", "RAYON_", "TOKENIZERS_", "TORCH", "TRANSFORMERS_"),
)
# The options of ``_execute_child`` but for directory, variables and standard files.
USUAL = (None, None, True, (), True, None, None, None, -1, False, -1)
MOST_BYTES = 100_000  # of a request
PR_SET_CHILD_SUBREAPER = 36


class Popen(subprocess.Popen[Any]):
    """As ``subprocess.Popen``, but the command, or Python with code that ends with it, is forked.

    Options other than the standard files, ``cwd`` and ``env`` need a start.
    """

    def _execute_child(self, given: Sequence[Any], *options: Any) -> None:
        """Where ``subprocess.Popen`` forks. Here, too, the process is a child of this one."""
        words, directory, ends = [*map(os.fsdecode, given)], options[4] or Path.cwd(), options[9:15]
        variables = dict(os.environ if options[5] is None else options[5])
        if (*options[:4], *options[15:]) == USUAL and _is_forked(words, variables):
            files = [0 if ends[0] == -1 else ends[0], 1 if ends[3] == -1 else ends[3]]
            files.append(2 if ends[5] == -1 else ends[5])
            self.pid = _prepared().fork([words, str(directory), variables], files)
            self._child_created = True
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]
        else:
            super()._execute_child(given, *options)  # type: ignore[misc]


def _is_forked(words: list[str], variables: Mapping[str, str]) -> bool:
    patched = words[:2] == [sys.executable, "-c"] and words[2].endswith(MAIN)
    return (patched or words[:1] == COMMAND) and all(
        name.startswith(CHANGING) for name, _ in _prepared().variables ^ variables.items()
    )


class Prepared:
    """The prepared process, as those see it who ask it."""

    def __init__(self) -> None:
        self.variables = dict(os.environ).items()
        self._one_at_a_time = threading.Lock()
        self._channel, its = socket.socketpair(type=socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(its.fileno())]
        with its:
            self._process = subprocess.Popen(command, pass_fds=[its.fileno()])
        atexit.register(self._end)

    def _end(self) -> None:
        self._channel.close()
        self._process.wait()

    def fork(self, request: object, files: Sequence[int]) -> int:
        """The id of the new process. We are the subreaper that the system gives it to."""
        message, prctl = json.dumps(request).encode(), ctypes.CDLL(None).prctl
        assert len(message) <= MOST_BYTES
        with self._one_at_a_time:
            try:
                assert not prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
                socket.send_fds(self._channel, [message], files)
                pid = self._channel.recv(100)
                assert pid, "nothing was forked"
                return int(pid)
            except BaseException:  # an answer may still come: the next fork is of another process
                self._channel.close()
                _prepared.cache_clear()
                raise
            finally:
                prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


_prepared = cache(Prepared)


def main(channel: socket.socket) -> str:
    """Fork for each request until the tests end. Returns in each fork, with the code to run."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        request, files, _, _ = socket.recv_fds(channel, MOST_BYTES, 3)
        if not request:
            sys.exit()
        if between := os.fork():
            if os.waitpid(between, 0)[1]:
                channel.send(b"")
            for file in files:
                os.close(file)
            continue
        between = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == between:  # until it has ended
            os.sched_yield()
        signal.signal(signal.SIGINT, interrupt)
        channel.send(str(os.getpid()).encode())
        channel.close()
        return become(files, *json.loads(request))


def become(files: list[int], words: list[str], directory: str, variables: dict[str, str]) -> str:
    """Take over what the caller gave; returns the code to run."""
    for number, (file, name) in enumerate(zip(files, ("stdin", "stdout", "stderr"), strict=True)):
        os.dup2(file, number)
        os.close(file)
        own, mode, buffering = getattr(sys, name), "w" if number else "r", 1 if number == 2 else -1
        text = {"encoding": own.encoding, "errors": own.errors, "newline": "\n"}
        setattr(sys, name, os.fdopen(number, mode, buffering, **text, closefd=False))
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(directory)
    if words[:1] == COMMAND:
        sys.argv, sys.orig_argv = words, [sys.executable, *words]
        return MAIN
    sys.argv, sys.orig_argv = [words[1], *words[3:]], words
    return words[2]


if __name__ == "__main__":
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as the command does before it imports NumPy
    del sys.path[0]  # this file's folder
    for module in ("cli.command", "files.local", "main", "server.server"):
        import_module(f"sentiment_service.{module}")
    import_module("uvloop")
    gc.freeze()  # so that the end of a short process does not look at it
    exec(main(socket.socket(fileno=int(sys.argv[1]))), {"__name__": "__main__"})  # noqa: S102
