"""What costs its sender next to nothing and a server with TLS much: it costs the others little."""

import select
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.conftest import FLAGS
from tests.server.test_tls import make_certificate
from tests.support.raw_http import HEAD, HEALTH, port_of
from tests.support.serving import Process

CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
CONTEXT.check_hostname, CONTEXT.verify_mode = False, ssl.CERT_NONE


class Client:
    """A connection with TLS whose records the test cuts itself."""

    def __init__(self, port: int) -> None:
        self.raw = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = CONTEXT.wrap_bio(self._in, self._out)

    def close(self) -> None:
        """Close the connection."""
        self.raw.close()

    def hello(self) -> bytes:
        """What begins the handshake."""
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._out.read()

    def shake_hands(self) -> None:
        """Complete the handshake."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.raw.sendall(self._out.read())
                self._in.write(self.raw.recv(65_536))
            else:
                self.raw.sendall(self._out.read())
                return

    def records(self, data: bytes, size: int) -> bytes:
        """The data encrypted in records of this size."""
        for start in range(0, len(data), size):
            self._tls.write(data[start : start + size])
        return self._out.read()

    def ask(self, data: bytes) -> int:
        """Send a request; the status of its answer."""
        self.raw.sendall(self.records(data, 16_384))
        while True:
            try:
                return int(self._tls.read(65_536).split(b" ")[1])
            except ssl.SSLWantReadError:
                self._in.write(self.raw.recv(65_536))


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
        sent = client.records(head, 16_384) + client.records(b" " * 100_000, 1)
        before, began = process.cpu_seconds(), time.monotonic()
        client.raw.settimeout(60)
        client.raw.sendall(sent)
        assert client.ask(b"") == 422
        took = time.monotonic() - began
    assert took > 4 * (process.cpu_seconds() - before)


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
        kept.raw.sendall(kept.records(HEALTH, 16_384))
        process.signal(signal.SIGCONT)
        assert kept.raw.recv(65_536)
        answered, _, _ = select.select([client.raw for client in clients], [], [], 0)
        assert len(answered) < number / 2
        assert all(client.raw.recv(1) for client in clients)
