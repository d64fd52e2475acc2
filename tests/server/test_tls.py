"""HTTPS and gRPC with the service's own certificate, with the clients that people use; floods."""

import select
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import grpc
import pytest
from sentiment_service.cli import health_check
from sentiment_service.settings.credentials import Credentials
from sentiment_service.settings.sources import load_settings, read_credentials

from benchmarks.service import free_port
from checks.support import tls as clients
from checks.support.tls import Client, KeyUpdater
from tests.conftest import FLAGS, Start
from tests.support.raw_http import HEAD, HEALTH, port_of
from tests.support.serving import Process, eventually, installed, run_program

LIVE = "/inference.GRPCInferenceService/ServerLive"
LAST = HEALTH[:-2] + b"connection: close\r\n\r\n"


def make_certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate of its own authority for this host, and its key."""
    return clients.make_certificate(directory, name, installed("openssl", "openssl"))


def _curl(process: Process, authority: Path, *words: str) -> subprocess.CompletedProcess[str]:
    curl = installed("curl", "curl")
    url = f"https://127.0.0.1:{port_of(process.url)}/classify"
    return run_program(curl, "-sS", "--cacert", authority, *words, url)


def _call(port: int, authority: Path) -> bytes:
    credentials = grpc.ssl_channel_credentials(authority.read_bytes())
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        answer: bytes = channel.unary_unary(LIVE)(b"", timeout=20, wait_for_ready=False)
        return answer


@pytest.mark.parametrize("workers", [1, 2])
def test_http_and_grpc_have_the_certificate_and_take_a_new_one(
    start: Start, tmp_path: Path, workers: int
) -> None:
    """curl and gRPC trust it by its authority. After SIGHUP, new connections have the new one.

    A certificate that does not fit its key changes nothing.
    """
    old, new = make_certificate(tmp_path, "old"), make_certificate(tmp_path, "new")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(old[0].read_bytes())
    key.write_bytes(old[1].read_bytes())
    port = free_port()
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key), "--grpc-port", str(port))
    process = start(*tls, "--workers", str(workers))
    assert process.url.startswith("https://")
    asked = ("--json", '{"inputs": ["love", "worst"]}')
    assert '"results":[{"label":"positive"' in _curl(process, old[0], *asked).stdout
    assert _curl(process, new[0], *asked).returncode == 60  # it does not trust the certificate
    assert _call(port, old[0])

    certificate.write_bytes(new[0].read_bytes())
    process.signal(signal.SIGHUP)
    process.read_until(f"stay as they are: --tls-cert {certificate}: certificate and key cannot")
    assert "positive" in _curl(process, old[0], *asked).stdout
    key.write_bytes(new[1].read_bytes())
    process.signal(signal.SIGHUP)
    eventually(lambda: all("positive" in _curl(process, new[0], *asked).stdout for _ in range(3)))
    assert _curl(process, old[0], *asked).returncode == 60
    assert _call(port, new[0])


def test_metrics_say_when_the_certificate_expires(tmp_path: Path) -> None:
    """The first in its file that does, also beyond 2049, where years have four digits; or 0."""
    certificate, key = make_certificate(tmp_path, "ours")
    last = tmp_path / "last.crt"
    openssl, asked = installed("openssl", "openssl"), ("x509", "-noout", "-enddate", "-in")
    run_program(
        openssl, *("x509", "-in", certificate, "-signkey", key, "-days", "20000", "-out", last)
    )
    ends = []
    for path in (certificate, last):
        date = run_program(openssl, *asked, path).stdout.partition("=")[2].strip()
        ends.append(ssl.cert_time_to_seconds(date))
        read = Credentials((), (), path.read_bytes(), None)
        assert read.certificate_expires == ends[-1]
    assert ends[0] < ends[1]
    assert Credentials((), (), None, None).certificate_expires == 0
    certificate.write_bytes(last.read_bytes() + certificate.read_bytes())
    chain = Credentials((), (), certificate.read_bytes(), None)
    assert chain.certificate_expires == ends[0]


def test_a_client_without_tls_disturbs_nobody(start: Start, tmp_path: Path) -> None:
    """Plain HTTP, and a client that never begins the handshake, get nothing and delay no end.

    A long body that is refused, over TLS, is still answered.
    """
    certificate, key = make_certificate(tmp_path, "ours")
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
    process = start(*tls, "--max-body-bytes", "1000", "--drain-ms", "3000")
    port = port_of(process.url)
    assert run_program("curl", "-sS", f"http://127.0.0.1:{port}/health").returncode != 0
    long = tmp_path / "body"
    long.write_text("x" * 3_000_000, encoding="utf-8")
    sent = ("--data-binary", f"@{long}", "-H", "content-type: application/json")
    assert "payload_too_large" in _curl(process, certificate, *sent).stdout
    with socket.create_connection(("127.0.0.1", port)):
        assert "drain-ms was over" not in process.terminate()


def test_the_port_of_the_metrics_has_no_tls(start: Start, tmp_path: Path) -> None:
    """Prometheus reads it as before; the health check of the image follows the setting."""
    certificate, key = make_certificate(tmp_path, "ours")
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
    metrics = free_port()
    process = start(*tls, "--metrics-port", str(metrics))
    scraped = run_program("curl", "-sS", f"http://127.0.0.1:{metrics}/metrics").stdout
    assert "sentiment_model_ready" in scraped
    words = ["sentiment", "serve", "--port", str(port_of(process.url)), *tls]
    (tmp_path / "cmdline").write_text("\0".join(words) + "\0", encoding="utf-8")
    assert health_check.main(tmp_path / "cmdline") == 0


def test_wrong_files_end_the_start(tmp_path: Path) -> None:
    """The error says what is wrong: no file, another's key, no certificate."""
    certificate, key = make_certificate(tmp_path, "ours")
    other = make_certificate(tmp_path, "other")[1]
    for cert_file, key_file, words in (
        (certificate, tmp_path / "none", "No such file"),
        (certificate, other, "belong together"),
        (key, key, "must be PEM"),
    ):
        flags = {"tls_cert": str(cert_file), "tls_key": str(key_file)}
        with pytest.raises(ValueError, match=words):
            read_credentials(load_settings(flags), flags)


