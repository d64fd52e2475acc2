"""Starts a server in a process of its own, and ends it."""

import os
import re
import subprocess
import threading
from collections.abc import Mapping
from functools import partial
from typing import IO, Self

from sentiment_service.cli.children import child_command
from sentiment_service.config.settings import PREFIX
from sentiment_service.errors import UserError

ADDRESS = re.compile(r"(https?)://[\d.\[:\]]+:(\d+)")
WAIT_S = 60.0  # for the end of a process
# The settings that must not count for a service that one client asks, on loopback.
REMOTE = ("API_KEY", "ADMIN_KEY", "RATE_LIMIT", "METRICS_PORT", "GRPC_PORT", "TLS_", "ROOT_PATH")


class Server:
    """A server that logs its address to standard error. The end of the ``with`` block stops it.

    ``first_lines`` is what it logged up to its address; ``environment`` is in the place of ours.
    """

    def __init__(self, *command: str, environment: Mapping[str, str] | None = None) -> None:
        """Start it and wait for its address.

        Raises:
            RuntimeError: it ended without one; the message is what it logged.
        """
        self._process = subprocess.Popen(  # noqa: S603 - our own commands
            command, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stderr is not None  # noqa: S101
        self.first_lines, address = "", None
        while address is None:
            line = self._process.stderr.readline()
            if not line:
                self._process.communicate()
                raise RuntimeError(f"the server did not start: {self.first_lines}")
            self.first_lines += line
            address = ADDRESS.search(line)
        self.port = int(address[2])
        self.url = f"{address[1]}://127.0.0.1:{self.port}"
        # If nobody read the pipe, it would fill up and block the server.
        reader = partial(self._read, self._process.stderr)
        self._reading = threading.Thread(target=reader, daemon=True)
        self._reading.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait(WAIT_S)
        self._reading.join()

    def _read(self, log: IO[str]) -> None:
        """Read what it logs from now on, and forget it."""
        with log:
            for _ in log:
                pass


def own_service(settings: Mapping[str, object]) -> Server:
    """Start ``sentiment serve`` on a free port of loopback, in our environment.

    ``settings`` are names with values as a command line gives them.

    Raises:
        UserError: it did not start.
    """
    away = tuple(f"{PREFIX}{name}" for name in REMOTE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(away)}
    for name, value in settings.items():
        kept[PREFIX + name.upper()] = str(value[0] if isinstance(value, list) else value)
    command = (
        *child_command("from sentiment_service.__main__ import main"),
        "serve",
        "--host",
        "127.0.0.1",
    )
    try:
        return Server(*command, "--port", "0", "--log-format", "human", environment=kept)
    except RuntimeError as error:
        raise UserError(str(error).strip().splitlines()[-1]) from None
