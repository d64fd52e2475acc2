"""The service that is measured: started if need be, asked by hand, and what its metrics say."""

import json
import os
import re
import socket
import ssl
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import IO, Any, Self
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from sentiment_service.cli.load_generator import Load
from sentiment_service.errors import UserError, first_line
from sentiment_service.installation import child_command
from sentiment_service.settings.settings import PREFIX

ADDRESS = re.compile(r"(https?)://[\d.\[:\]]+:(\d+)")
WAIT_S = 60.0  # for the end of a process
# The settings that must not count for a service that one client asks, on loopback.
REMOTE = ("API_KEY", "ADMIN_KEY", "RATE_LIMIT", "METRICS_PORT", "GRPC_PORT", "TLS_", "ROOT_PATH")
TIMEOUT_S = 10.0  # for an answer
MOST_BYTES = 16 * 2**20  # of an answer


class Server:
    """A server that logs its address to standard error. The end of the ``with`` block stops it.

    ``first_lines`` is what it logged up to its address; ``environment`` is in the place of ours;
    ``popen`` starts it.
    """

    def __init__(
        self,
        *command: str,
        environment: Mapping[str, str] | None = None,
        popen: Callable[..., "subprocess.Popen[str]"] = subprocess.Popen,
    ) -> None:
        """Start it and wait for its address."""
        self._process = popen(command, stderr=subprocess.PIPE, text=True, env=environment)
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
        self._reading.join(WAIT_S)  # something that it has started may still hold its log

    def _read(self, log: IO[str]) -> None:
        with log:
            for _ in log:
                pass


def own_service(settings: Mapping[str, object]) -> Server:
    """Start ``sentiment serve`` on a free port of loopback, in our environment.

    ``settings`` are names with values as a command line gives them.
    """
    away = tuple(f"{PREFIX}{name}" for name in REMOTE)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(away)}
    for name, value in settings.items():
        kept[PREFIX + name.upper()] = str(value[0] if isinstance(value, list) else value)
    command = child_command("from sentiment_service.__main__ import main")
    options = ("--host", "127.0.0.1", "--port", "0", "--log-format", "human")
    try:
        return Server(*command, "serve", *options, environment=kept)
    except RuntimeError as error:
        raise UserError(str(error).strip().splitlines()[-1]) from None


@dataclass(frozen=True)
class Target:
    """A service at a URL, which may have a path, and the API key that it wants.

    ``timeout_s`` are the seconds for an answer to a request that is sent by hand.
    """

    url: str
    key: str | None = None
    timeout_s: float = TIMEOUT_S

    def check(self, body: str) -> None:
        try:
            status, answer = self._ask("/classify", body.encode())
        except ssl.SSLCertVerificationError as error:
            raise UserError(f"{self.url} does not answer: {error.verify_message}") from None
        except TimeoutError:
            raise UserError(f"{self.url} does not answer within {self.timeout_s:g} s") from None
        except (OSError, ValueError) as error:
            number = error.errno if isinstance(error, OSError) else None
            why = os.strerror(number) if number and number > 0 else first_line(error)
            raise UserError(f"{self.url} does not answer: {why}") from None
        if status == 401:
            raise UserError(f"{self.url} answers 401: set SENTIMENT_API_KEY to a key it accepts")
        if 300 <= status < 400:
            raise UserError(f"{self.url} answers {status}, a redirect: give the URL it leads to")
        found: Any = None
        with suppress(ValueError):
            found = json.loads(answer)
        if not isinstance(found, dict) or (status == 200 and "results" not in found):
            raise UserError(f"{self.url} is not the sentiment service: it answers {status}")
        if status != 200:
            raise UserError(f"{self.url} answers {status}: {found.get('detail')}")

    def load(self, bodies: Sequence[str], seconds: float, rate: float | None) -> Load:
        """Requests with these bodies: at a rate per second, or one after the other."""
        headers = [f"authorization: Bearer {self.key}"] if self.key else []
        url, connections = f"{self.url.rstrip('/')}/classify", 1 if rate is None else 16
        return Load(url, bodies, connections, seconds, rate=rate, headers=headers)

    def metrics(self) -> Mapping[str, float]:
        """The ``sums`` of its metrics; zeros if they cannot be read."""
        try:
            status, scrape = self._ask("/metrics")
            return sums(scrape.decode() if status == 200 else "")
        except (OSError, ValueError):
            return sums("")

    def _ask(self, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of an answer. A redirect is not followed: the key is for this URL."""
        to = urlsplit(self.url)
        kind = HTTPSConnection if to.scheme == "https" else HTTPConnection
        headers = {"content-type": "application/json"} if body else {}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        path, until = f"{to.path.rstrip('/')}{path}", time.monotonic() + self.timeout_s
        with closing(kind(to.hostname or "", to.port, timeout=self.timeout_s)) as connection:
            connection.connect()
            # The connection's own limit is for each piece, and some answer in pieces for ever.
            late = threading.Timer(self.timeout_s, _shut, [connection.sock])
            late.start()
            try:
                connection.request("POST" if body else "GET", path, body or None, headers)
                answer = connection.getresponse()
                content = answer.read(MOST_BYTES + 1)
            except HTTPException:
                raise ValueError("it does not speak HTTP") from None
            finally:
                late.cancel()
                if time.monotonic() >= until:
                    raise TimeoutError
        if len(content) > MOST_BYTES:
            raise ValueError(f"its answer has more than {MOST_BYTES} bytes")
        return answer.status, content


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_RDWR)


def sums(scrape: str) -> Mapping[str, float]:
    """The value of each metric without our prefix, summed over its labels; 0 of others."""
    found: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(scrape):
        for sample in family.samples:
            found[sample.name.removeprefix("sentiment_")] += sample.value
    return found
