"""The connection to a Ray cluster."""

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import ray
import ray.data
from ray.exceptions import RayError, WorkerCrashedError

from sentiment_service.engine.machine.cpu import available_cpus
from sentiment_service.errors import UserError

# A cluster must accept a connection within so many seconds.
CONNECT_S = 5.0
# Ray reads these when it starts. It sends usage statistics by default, and its C++ code writes
# warnings to standard error that users can do nothing about.
SILENT = logging.CRITICAL + 1  # what failed is an exception as well, and becomes our one line
VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}


@contextmanager
def connected(address: str) -> Iterator[None]:
    """A connection to the cluster at ``address``; ``local`` starts one on this machine.

    Raises:
        UserError: there is no such cluster, or it has another version of Ray or Python.
    """
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    address = (os.environ.get("RAY_ADDRESS") or address) if address == "auto" else address
    if ":" in address:
        _check_reachable(address)
    options: dict[str, Any] = {}
    if address == "local":
        options = {"num_cpus": max(1, int(available_cpus())), "include_dashboard": False}
    try:
        with _silent_stderr():
            ray.init(
                address,
                log_to_driver=False,
                logging_level=SILENT,
                **options,
            )
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise UserError(_unusable(address, error)) from error
    logging.getLogger("ray.data").setLevel(SILENT)
    ray.data.DataContext.get_current().enable_progress_bars = sys.stderr.isatty()
    try:
        # Ray prints what happens to its nodes; the command itself prints nothing there.
        with Path(os.devnull).open("w") as nothing, redirect_stdout(nothing):
            yield
    except RayError as error:
        raise UserError(reason(error)) from error
    finally:
        ray.shutdown()


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Hide what Ray's C++ code writes when it starts: a line on ``RAY_BACKEND_LOG_LEVEL``."""
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def reason(error: Exception) -> str:
    """What an error says, without the traceback that Ray adds."""
    if not isinstance(error, RayError):
        return str(error)
    if isinstance(error, WorkerCrashedError):  # it says no more, also if RUNTIME has failed
        return (
            "Ray failed: a process of a node died; each node needs sentiment-service, in the "
            "version that is installed here, and enough memory"
        )
    lines = str(getattr(error, "cause", None) or error).strip().splitlines()
    return f"Ray failed: {lines[-1] if lines else error!r}"


def _check_reachable(address: str) -> None:
    host, _, port = address.rpartition("//")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise UserError(
            f"no Ray cluster answers at {address}: {error}; --address accepts auto, local, "
            "ray://HOST:PORT (by default port 10001) or HOST:PORT (6379)"
        ) from None


def _unusable(address: str, error: Exception) -> str:
    if address == "auto" and isinstance(error, ConnectionError):
        return (
            "no Ray cluster was found on this machine; start one with 'ray start --head', name one "
            "with --address, or let --address local start one for this run"
        )
    return f"the Ray cluster at {address} cannot be used: {' '.join(str(error).split())}"
