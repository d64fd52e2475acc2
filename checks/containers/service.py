"""The service in a container, as the images are used: each function is one item of the check."""

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx2
from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE

from benchmarks.random_checkpoint import random_checkpoint
from benchmarks.service import ROOT, free_port
from checks.containers.engine import HARDENED, PORT, START_S, Engine, classify, wait
from checks.containers.images import CPU, EXPORT, GPU, size
from checks.support.load import constant_load

PUBLISHED = ("--publish", "127.0.0.1::8000")
ADDRESS = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
MEMORY_MB = 280  # what docs/containers.md asks for with the embedded model
TOO_SMALL_MB = 64
GRACE_S = 20  # what docker-compose.yml gives it
CLIENTS = [["I love this!", "The worst."]] * 16


def hardened(engine: Engine) -> str:
    """It serves with a read-only root, no capabilities, another user, odd names and settings."""
    odd = ("--user", "4711:4712", "--hostname", "Odd_host-1", "--env", "TZ=Pacific/Chatham")
    with engine.container(CPU, *PUBLISHED, *odd, "--env", "SENTIMENT_MAX_TEXTS=2") as container:
        seconds = container.ready()
        refused = httpx2.post(f"{container.url}/classify", json={"inputs": ["a", "b", "c"]})
        assert refused.json()["code"] == "too_many_texts", refused.text
        lines = [json.loads(line) for line in container.log().splitlines()]
        assert all(line["time"].endswith("Z") for line in lines), lines
        return f"first answer after {seconds:.1f} s; {len(lines)} log lines, all JSON, in UTC"


def cpu_quota(engine: Engine) -> str:
    """The service uses as many threads as its quota has CPUs."""
    plans = []
    for cpus in range(1, min(2, os.cpu_count() or 1) + 1):
        with engine.container(CPU, *PUBLISHED, "--cpus", str(cpus)) as container:
            container.ready()
            info = httpx2.get(f"{container.url}/info").json()
            plans.append(f"{info['runners']} x {info['threads']}")
            assert info["runners"] * info["threads"] == cpus, f"{cpus} CPUs, but {plans[-1]}"
    return f"runners x threads with 1 to {cpus} CPUs: {', '.join(plans)}"


def memory_limit(engine: Engine) -> str:
    """It serves lists with the memory that the documentation names, and ends with far less."""
    with engine.container(CPU, *PUBLISHED, *_memory(MEMORY_MB)) as container:
        container.ready()
        classify(container.url, *[f"{number} is a number of words " * 60 for number in range(64)])
        used = engine.run("stats", "--no-stream", "--format", "{{.MemUsage}}", container.identity)
    with engine.container(CPU, *PUBLISHED, *_memory(TOO_SMALL_MB)) as container:
        code = container.ended()
        assert code == 137 or "memory" in container.log(), f"{TOO_SMALL_MB} MB: exit code {code}"
    return f"with {MEMORY_MB} MB: {used}; with {TOO_SMALL_MB} MB: ended with {code}"


def _memory(megabytes: int) -> tuple[str, ...]:
    return ("--memory", f"{megabytes}m", "--memory-swap", f"{megabytes}m")


def health(engine: Engine) -> str:
    """The image's health command tells ready from not."""
    template = "{{json .Config.Healthcheck.Test}}"
    _, *command = json.loads(engine.run("image", "inspect", "--format", template, CPU))
    with engine.container(CPU, *PUBLISHED) as container:
        container.ready()
        started = time.perf_counter()
        engine.run("exec", container.identity, *command)
        seconds = time.perf_counter() - started
        shell = ("exec", "--env", "SENTIMENT_PORT=1", container.identity, "sh", "-c")
        failed = engine.run(*shell, '"$@" || echo failed', "sh", *command)
        said = "127.0.0.1:1 does not answer: Connection refused\nfailed"
        assert failed == said, f"the health command where nobody listens: {failed}"
    return f"{seconds:.2f} s"


def stop(engine: Engine) -> str:
    """SIGTERM under load: every request that was begun is answered, and the exit code is 0.

    The clients use the container's own address, because Docker's proxy for published ports accepts
    connections that nobody answers.
    """
    with engine.container(CPU) as container:
        url = f"http://{container.inspect(ADDRESS)}:{PORT}"
        container.ready(url)
        with constant_load(url, CLIENTS, lambda _: "answered") as seen:
            wait(lambda: seen["answered"] > 200, START_S, "200 answers")
            started = time.perf_counter()
            engine.run("kill", "--signal", "TERM", container.identity)
            code = container.ended()
            seconds = time.perf_counter() - started
        assert code == 0, f"exit code {code}"
        assert seconds < GRACE_S, f"it took {seconds:.1f} s"
        answered, refused = seen.pop("answered"), seen.pop(503, 0)
        broken = {error: n for error, n in seen.items() if not str(error).startswith("Connect")}
        assert not broken, f"requests without an answer: {broken}"
    return f"exit code 0 after {seconds:.1f} s; {answered} answers, {refused} times 503, 0 resets"


