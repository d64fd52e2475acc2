"""Clients of TLS that cut their records themselves, and a certificate for their server."""

import ctypes
import socket
import ssl
import struct
import subprocess
from pathlib import Path

CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
CONTEXT.check_hostname, CONTEXT.verify_mode = False, ssl.CERT_NONE
RECORD_BYTES = 16_384
UPDATE_REQUESTED = 1  # SSL_KEY_UPDATE_REQUESTED


def make_certificate(directory: Path, name: str, openssl: str = "openssl") -> tuple[Path, Path]:
    """A certificate of its own authority for this host, and its key."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-nodes", "-days", "2"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


class Client:
    """A connection whose handshake and records are sent as its user likes."""

    def __init__(self, port: int) -> None:
        self.raw = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = CONTEXT.wrap_bio(self._in, self._out)

    def close(self) -> None:
        self.raw.close()

    def hello(self) -> bytes:
        """What begins the handshake."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return self._out.read()
        raise AssertionError("the handshake was complete already")

    def shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.raw.sendall(self._out.read())
                self._in.write(self._received())
            else:
                self.raw.sendall(self._out.read())
                return

    def records(self, data: bytes, size: int = RECORD_BYTES) -> bytes:
        for start in range(0, len(data), size):
            self._tls.write(data[start : start + size])
        return self._out.read()

    def ask(self, data: bytes) -> int:
        """Send a request; the status of its answer."""
        self.raw.sendall(self.records(data))
        while True:
            try:
                return int(self._tls.read(65_536).split(b" ")[1])
            except ssl.SSLWantReadError:
                self._in.write(self._received())

    def _received(self) -> bytes:
        if data := self.raw.recv(65_536):
            return data
        raise ConnectionResetError("the server has closed the connection")


class _Pointer(ctypes.c_void_p):
    """Of OpenSSL; ctypes makes no int of it, which would lose its upper half."""


class KeyUpdater:
    """A connection that can update its keys, for which Python's ``ssl`` has no call."""

    def __init__(self, port: int) -> None:
        self._lib = lib = ctypes.CDLL("libssl.so.3")
        for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new", "BIO_s_mem", "BIO_new"):
            getattr(lib, name).restype = _Pointer
        self.raw = socket.create_connection(("127.0.0.1", port))
        # OpenSSL reads from the descriptor itself, which knows nothing of Python's time limit.
        self.raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 30, 0))
        self._context = lib.SSL_CTX_new(lib.TLS_client_method())
        self._tls = lib.SSL_new(self._context)
        lib.SSL_set_fd(self._tls, self.raw.fileno())
        if lib.SSL_connect(self._tls) != 1:
            self.close()
            raise ConnectionResetError("the server has ended the handshake")
        self._out = lib.BIO_new(lib.BIO_s_mem())
        lib.SSL_set0_wbio(self._tls, self._out)
        self.raw.settimeout(30)

    def close(self) -> None:
        self._lib.SSL_free(self._tls)
        self._lib.SSL_CTX_free(self._context)
        self.raw.close()

    def updates(self, number: int) -> bytes:
        for _ in range(number):
            self._lib.SSL_key_update(self._tls, UPDATE_REQUESTED)
            self._lib.SSL_do_handshake(self._tls)
        return self._written(64 * number)

    def records(self, data: bytes) -> bytes:
        self._lib.SSL_write(self._tls, data, len(data))
        return self._written(len(data) + 1_000)

    def _written(self, most: int) -> bytes:
        written = ctypes.create_string_buffer(most)
        length = self._lib.BIO_read(self._out, written, most)
        return written.raw[:length]
