"""``--workers``: several processes that are one service to the outside."""

import json
import os
import select
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from sentiment_service.engine.model.bundle import MANIFEST, sha256
from sentiment_service.exported_models import with_bundles
from sentiment_service.settings.sources import load_settings

from benchmarks.service import free_port
from checks.support.load import constant_load
from tests.conftest import FLAGS
from tests.support.exporter import replace_exporter
from tests.support.raw_http import HEALTH, connect, post, read_answer
from tests.support.reloads import ADMIN, release, reload, revision_of
from tests.support.serving import (
    COMMAND,
    Process,
    children_of,
    eventually,
    installed,
    metric,
    runs,
)
from tests.support.tiny_bundle import LABELS, make_bundle, write_manifest

CONNECTIONS = 64


@pytest.fixture(scope="module")
def changing_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that the tests change."""
    return make_bundle(tmp_path_factory.mktemp("changing") / "tiny")


@pytest.fixture(scope="module")
def grpc_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def two(changing_bundle: Path, grpc_port: int) -> Iterator[Process]:
    """A service of two workers that all tests here use."""
    flags = ["--model", str(changing_bundle), *FLAGS, "--admin-keys", "admin-key-1"]
    with Process(*flags, "--workers", "2", "--grpc-port", str(grpc_port)) as process:
        yield process


@pytest.fixture
def client(two: Process) -> httpx2.Client:
    """A client of the two workers, all of which answer when a test begins."""
    eventually(two.are_ready)
    return two.client


def _pids(two: Process) -> list[int]:
    return [worker["pid"] for worker in two.info()["workers"]]


def _answers(two: Process) -> list[Any]:
    """What new connections get for a text: more of them than workers."""
    answers = []
    for _ in range(6):
        with connect(two.port, post()) as connection:
            status, body = read_answer(connection)
        assert status == 200
        answers.append(json.loads(body))
    return answers


def _revisions(two: Process) -> set[str]:
    return {*map(revision_of, _answers(two))}


def _connections(client: httpx2.Client) -> list[int]:
    return [worker["connections"] for worker in client.get("/info").json()["workers"]]


def _spread(process: Process, client: httpx2.Client) -> list[int]:
    """How many of 64 kept connections each worker has."""
    with ExitStack() as stack:
        kept = [stack.enter_context(connect(process.port, HEALTH)) for _ in range(CONNECTIONS)]
        for connection in kept:
            assert read_answer(connection)[0] == 200
        return _counted(client, kept)


def _counted(client: httpx2.Client, kept: Sequence[socket.socket]) -> list[int]:
    """How many connections each worker has, once these and the client's are counted.

    With an answer, a worker that has too many may have ended one.
    """
    eventually(lambda: sum(_connections(client)) == 1 + sum(not _has_answer(one) for one in kept))
    return _connections(client)


def test_connections_that_end_make_room(two: Process, client: httpx2.Client) -> None:
    """The connections of one worker end; then it gets the next ones until both have as many."""
    with ExitStack() as stack:
        kept = [stack.enter_context(connect(two.port, HEALTH)) for _ in range(20)]
        for connection in kept:
            read_answer(connection)
        for connection in kept[::2]:  # dealt in turn, so these are all at one worker
            connection.close()
        kept = kept[1::2]
        _counted(client, kept)
        kept += [stack.enter_context(connect(two.port, HEALTH)) for _ in range(10)]
        for connection in kept[10:]:
            read_answer(connection)
        spread = _counted(client, kept)
    assert max(spread) - min(spread) <= 1


def test_one_service_to_the_outside(two: Process, client: httpx2.Client, grpc_port: int) -> None:
    """Health, /info and gRPC are those of the service; the lines of the log name the worker."""
    assert client.get("/health/ready").status_code == 200
    assert client.get("/health/live").status_code == 200
    pids = _pids(two)
    assert len(set(pids)) == 2
    assert two.pid not in pids
    named = {json.loads(line).get("worker") for line in two.first_lines.splitlines()}
    assert named == {None, 0, 1}
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert health(b"", timeout=10) == b"\x08\x01"  # SERVING


def test_a_reload_reaches_all_workers(
    two: Process, client: httpx2.Client, changing_bundle: Path
) -> None:
    """When POST …/reload has been answered, every worker has the new model; after SIGHUP, soon."""
    release(changing_bundle, "aaaaaaa")
    digest = sha256(changing_bundle / MANIFEST)
    assert reload(client).json() == {"status": "reloaded", "digest": digest}
    assert _revisions(two) == {"aaaaaaa"}
    release(changing_bundle, "bbbbbbb")
    two.signal(signal.SIGHUP)
    eventually(lambda: _revisions(two) == {"bbbbbbb"})


@pytest.fixture
def exported(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A checkpoint, and a cache that has its bundle."""
    checkpoint = tmp_path / "mine"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    (checkpoint / "model.safetensors").touch()

    copy = "import shutil, sys; shutil.copytree({!r}, sys.argv[sys.argv.index('--output') + 1])"
    replace_exporter(tmp_path, copy.format(str(bundle)), monkeypatch)
    paths = {"model": checkpoint, "cache_dir": tmp_path / "cache"}
    with_bundles(load_settings({name: str(path) for name, path in paths.items()}))
    return paths


