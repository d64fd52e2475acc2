"""The Python client under variables that name proxies and certificates."""

import asyncio
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from sentiment_client import AsyncClient, Client, ConnectionFailed

from benchmarks.service import free_port
from tests.support.http_server import Answer, listening
from tests.support.raw_http import port_of

Models = Callable[[str], int]
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
MODEL = {"name": "m", "revision": None, "precision": "fp32", "labels": ["a", "b"]}
# It refuses connections.
DEAD = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """A server or proxy that answers each request with a list of models; the lines that it got."""
    seen: list[str] = []

    def answer(request: BaseHTTPRequestHandler, _: bytes) -> Answer:
        seen.append(request.requestline)
        return 200, {}, json.dumps({"models": [MODEL]}).encode()

    with listening(answer) as url:
        yield url, seen


def _sync(url: str) -> int:
    with Client(url, timeout_s=1.0) as client:
        return len(client.models())


def _async(url: str) -> int:
    async def call() -> int:
        async with AsyncClient(url, timeout_s=1.0) as client:
            return len(await client.models())

    return asyncio.run(call())


@pytest.fixture(params=[_sync, _async])
def models(request: pytest.FixtureRequest) -> Models:
    """The number of models that each of the clients sees at a URL."""
    asked: Models = request.param
    return asked


@pytest.mark.parametrize(
    "variables",
    [
        *({"ALL_PROXY": f"{scheme}://127.0.0.1:9/"} for scheme in ("socks", "socks4", "socks5")),
        {"all_proxy": "socks5h://127.0.0.1:9", "no_proxy": "localhost"},
        *({name: DEAD} for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY")),
        {"HTTP_PROXY": "127.0.0.1:9"},
        {"HTTP_PROXY": "no proxy at all"},
        {"HTTP_PROXY": DEAD, "NO_PROXY": "localhost,127.0.0.1,::1,[::1]"},
        *({"NO_PROXY": network} for network in ("fd07:b51a:cc66:f0::/64", "fe80::/10", "[::1]")),
        {"SSL_CERT_FILE": "/nonexistent/ca.pem"},
        {"SSL_CERT_DIR": "/nonexistent"},
    ],
    ids=str,
)
def test_this_machine_is_reached(
    server: tuple[str, list[str]],
    models: Models,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
) -> None:
    """Whatever the variables say of proxies and certificates: loopback needs none of them."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    url, _ = server
    assert models(url) == 1
    assert models(url.replace("127.0.0.1", "localhost")) == 1


@pytest.mark.parametrize(
    ("name", "value", "url"),
    [
        ("ALL_PROXY", "socks://127.0.0.1:9/", "http://192.0.2.1"),
        ("all_proxy", "socks5://user:secret@127.0.0.1:9", "http://192.0.2.1"),
        ("HTTPS_PROXY", "ftp://127.0.0.1:9", "https://sentiment.test"),
        ("HTTP_PROXY", "http://[::1", "http://sentiment.test"),
        ("SSL_CERT_FILE", "/nonexistent/ca.pem", "https://sentiment.test"),
        ("SSL_CERT_FILE", __file__, "https://sentiment.test"),
        ("SSL_CERT_FILE", str(Path(__file__).parent), "https://sentiment.test"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(
    models: Models, monkeypatch: pytest.MonkeyPatch, name: str, value: str, url: str
) -> None:
    """The error is a ValueError in one line, without the password that may be in the value."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"in {name} cannot be used: ") as raised:
        models(url)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_dead_proxy_is_named(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service may well be there: what cannot be reached is the proxy."""
    monkeypatch.setenv("https_proxy", f"http://user:secret@127.0.0.1:{free_port()}")
    said = "cannot reach https://sentiment.test/ through the proxy in https_proxy"
    with pytest.raises(ConnectionFailed, match=said) as raised:
        models("https://sentiment.test")
    assert "secret" not in str(raised.value)


def test_a_proxy_is_used_for_other_machines(
    server: tuple[str, list[str]], models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is written without a scheme; a broken one for another scheme is no matter."""
    proxy, seen = server
    monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{port_of(proxy)}")
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "other.test,fd07:b51a:cc66:f0::/64")
    assert models("http://sentiment.test:8000") == 1
    assert seen == ["GET http://sentiment.test:8000/models HTTP/1.1"]


@pytest.mark.parametrize(
    ("no_proxy", "url"),
    [
        ("192.0.2.0/24", "http://192.0.2.1:9"),
        ("x, 192.0.2.1 ,y", "http://192.0.2.1:9"),
        ("[2001:db8::]/32", "http://[2001:db8::1]:9"),
        ("2001:db8::1", "http://[2001:db8::1]:9"),
        (".test", "http://sentiment.test:9"),
        ("sentiment.test:9", "http://sentiment.test:9"),
        ("*", "http://sentiment.test:9"),
    ],
)
def test_no_proxy_names_hosts_and_networks(
    models: Models, monkeypatch: pytest.MonkeyPatch, no_proxy: str, url: str
) -> None:
    """They are reached directly; here nobody answers, and no proxy is to blame."""
    monkeypatch.setenv("HTTP_PROXY", DEAD)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    with pytest.raises(ConnectionFailed) as raised:
        models(url)
    assert "proxy" not in str(raised.value)
