"""HTTPS and gRPC with the service's own certificate, with the clients that people use."""

import signal
import socket
import subprocess
from pathlib import Path

import grpc
import pytest
from sentiment_service.cli import health_check
from sentiment_service.settings.sources import load_settings, read_credentials

from benchmarks.service import free_port
from checks.support import tls as clients
from tests.conftest import Start
from tests.support.raw_http import port_of
from tests.support.serving import Process, eventually, installed, run_program

LIVE = "/inference.GRPCInferenceService/ServerLive"


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
    process.read_until("stay as they are: certificate and key cannot be used")
    assert "positive" in _curl(process, old[0], *asked).stdout
    key.write_bytes(new[1].read_bytes())
    process.signal(signal.SIGHUP)
    eventually(lambda: all("positive" in _curl(process, new[0], *asked).stdout for _ in range(3)))
    assert _curl(process, old[0], *asked).returncode == 60
    assert _call(port, new[0])


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
    """The error says what is missing or wrong: one of two files, no file, another's key."""
    certificate, key = make_certificate(tmp_path, "ours")
    other = make_certificate(tmp_path, "other")[1]
    for cert_file, key_file, words in (
        (certificate, None, "need each other"),
        (None, key, "need each other"),
        (certificate, tmp_path / "none", "No such file"),
        (certificate, other, "belong together"),
        (key, key, "must be PEM"),
    ):
        given = {"tls_cert": cert_file, "tls_key": key_file}
        flags = {name: str(path) for name, path in given.items() if path}
        with pytest.raises(ValueError, match=words):
            read_credentials(load_settings(flags), flags)
