"""Installs and starts other projects' servers with the same checkpoint, to compare them with ours.

Each has a separate virtual environment, which is made once from ``benchmarks/peers/packages.toml``.
"""

import hashlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from benchmarks.peers.onnx_directory import onnx_fp32, onnx_int8
from benchmarks.service import ROOT

PACKAGES = ROOT / "benchmarks/peers/packages.toml"
START_SECONDS, STOP_SECONDS = 120, 10
ENVIRONMENT = {
    "OMP_NUM_THREADS": "2",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONPATH": str(ROOT),
    # These switch off usage statistics.
    "DO_NOT_TRACK": "1",
    "INFINITY_ANONYMOUS_USAGE_STATS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "BENTOML_DO_NOT_TRACK": "True",
}


class PeerError(RuntimeError):
    """A peer could not be installed or started; the message has the last lines of its output."""


@dataclass(frozen=True)
class Peer:
    """A server: its name, how to start it and what to send.

    ``environment`` names the list of pinned packages. ``command`` begins with a program that they
    install; ``{port}``, ``{precision}`` and ``{model}`` are filled in. The model is the directory
    that ``prepare`` writes from the checkpoint; without ``prepare``, it is the checkpoint.
    ``request`` is the JSON of a request, with ``%s`` for the text.
    """

    name: str
    environment: str
    command: tuple[str, ...]
    path: str
    request: str = '{"inputs": %s}'
    precision: str = "float32"
    prepare: Callable[[Path, Path], None] | None = None

    def body(self, text: str) -> str:
        return self.request % json.dumps(text)


def _module(name: str, *options: str) -> tuple[str, ...]:
    return ("python", "-m", f"benchmarks.peers.{name}", *options)


PIPELINE = _module("pipeline_server")
MOSEC = _module("mosec_server", "--address", "127.0.0.1", "--port", "{port}", "--timeout", "60000")
LITSERVE, RAY, TRITON = (_module(f"{name}_server") for name in ("litserve", "ray", "triton"))
HERE = ("--host", "127.0.0.1", "--port", "{port}")
BENTOML = ("python", "-m", "bentoml", "serve", "benchmarks.peers.bentoml_server:Classify", *HERE)
INFINITY = (
    *("infinity_emb", "v2", "--model-id", "{model}", "--served-model-name", "peer", *HERE),
    # Its warm-up fails if the tokenizer of the checkpoint has no maximum length.
    *("--device", "cpu", "--batch-size", "32", "--no-model-warmup", "--no-bettertransformer"),
)
TORCH = (*INFINITY, "--engine", "torch", "--dtype", "{precision}")
ONNX = (*INFINITY, "--engine", "optimum", "--onnx-disable-optimize")
INFINITY_TEXT = '{"model": "peer", "input": [%s]}'
TRITON_TEXT = '{"inputs": [{"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [%s]}]}'
# On a CPU with VNNI, torch's int8 is several times as fast as its fp32.
PRECISIONS = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}
SERVERS = (
    Peer("transformers pipeline", "pipeline", PIPELINE, "/classify"),
    Peer("mosec", "mosec", MOSEC, "/inference"),
    Peer("LitServe", "litserve", LITSERVE, "/predict"),
    Peer("Ray Serve", "ray", RAY, "/classify"),
    Peer("BentoML", "bentoml", BENTOML, "/classify", '{"inputs": [%s]}'),
    Peer("Triton", "triton", TRITON, "/v2/models/classifier/infer", TRITON_TEXT),
    Peer("Infinity", "infinity", TORCH, "/classify", INFINITY_TEXT),
)
PEERS = (
    *(
        replace(server, name=f"{server.name}, torch {name}", precision=precision)
        for server in SERVERS
        for name, precision in PRECISIONS.items()
    ),
    Peer("Infinity, ONNX fp32", "infinity", ONNX, "/classify", INFINITY_TEXT, prepare=onnx_fp32),
    Peer("Infinity, ONNX int8", "infinity", ONNX, "/classify", INFINITY_TEXT, prepare=onnx_int8),
)


def install(peer: Peer, home: Path) -> Path:
    """Make the peer's virtual environment in ``home``, unless it exists with the same pins."""
    pins = tomllib.loads(PACKAGES.read_text(encoding="utf-8"))[peer.environment]
    directory = home / peer.environment
    stamp, wanted = directory / "pins.sha256", hashlib.sha256("\n".join(pins).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return directory
    subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
    command = (directory / "bin" / "python", "-m", "pip", "install", "--quiet", *pins)
    pip = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if pip.returncode:
        raise PeerError(f"{peer.name} could not be installed:\n{_last_lines(pip.stdout)}")
    stamp.write_text(wanted)
    return directory


@contextmanager
def serving(peer: Peer, home: Path, checkpoint: Path, port: int) -> Iterator[int]:
    """Serve the checkpoint on ``port`` of this machine; install and prepare what is missing."""
    home = home.absolute()  # the peer runs in another directory
    programs = install(peer, home) / "bin"
    model = _prepared(peer, home, checkpoint)
    values = {"port": port, "model": model, "precision": peer.precision}
    program, *arguments = (argument.format_map(values) for argument in peer.command)
    settings = {"CHECKPOINT": str(model), "PORT": str(port), "PRECISION": peer.precision}
    environment = os.environ | ENVIRONMENT | settings
    temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with temporary as scratch, tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [programs / program, *arguments],
            cwd=scratch,
            env=environment | {"HOME": scratch, "TMPDIR": scratch},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _await_answer(peer, process, port, output)
            yield port
        finally:
            _stop(process)


def _prepared(peer: Peer, home: Path, checkpoint: Path) -> Path:
    """The directory that the peer serves; prepared once for each content of the checkpoint."""
    if peer.prepare is None:
        return checkpoint.resolve()
    digest = hashlib.sha256()
    for file in sorted(checkpoint.glob("*.*")):
        digest.update(file.read_bytes())
    model = home / "models" / f"{peer.prepare.__name__}-{digest.hexdigest()[:16]}"
    if not model.is_dir():
        model.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=model.parent) as scratch:
            peer.prepare(checkpoint, Path(scratch) / "model")
            (Path(scratch) / "model").rename(model)
    return model


def _await_answer(peer: Peer, process: subprocess.Popen[bytes], port: int, output: IO[str]) -> None:
    deadline, seen = time.monotonic() + START_SECONDS, "no answer"
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS / 4)
        with suppress(OSError, http.client.HTTPException), closing(connection):
            headers = {"content-type": "application/json"}
            connection.request("POST", peer.path, peer.body("A lovely day."), headers)
            response = connection.getresponse()
            seen = f"status {response.status}: {response.read(300)!r}"
            if response.status == 200:
                return
    output.seek(0)
    raise PeerError(f"{peer.name} does not answer with 200 ({seen}):\n{_last_lines(output.read())}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process; after some time, kill all processes of its group."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_lines(text: str, count: int = 20) -> str:
    return "\n".join(text.strip().splitlines()[-count:])
