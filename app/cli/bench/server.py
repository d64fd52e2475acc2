"""Starts a server in a process of its own, and ends it."""

import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from app.cli.children import child_command
from app.cli.sources import PREFIX
from app.errors import UserError

WAIT_S = 60.0  # for the end of a process
# The settings that must not count for a service that one client asks, on loopback.
REMOTE = ("API_KEY", "ADMIN_KEY", "RATE_LIMIT", "METRICS_PORT", "GRPC_PORT", "TLS_", "ROOT_PATH")


class Server:
    """A server that logs its address to standard error. The end of the ``with`` block stops it.

    ``first_lines`` is what it logged up to its address; ``environment`` is in the place of ours.
    """

    def __init__(self, *command: str, environment: Mapping[str, str] | None = None) -> None:
        started = time.perf_counter()
        self._process = subprocess.Popen(  # noqa: S603 - our own commands
            command, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stderr is not None  # noqa: S101
        self._lines: list[str] = []
        try:
            while not (address := re.search(r"(https?)://[\d.\[:\]]+:(\d+)", self.log)):
                line = self._process.stderr.readline()
                if not line:
                    self._process.communicate()
                    raise RuntimeError(f"the server did not start: {self.log}")
                self._lines.append(line)
        except KeyboardInterrupt:
            self._process.kill()
            raise
        self.start_seconds = time.perf_counter() - started
        self.first_lines = self.log
        self._taken = len(self._lines)
        self.port = int(address[2])
        self.url = f"{address[1]}://127.0.0.1:{self.port}"
        self.pid = self._process.pid
        # If nobody read the pipe, it would fill up and block the server.
        self._reading = threading.Thread(target=self._read_log, daemon=True)
        self._reading.start()

    @property
    def log(self) -> str:
        """What it has logged until now."""
        return "".join(self._lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self.wait()

    def _read_log(self) -> None:
        assert self._process.stderr is not None  # noqa: S101
        with self._process.stderr as lines:
            self._lines.extend(lines)

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    def wait(self) -> tuple[int, str]:
        """Wait for the end; the exit code, and what was logged after the first lines."""
        code = self._process.wait(WAIT_S)
        self._reading.join()
        return code, "".join(self._lines[self._taken :])


class OwnService(Server):
    """``sentiment serve`` on a free port of loopback, with our environment and these settings."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        """Start it. The settings are names with values as a command line gives them.

        Raises:
            UserError: it did not start.
        """
        away = tuple(f"{PREFIX}{name}" for name in REMOTE)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(away)}
        for name, value in settings.items():
            kept[PREFIX + name.upper()] = str(value[0] if isinstance(value, list) else value)
        where = ("serve", "--host", "127.0.0.1", "--port", "0", "--log-format", "human")
        try:
            super().__init__(
                *child_command("from app.__main__ import main"), *where, environment=kept
            )
        except RuntimeError as error:
            raise UserError(str(error).strip().splitlines()[-1]) from None

    def _read_log(self) -> None:
        """Read the lines of its access log, and forget them."""
        assert self._process.stderr is not None  # noqa: S101
        with self._process.stderr as lines:
            for _ in lines:
                pass