def _two_of(exported: dict[str, Path]) -> list[str]:
    paths = {"--model": exported["model"], "--cache-dir": exported["cache_dir"]}
    return ["--workers", "2", *(str(word) for pair in paths.items() for word in pair)]


def test_a_cache_that_cannot_be_written_is_enough_to_start(exported: dict[str, Path]) -> None:
    """With the finished export in it, two workers serve, and the first measures for both."""
    for path in (exported["cache_dir"], *exported["cache_dir"].rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    # Without this capability, the modes of files hold for root, too.
    less = [installed("setpriv", "util-linux"), "--bounding-set", "-dac_override"]
    command = [*(less if os.geteuid() == 0 else []), *COMMAND]
    with Process(*_two_of(exported), command=command) as process:
        assert process.are_ready()
        assert "what was measured is not kept" not in process.first_lines


def test_a_worker_serves_what_the_supervisor_has_exported(exported: dict[str, Path]) -> None:
    """A checkpoint that changes while it is served is not exported anew by a replaced worker."""
    checkpoint = exported["model"]
    with Process(*_two_of(exported), *FLAGS) as process:
        eventually(process.are_ready)
        former = min(_pids(process))
        (checkpoint / "config.json").write_text('{"changed": 1}')
        os.kill(former, signal.SIGKILL)
        eventually(lambda: process.are_ready(without=[former]))


def test_a_reload_that_one_worker_cannot_do_is_done_by_none(
    two: Process, client: httpx2.Client, changing_bundle: Path
) -> None:
    """The client gets 422, and the old models stay at all workers."""
    before = _revisions(two)
    manifest = (changing_bundle / "manifest.json").read_text()
    (changing_bundle / "manifest.json").write_text("{}")
    answer = reload(client)
    (changing_bundle / "manifest.json").write_text(manifest)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_bundle")
    assert _revisions(two) == before


def test_a_killed_worker_takes_only_its_own_connections(
    two: Process, client: httpx2.Client
) -> None:
    """kill -9 under load: the other worker's connections go on, and a new worker serves soon."""
    before = _pids(two)
    with ExitStack() as stack:
        kept = [stack.enter_context(connect(two.port, HEALTH)) for _ in range(10)]
        assert all(read_answer(connection)[0] == 200 for connection in kept)
        with constant_load(two.url, [["love"]] * 2, lambda _: "answered") as seen:
            eventually(lambda: seen["answered"] > 50)
            counted = _texts(two)
            os.kill(before[0], signal.SIGKILL)
            alive = [_still_answers(connection) for connection in kept]
            reached = seen["answered"]
            eventually(lambda: seen["answered"] > reached + 50)
    assert sorted(alive) == [False] * 5 + [True] * 5
    assert sum(seen.values()) - seen["answered"] <= 2  # at most once for each client
    eventually(lambda: two.are_ready(without=before[:1]))
    assert two.info()["workers"][0]["restarts"] == 1
    assert "worker 0 was killed (SIGKILL; out of memory?)" in two.log
    assert _texts(two) >= counted  # what the killed worker had counted is not forgotten


def _texts(two: Process) -> float:
    """How many texts have been classified, as a new connection shows it."""
    with httpx2.Client(base_url=two.url) as client:
        return metric(client, "sentiment_texts_total", model="tiny", outcome="ok")


def _still_answers(connection: socket.socket) -> bool:
    try:
        connection.sendall(HEALTH)
        return read_answer(connection)[0] == 200
    except OSError:
        return False


def test_kept_connections_move_to_a_worker_that_was_replaced(two: Process) -> None:
    """They end with an answer that says so, a few a second, until both workers have as many."""
    eventually(two.are_ready)
    killed = _pids(two)[1]
    with ExitStack() as stack:
        clients = [stack.enter_context(httpx2.Client(base_url=two.url)) for _ in range(20)]

        def spread() -> list[int]:
            for client in clients:
                with suppress(httpx2.TransportError):  # of the worker that was killed
                    assert client.post("/classify", json={"inputs": "love"}).status_code == 200
            return sorted(_connections(clients[0]))

        spread()
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: spread()[-1] == len(clients))
        eventually(lambda: two.are_ready(without=[killed]))
        eventually(lambda: spread()[0] > len(clients) // 3)


def test_a_stopped_worker_gets_no_connections(two: Process, client: httpx2.Client) -> None:
    """While a worker is stopped (SIGSTOP), new connections go to the other one; later to both.

    The other one says so.
    """
    pid = _pids(two)[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: all(_answers_soon(two) for _ in range(6)))
        eventually(lambda: _stages(two) == ["ready", "silent"])
    finally:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: max(spread := _spread(two, client)) - min(spread) <= 1)


