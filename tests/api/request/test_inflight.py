"""Bodies in flight: their total is bounded, and long ones are read only if the queue has room."""

import json
import time
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from sentiment_service.engine.host import available_memory, used_memory
from sentiment_service.requests import service

from tests.conftest import Listen, Serve, served
from tests.support.raw_http import HEAD, connect, exchange, post
from tests.support.serving import Gate, Process, eventually, metric
from tests.support.streams import STREAM_HEAD, chunk

MEBIBYTE = 1_048_576
BODY = json.dumps({"inputs": ["love"]}).encode().ljust(MEBIBYTE)
CLOSING = post(BODY, b"connection: close")


# With room for four such bodies.
process = served("--max-inflight-bytes", str(4 * MEBIBYTE + 1_000), "--max-body-bytes", "2000000")


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_that_are_held_back_are_bounded_together(process: Process, chunked: bool) -> None:
    """The fifth body gets 429 with the reason; the four before are answered, and free the room."""
    client = process.client
    whole = HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk(BODY) + b"0\r\n\r\n"
    cut = -8 if chunked else -1
    request = whole if chunked else post(BODY)

    def send_whole() -> httpx2.Response:
        headers = {"content-type": "application/json"}
        return client.post("/classify", content=BODY, headers=headers)

    with ExitStack() as stack:
        holding = []
        for number in range(1, 5):
            holding.append(stack.enter_context(connect(process.port, request[:cut])))
            in_flight = number + 1  # and the scrape
            eventually(
                lambda n=in_flight: metric(client, "sentiment_http_requests_in_flight") == n  # type: ignore[misc]
            )
        series = {"model": "tiny", "reason": "inflight_bytes"}
        rejected = metric(client, "sentiment_rejections_total", **series)
        refused = send_whole()
        assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
        assert "4195304" in refused.json()["detail"]
        assert int(refused.headers["retry-after"]) >= 1
        assert metric(client, "sentiment_rejections_total", **series) == rejected + 1
        for connection in holding:
            connection.sendall(request[cut:])
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert send_whole().status_code == 200


def test_a_client_that_leaves_gives_back_what_it_held(process: Process) -> None:
    """When a client leaves, even in the middle of its body, its room is free again."""
    for _ in range(10):
        connect(process.port, post(BODY)[:-1]).close()
    eventually(lambda: exchange(process.port, CLOSING).startswith(b"HTTP/1.1 200 "))


def test_lines_of_streams_take_half_of_it_at_most(process: Process) -> None:
    """Streams hold at most half of the room, because their lines have no deadline."""
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connect(process.port, STREAM_HEAD, chunk(b"a" * MEBIBYTE)))
        time.sleep(0.3)
        assert exchange(process.port, CLOSING).startswith(b"HTTP/1.1 200 ")


def test_a_long_body_is_not_asked_for_without_room_for_its_texts(
    listen: Listen, gate: Gate
) -> None:
    """A long body gets 429 at its head; a short one, which arrives with its head, is read first."""
    port = listen(runners=1, max_queue_tokens=6)
    with ExitStack() as stack:
        gate.close()
        for _ in range(3):
            stack.enter_context(connect(port, post()))
            assert gate.reached.wait(30)
        client = stack.enter_context(httpx2.Client(base_url=f"http://127.0.0.1:{port}"))
        eventually(lambda: metric(client, "sentiment_queue_tokens", model="tiny") == 6)
        head_alone = HEAD + b"content-length: 100000\r\n\r\n"
        connection = stack.enter_context(connect(port, head_alone))
        assert connection.recv(65536).startswith(b"HTTP/1.1 429 ")
        gate.open.set()


@pytest.mark.parametrize(
    ("memory", "limit"), [(2**20, 2 * 2_097_152), (2**30, 2**27), (24 * 2**30, 2**28)]
)
def test_the_default_is_a_share_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, serve: Serve, memory: int, limit: int
) -> None:
    """The default depends on the memory, between two bodies and 256 MiB; /info shows it."""
    monkeypatch.setattr(service, "available_memory", lambda: memory)
    assert serve().get("/info").json()["limits"]["max_inflight_bytes"] == limit


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/memory.max": "1000"}, 1000),
        ({"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/memory.max": "max"}, None),
        (
            {
                "proc/self/cgroup": "4:memory:/a\n3:cpu:/b",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000",
                "sys/fs/cgroup/cpu/memory.limit_in_bytes": "1",
            },
            2000,
        ),
        ({}, None),
    ],
)
def test_the_memory_is_that_of_the_container(
    tmp_path: Path, files: dict[str, str], limit: int | None
) -> None:
    """The memory is the lowest of the machine's and the control groups' limits, version 1 or 2."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert available_memory(tmp_path) == (limit or available_memory(tmp_path / "none"))


@pytest.mark.parametrize(
    ("files", "used"),
    [
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/memory.max": "1000",
                "sys/fs/cgroup/a/memory.current": "700\n",
                "sys/fs/cgroup/a/memory.stat": "anon 400\ninactive_file 200\n",
                "sys/fs/cgroup/a/b/memory.current": "1",
            },
            500,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/a",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "700",
                "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 300\n",
            },
            400,
        ),
        ({"proc/meminfo": "MemTotal: 900 kB\nMemAvailable: 600 kB\n"}, 300 * 1024),
        ({}, 0),
    ],
)
def test_the_memory_in_use_is_that_which_the_limit_is_for(
    tmp_path: Path, files: dict[str, str], used: int
) -> None:
    """Without what the system can drop, as Kubernetes counts it; without a limit, the machine's."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert used_memory(tmp_path) == used
