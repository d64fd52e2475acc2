"""Many clients that misbehave at once: other clients are answered, and memory is bounded."""

import resource
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import pytest

from benchmarks.service import free_port
from tests.conftest import Start
from tests.support.raw_http import HEAD, HEALTH, connect
from tests.support.serving import COMMAND, Process, eventually, metric

IDLE = 5_000
MB = 1_000_000
BODY_BYTES = MB // 2
HELD_BACK = 400  # clients
FILES = 128  # that a process may open; some forty are open when it serves
SCRAPE = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"


def _answers(process: Process) -> bool:
    """Whether a request on a new connection is answered."""
    answer = httpx2.post(f"{process.url}/classify", json={"inputs": "love"}, timeout=30)
    label: str = answer.json()["results"][0]["label"]
    return label == "positive"


def test_thousands_of_idle_connections_hold_up_nobody(start: Start) -> None:
    """Each takes some kilobytes; other clients are answered, and the process ends normally."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(IDLE, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for our ends
    try:
        process = start()
        before = process.memory_bytes()
        with ExitStack() as stack:
            for number in range(count):
                sent = HEALTH if number % 2 else b""
                stack.enter_context(connect(process.port, sent, buffer_bytes=4_096))
            open_files = Path(f"/proc/{process.pid}/fd")
            eventually(lambda: len(list(open_files.iterdir())) > count)
            assert _answers(process)
            assert process.memory_bytes() < before + count * 40_000
            process.terminate()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_memory_of_bodies_held_back_is_returned(start: Start) -> None:
    """Hundreds of clients hold back the end of a long body and leave; no memory stays taken."""
    process = start("--max-inflight-bytes", str(HELD_BACK * BODY_BYTES))
    assert _answers(process)
    before = process.memory_bytes()
    request = HEAD + b"content-length: %d\r\n\r\n" % BODY_BYTES + b"a" * (BODY_BYTES - 1)
    with ExitStack() as stack:
        for _ in range(HELD_BACK):
            stack.enter_context(connect(process.port, request))
        eventually(lambda: process.memory_bytes() > before + 100 * MB)
    eventually(lambda: process.memory_bytes() < before + 80 * MB)
    assert _answers(process)


def test_after_file_descriptors_ran_out_it_serves_on(start: Start) -> None:
    """Connected clients are answered meanwhile; new ones are, once connections have closed."""
    process = start(command=["bash", "-c", f'ulimit -n {FILES}; exec "$@"', "-", *COMMAND])
    assert process.client.get("/health/ready").status_code == 200
    with ExitStack() as stack:
        for _ in range(FILES):
            stack.enter_context(connect(process.port))
        eventually(lambda: not _is_answered(process))
        assert process.client.post("/classify", json={"inputs": "love"}).status_code == 200
        assert process.client.get("/health/live").status_code == 200
        # What the alert SentimentOpenFiles compares.
        assert metric(process.client, "process_max_fds") == FILES
        assert metric(process.client, "process_open_fds") == FILES
    eventually(lambda: _is_answered(process))
    assert _answers(process)


def _is_answered(process: Process) -> bool:
    """Whether a new client is answered within a second."""
    with suppress(httpx2.HTTPError):
        return httpx2.get(f"{process.url}/health/live", timeout=1).status_code == 200
    return False


@pytest.mark.parametrize("own_port", [False, True], ids=["same port", "metrics port"])
def test_scrapers_that_hang_hold_up_nobody(start: Start, own_port: bool) -> None:
    """Scrapers hang during request or answer; other scrapes are answered, and the process ends."""
    port = free_port()
    process = start("--drain-ms", "500", *(["--metrics-port", str(port)] if own_port else []))
    metrics = port if own_port else process.port
    with ExitStack() as stack:
        for part in (b"", SCRAPE[:10], SCRAPE):
            for _ in range(3):
                stack.enter_context(connect(metrics, part, buffer_bytes=4_096))
        scraped = httpx2.get(f"http://127.0.0.1:{metrics}/metrics", timeout=30).text
        assert 'sentiment_model_ready{model="tiny"} 1.0' in scraped
        assert _answers(process)
        process.terminate()