def kill(engine: Engine) -> str:
    """After SIGKILL, the same container starts and serves again."""
    with engine.container(CPU, *PUBLISHED) as container:
        container.ready()
        engine.run("kill", "--signal", "KILL", container.identity)
        code = container.ended()
        assert code == 137, f"exit code {code}"
        started = time.perf_counter()
        engine.run("start", container.identity)
        container.ready()
        return f"exit code {code}; answers again after {time.perf_counter() - started:.1f} s"


def export(engine: Engine) -> str:
    """The export image writes a bundle into a volume, from which the service serves it."""
    with tempfile.TemporaryDirectory() as folder, engine.made("volume") as models:
        Path(folder).chmod(0o755)  # the container's user is another
        checkpoint = tiny_checkpoint(Path(folder))
        for file in checkpoint.iterdir():
            file.chmod(0o644)
        mounts = (f"--volume={checkpoint}:/source:ro", f"--volume={models}:/models")
        words = ("/source", "--output", "/models/mine")
        started = time.perf_counter()
        engine.run("run", "--rm", *HARDENED, *mounts, EXPORT, *words)
        seconds = time.perf_counter() - started
        mounted = (f"--volume={models}:/models:ro", "--env=SENTIMENT_MODEL=/models/mine")
        with engine.container(CPU, *PUBLISHED, *mounted) as container:
            container.ready()
            answer = httpx2.post(f"{container.url}/classify", json={"inputs": "love"}).json()
            assert answer["model"]["name"] == "mine", answer
    return f"exported in {seconds:.0f} s, then served from the volume"


def tiny_checkpoint(folder: Path) -> Path:
    logging.getLogger("transformers").setLevel(logging.ERROR)  # it warns of its own tokenizers
    shape = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 300}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2}
    return random_checkpoint(folder / "source", "roberta", **shape, **layers)


def hub(engine: Engine) -> str:
    """A bundle and a checkpoint in repositories of a hub are served."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        checkpoint = tiny_checkpoint(Path(folder))
        models = (f"acme/bundle={EMBEDDED_BUNDLE}", f"acme/checkpoint={checkpoint}")
        command = [sys.executable, "-m", "tests.support.model_export.hub", *models]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        stack.enter_context(process)  # which waits for its end
        stack.callback(process.terminate)
        lines = process.stdout or ()
        endpoint = next(line.split()[1] for line in lines if line.startswith("export "))
        # The hub listens on the loopback interface of this machine.
        port = free_port()
        options = ("--network=host", f"--env=SENTIMENT_PORT={port}", f"--env={endpoint}")
        words = ("serve", "--model")
        with engine.container(CPU, *options, words=(*words, "acme/bundle")) as container:
            seconds = container.ready(f"http://127.0.0.1:{port}")
            assert re.search("acme/bundle, commit .* is kept in", container.log()), container.log()
        with engine.container(CPU, *options, words=(*words, "acme/checkpoint")) as container:
            exported = container.ready(f"http://127.0.0.1:{port}")
    return f"first answer after {seconds:.1f} s with a hub's bundle, {exported:.1f} s a checkpoint"


def gpu(engine: Engine) -> str:
    """Without a GPU, the image for GPUs serves on the CPU, and ends if it must use CUDA."""
    with engine.container(GPU, *PUBLISHED, "--env=SENTIMENT_DEVICE=cpu") as container:
        seconds = container.ready()
    with engine.container(GPU, "--env=SENTIMENT_DEVICE=cuda") as container:
        assert container.ended() == 1
        (error,) = (line for line in container.log().splitlines() if '"critical"' in line)
        assert "CUDA cannot be used" in error, error
    return f"{size(engine, GPU)}; on the CPU, first answer after {seconds:.1f} s; refuses CUDA"


def ipv6(engine: Engine) -> str:
    """The service listens on IPv6 and answers there."""
    addresses = Path("/proc/net/if_inet6")
    if not (addresses.exists() and addresses.read_text()):
        return "not run: this machine has no IPv6"
    subnet = ("--ipv6", "--subnet", "fd5e:7e57::/64")
    with (
        engine.made("network", *subnet) as network,
        engine.container(CPU, "--network", network, "--env=SENTIMENT_HOST=::") as container,
    ):
        address = container.inspect(ADDRESS.replace("IPAddress", "GlobalIPv6Address"))
        container.ready(f"http://[{address}]:{PORT}")
        return f"answers at [{address}]"