def _stages(two: Process) -> list[str]:
    workers = httpx2.get(f"{two.url}/info").json()["workers"]  # over a new connection
    return [worker["stage"] for worker in workers]


def _answers_soon(two: Process) -> bool:
    with connect(two.port, HEALTH) as connection:
        connection.settimeout(0.5)
        try:
            return read_answer(connection)[0] == 200
        except TimeoutError:
            return False


def test_a_connection_that_a_worker_closes_ends(two: Process) -> None:
    """The supervisor, which has dealt it, does not keep it open."""
    closing = HEALTH.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    for _ in range(4):
        with connect(two.port, closing) as connection:
            assert read_answer(connection)[0] == 200
            assert connection.recv(1) == b""


@pytest.mark.parametrize("dies", [True, False])
def test_what_a_worker_had_not_taken_is_dealt_again(
    two: Process, client: httpx2.Client, dies: bool
) -> None:
    """Connections that wait for a worker that dies or hangs are answered by the other one."""
    pid = _pids(two)[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        with ExitStack() as stack:
            # Each worker gets half of them.
            waiting = [stack.enter_context(connect(two.port, HEALTH)) for _ in range(6)]
            if dies:
                eventually(lambda: sum(map(_has_answer, waiting)) >= 3)
                os.kill(pid, signal.SIGKILL)
            assert [read_answer(connection)[0] for connection in waiting] == [200] * 6
            assert dies or runs(pid)  # it would be killed after 30 s
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    eventually(lambda: two.are_ready(without=[pid] if dies else []))
    eventually(lambda: max(spread := _spread(two, client)) - min(spread) <= 1)


def _has_answer(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def test_a_worker_that_gets_sigterm_alone_is_replaced(two: Process) -> None:
    """It finishes its requests, no new connection is lost, and a new worker takes its place."""
    before = _pids(two)[1]
    with constant_load(two.url, [["love"]] * 2, lambda _: "answered") as seen:
        eventually(lambda: seen["answered"] > 50)
        os.kill(before, signal.SIGTERM)
        eventually(lambda: two.are_ready(without=[before]))
    assert set(seen) <= {"answered", 503}  # 503: shutting_down, on a connection that it had


def test_workers_never_stay_mixed(
    two: Process, client: httpx2.Client, changing_bundle: Path
) -> None:
    """A new worker has loaded a changed bundle; then all workers load it."""
    release(changing_bundle, "ccccccc")
    before = _pids(two)[0]
    os.kill(before, signal.SIGKILL)
    eventually(lambda: two.are_ready(without=[before]))
    eventually(lambda: _revisions(two) == {"ccccccc"})


def _digests(service: Process) -> set[str]:
    """Those of the models of all workers: more connections than workers."""
    told = (httpx2.get(f"{service.url}/models").json()["models"] for _ in range(6))
    return {f"{model['name']} {model['digest']}" for models in told for model in models}


def _promote(service: Process) -> httpx2.Response:
    return httpx2.post(f"{service.url}/models/tiny/promote", headers=ADMIN, timeout=30)


@pytest.mark.parametrize("named", [False, True])
def test_all_workers_promote_or_none(tmp_path: Path, named: bool) -> None:
    """Texts of all workers are counted together; a worker that is replaced serves the candidate.

    A candidate that has changed is refused by all. With a second model, which stays as it is.
    """
    bundle, other = (make_bundle(tmp_path / name, name=name) for name in ("tiny", "other"))
    candidate = make_bundle(tmp_path / "next", labels=LABELS[::-1], name="next")
    names = ("--served-name", "tiny", "--served-name", "second") if named else ()
    second = f"{'second' if named else 'other'} {sha256(other / MANIFEST)}"
    flags = ["--model", str(bundle), "--model", str(other), *names, *FLAGS, "--workers", "2"]
    flags += ["--shadow", str(candidate), "--shadow-share", "1", "--admin-keys", "admin-key-1"]
    with Process(*flags) as service:
        before = {f"tiny {sha256(bundle / MANIFEST)}", second}
        for _ in range(8):
            with connect(service.port, post()) as connection:
                assert read_answer(connection)[0] == 200
        eventually(lambda: service.info()["shadow"]["texts"] == 8)
        eventually(lambda: all(len(children_of(one)) == 1 for one in service.children()))

        manifest = (candidate / MANIFEST).read_bytes()
        write_manifest(candidate, labels=LABELS[::-1], max_tokens=15)
        assert _promote(service).json()["code"] == "invalid_bundle"
        (candidate / MANIFEST).write_bytes(manifest)
        assert _digests(service) == before

        after = {f"tiny {sha256(candidate / MANIFEST)}", second}
        assert _promote(service).status_code == 200
        assert _digests(service) == after
        assert _promote(service).json()["code"] == "not_found"

        former = min(service.children())
        os.kill(former, signal.SIGKILL)
        eventually(lambda: service.are_ready(without=[former]))
        assert _digests(service) == after
        assert "different models" not in service.terminate()
