"""A server of the tiny model that also answers gRPC."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.service import free_port
from tests.conftest import FLAGS
from tests.support.serving import Process


@contextmanager
def serving(bundle: Path, *flags: str, **options: Any) -> Iterator[tuple[Process, int]]:
    """``sentiment serve`` with these flags, and its port for gRPC."""
    port = free_port()
    own = ("--model", str(bundle), *FLAGS, "--grpc-port", str(port))
    with Process(*own, *flags, **options) as process:
        yield process, port
