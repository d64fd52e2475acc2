"""Docker or Podman: the program that builds images and runs containers."""

import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from checks.support import waiting

START_S = 60.0
LOG_LINES = 15  # shown of a container that failed
# As docker-compose.yml runs the service.
HARDENED = (
    *("--init", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),  # noqa: S108
    *("--security-opt", "no-new-privileges"),
)
PORT = "8000"  # of the service in its container
# For machines without systemd, with control groups that crun, the default, refuses, or where no
# process may raise its limits.
CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""

# A failed connection is "not yet".
wait = partial(waiting.wait, not_yet=(httpx2.TransportError,), interval=0.02)


class EngineError(Exception):
    """A command of Docker or Podman failed; the message is the end of what it wrote."""


def classify(url: str, *texts: str) -> list[Any]:
    answer = httpx2.post(f"{url}/classify", json={"inputs": texts}, timeout=30)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["results"])


@dataclass(frozen=True)
class Engine:
    """``docker`` or ``podman``, with the environment of its commands."""

    name: str
    environment: dict[str, str]

    def run(self, *arguments: str | Path, seconds: float = 120) -> str:
        """Run a command such as ``inspect NAME``; what it wrote to standard output."""
        return self.streams(*arguments, seconds=seconds)[0].strip()

    def streams(self, *arguments: str | Path, seconds: float = 120) -> tuple[str, str]:
        """Like ``run``, with what the command wrote to standard error."""
        try:
            done = subprocess.run(
                [self.name, *arguments],
                env=self.environment,
                # Podman's monitor leaves a file "oom" there if a container runs out of memory.
                cwd=tempfile.gettempdir(),
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineError(f"{self.name} {arguments[0]}: not done in {seconds:.0f} s") from None
        if done.returncode:
            raise EngineError(
                f"{self.name} {arguments[0]}: {last_lines(done.stdout + done.stderr)}"
            )
        return done.stdout, done.stderr

    def has_image(self, image: str) -> bool:
        """Whether the image is here, or can be pulled."""
        for command in (("image", "inspect"), ("pull", "--quiet")):
            try:
                self.run(*command, image)
            except EngineError:
                continue
            return True
        return False

    @contextmanager
    def container(
        self, image: str, *options: str, words: Sequence[str] = ()
    ) -> Iterator["Container"]:
        """A container, removed in the end. If the block fails, its last lines are shown."""
        identity = self.run("create", *HARDENED, *options, image, *words)
        container = Container(self, identity, time.perf_counter())
        try:
            self.run("start", identity)
            yield container
        except BaseException:
            print(last_lines(container.log()))
            raise
        finally:
            self.run("rm", "--force", identity)

    @contextmanager
    def made(self, kind: str, *options: str) -> Iterator[str]:
        """A ``volume`` or ``network`` for the block; its name."""
        name = f"sentiment-check-{os.getpid()}"
        self.run(kind, "create", *options, name)
        try:
            yield name
        finally:
            self.run(kind, "rm", name)


@dataclass(frozen=True)
class Container:
    """A container, and when it was started by ``time.perf_counter``."""

    engine: Engine
    identity: str
    started: float

    def inspect(self, template: str) -> str:
        """A value of the container, by a template of Go."""
        return self.engine.run("inspect", "--format", template, self.identity)

    @property
    def url(self) -> str:
        """Where its port is published on this machine."""
        return f"http://{self.engine.run('port', self.identity, PORT).splitlines()[0]}"

    def log(self) -> str:
        """What it has written, on both streams."""
        return "".join(self.engine.streams("logs", self.identity))

    def ended(self) -> int:
        """Wait for its end; the exit code."""
        return int(self.engine.run("wait", self.identity, seconds=START_S))

    def ready(self, url: str = "") -> float:
        """Wait until it has classified a text; the seconds since the container was started.

        ``url`` is where to ask, unless its port is published.
        """
        url = url or self.url

        def is_ready() -> bool:
            state = self.inspect("{{.State.Status}} with {{.State.ExitCode}}")
            assert state.startswith("running"), f"the container {state}"
            return httpx2.get(f"{url}/health/ready", timeout=5).status_code == 200

        wait(is_ready, START_S, "the service is ready")
        classify(url, "I love this!")
        return time.perf_counter() - self.started


@contextmanager
def found() -> Iterator[Engine | str]:
    """Docker where its service runs, else Podman; or why there is neither."""
    if (
        shutil.which("docker")
        and not subprocess.run(["docker", "info"], capture_output=True).returncode
    ):
        yield Engine("docker", dict(os.environ))
    elif not shutil.which("podman"):
        yield "neither Docker's service nor podman is here"
    elif os.geteuid():
        yield "without root, Podman cannot set the limits of containers"
    else:
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as configuration:
            files = min(1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            configuration.write(CONTAINERS_CONF.format(files=files))
            configuration.flush()
            # Health checks that nobody asks for need systemd's timers.
            given = {"CONTAINERS_CONF": configuration.name, "DISABLE_HC_SYSTEMD": "true"}
            yield Engine("podman", os.environ | given)


def last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-LOG_LINES:])