# What costs its sender next to nothing and a server with TLS much: it costs the others little


@pytest.fixture(scope="module")
def process(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A real server with TLS that asks for a key."""
    certificate, key = make_certificate(tmp_path_factory.mktemp("tls"), "floods")
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with Process("--model", str(bundle), *FLAGS, *tls, "--api-keys", "a-key-of-a-client") as it:
        yield it


def _client(process: Process) -> Client:
    client = Client(port_of(process.url))
    client.shake_hands()
    return client


def test_tiny_records_get_a_part_of_the_time(process: Process) -> None:
    """A body in records of one byte is read at the rate of the service, not of its sender."""
    head = HEAD + b"authorization: Bearer a-key-of-a-client\r\ncontent-length: 100000\r\n\r\n"
    with closing(_client(process)) as client:
        sent = client.records(head) + client.records(b" " * 100_000, 1)
        before, began = process.cpu_seconds(), time.monotonic()
        client.raw.settimeout(60)
        client.raw.sendall(sent)
        assert client.ask(b"") == 422
        took = time.monotonic() - began
    assert took > 4 * (process.cpu_seconds() - before)


def test_key_updates_get_a_part_of_the_time(process: Process) -> None:
    """Each costs the server a change of its own keys, too; the request behind them is answered."""
    with closing(KeyUpdater(port_of(process.url))) as client:
        sent = client.updates(10_000) + client.records(LAST)
        before, began = process.cpu_seconds(), time.monotonic()
        client.raw.settimeout(60)
        client.raw.sendall(sent)
        while client.raw.recv(65_536):
            pass
        took, spent = time.monotonic() - began, process.cpu_seconds() - before
    assert spent > 0.05  # they were read
    assert took > 4 * spent


def test_kept_connections_take_little_memory(process: Process) -> None:
    """Hundreds of idle connections that have sent 30 kB take some kilobytes each."""
    number = 200
    long = HEALTH[:-2] + b"x: %b\r\n\r\n" % (b"a" * 30_000)
    with ExitStack() as stack:

        def open_all(count: int) -> None:
            for _ in range(count):
                client = stack.enter_context(closing(_client(process)))
                assert client.ask(long) == 200

        open_all(50)
        before = process.memory_bytes()
        open_all(number)
        assert process.memory_bytes() - before < number * 120_000


def test_handshakes_take_turns(process: Process) -> None:
    """When hundreds begin at once, a kept connection is answered before most of them."""
    number, port = 400, port_of(process.url)
    with ExitStack() as stack:
        kept = stack.enter_context(closing(_client(process)))
        clients = [stack.enter_context(closing(Client(port))) for _ in range(number)]
        hellos = [client.hello() for client in clients]
        for _ in range(20):  # meanwhile, all are accepted
            assert kept.ask(HEALTH) == 200
        process.signal(signal.SIGSTOP)
        for client, hello in zip(clients, hellos, strict=True):
            client.raw.sendall(hello)
        kept.raw.sendall(kept.records(HEALTH))
        process.signal(signal.SIGCONT)
        assert kept.raw.recv(65_536)
        answered, _, _ = select.select([client.raw for client in clients], [], [], 0)
        assert len(answered) < number / 2
        assert all(client.raw.recv(1) for client in clients)
