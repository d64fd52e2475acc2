"""Which connections end because the soak kills their worker. Only those may."""

import math
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from checks.soak.wire import Address, Lost

# Seconds after a kill in which gRPC may refuse calls: the kernel deals its connections, and resets
# those that the killed worker had not accepted; then the client waits before it connects again.
GRPC_S = 3.0


class Deaths:
    """The deaths of workers until now."""

    def __init__(self) -> None:
        self._latest = -math.inf  # on the clock time.monotonic
        self._ends: dict[Address, float] = {}  # of connections, by the client's address

    def kill(self, pid: int, port: int) -> None:
        """Kill the worker, and note which connections of the service's ``port`` it has."""
        # While it is stopped, it takes no further ones: those must not be lost.
        os.kill(pid, signal.SIGSTOP)
        while not _stopped(pid):
            time.sleep(0.001)
        self._latest = time.monotonic()
        self._ends |= dict.fromkeys(clients_of(pid, port), self._latest)
        os.kill(pid, signal.SIGKILL)

    def explain(self, error: Exception) -> bool:
        """Whether a connection was lost because its worker was killed."""
        return (
            isinstance(error, Lost)
            and error.client is not None
            and error.opened <= self._ends.get(error.client, -math.inf)
        )

    def explain_grpc(self, began: float) -> bool:
        """Whether a gRPC call that began then may have failed because a worker was killed."""
        return self._latest >= began - GRPC_S


def clients_of(pid: int, port: int) -> set[Address]:
    """The clients' addresses of the connections of ``port`` that the process has."""
    sockets = set(_sockets(pid))
    return {client for inode, client in _connections(port) if inode in sockets}


def _stopped(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    states = ((task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks)
    return all(state in "TZX" for state in states)


def _sockets(pid: int) -> Iterator[str]:
    """The inodes of its sockets."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(link.readlink())):
                yield found[1]


def _connections(port: int) -> Iterator[tuple[str, Address]]:
    """The inode and the client's address of each connection of this port."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, *_, inode = line.split()[:10]
        if int(local.partition(":")[2], 16) == port:
            host, _, client = remote.partition(":")
            yield inode, (socket.inet_ntoa(bytes.fromhex(host)[::-1]), int(client, 16))
