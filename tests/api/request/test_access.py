"""Who may use the service, and how often: keys, rates, origins, and what can be switched off."""

import json
import socket
from types import SimpleNamespace

import httpx2
import pytest
from sentiment_service.cli.command import main
from sentiment_service.errors import RateLimited
from sentiment_service.requests import limits as access
from sentiment_service.settings.credentials import Credentials
from sentiment_service.settings.settings import Settings
from sentiment_service.settings.sources import load_settings
from sentiment_service.shared_memory import Board, HitLimit

from tests.conftest import Serve, Start
from tests.support.serving import metric

KEYS = "first-key-1,second-key-2"


def test_each_key_opens_and_no_other(serve: Serve) -> None:
    """Several keys are valid at once, so that an operator can replace one."""
    client = serve(api_keys=KEYS)
    for key, status in [
        ("first-key-1", 200),
        ("second-key-2", 200),
        ("first-key-", 401),
        ("first-key-12", 401),
        (KEYS, 401),
        (Settings(api_keys=KEYS).api_keys[0].decode(), 401),  # type: ignore[arg-type] # its digest
    ]:
        answer = client.get("/info", headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == status, key


def test_keys_show_nowhere(start: Start) -> None:
    """A key appears neither in the settings' repr, nor in the log, nor in an answer."""
    assert "first-key" not in repr(Settings(api_keys=KEYS))  # type: ignore[arg-type]
    process = start("--api-keys", KEYS, "--log-level", "debug")
    told, wrong = (
        process.client.get("/info", headers={"authorization": f"Bearer {key}"})
        for key in ("first-key-1", "wrong-key-9")
    )
    assert (told.status_code, wrong.status_code) == (200, 401)
    log = process.client.get("/metrics").text + process.first_lines + process.terminate()
    assert "-key-" not in told.text + wrong.text + log


@pytest.mark.parametrize(
    "keys", ["short", "with space-in-it", "é-is-not-ascii", "okay-key-1,bad", ","]
)
def test_a_key_nobody_could_send_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], keys: str
) -> None:
    """An invalid key is wrong usage; the message names the setting and not the key."""
    monkeypatch.setenv("SENTIMENT_API_KEYS", keys)
    assert main(["serve"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"].startswith("SENTIMENT_API_KEYS: ")
    assert keys == "," or keys not in line


@pytest.mark.parametrize(
    ("workers", "host", "keys", "warned"),
    [
        ("1", "0.0.0.0", (), True),  # noqa: S104
        ("2", "0.0.0.0", (), True),  # noqa: S104
        ("1", "0.0.0.0", ("--api-keys", KEYS), False),  # noqa: S104
        ("1", "localhost", (), False),
    ],
)
def test_the_log_says_that_everyone_may_send(
    start: Start, host: str, keys: tuple[str, ...], workers: str, *, warned: bool
) -> None:
    """Without keys, and where other machines can connect, a warning says so."""
    process = start("--host", host, "--workers", workers, *keys)
    assert ("may send requests: there are no API keys" in process.terminate()) == warned


def test_a_key_may_ask_as_often_as_its_rate_says(serve: Serve) -> None:
    """Beyond its rate, a key gets 429 with the time to wait; other keys and open routes go on."""
    client = serve(api_keys=KEYS, rate_limit="3/hour")

    def ask(key: str) -> httpx2.Response:
        headers = {"authorization": f"Bearer {key}"}
        return client.post("/classify", json={"inputs": "love"}, headers=headers)

    assert [ask("first-key-1").status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = ask("first-key-1")
    assert refused.json()["code"] == "rate_limited"
    assert 3_000 < int(refused.headers["retry-after"]) <= 3_600
    assert ask("second-key-2").status_code == 200
    assert client.get("/health").status_code == 200
    labels = {"route": "/classify", "method": "POST", "status": "429"}
    assert metric(client, "sentiment_http_requests_total", **labels) == 2


@pytest.mark.parametrize("keys", [{}, {"api_keys": KEYS}])
@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/metrics"])
def test_the_rate_limit_holds_for_open_pages(serve: Serve, keys: dict[str, str], path: str) -> None:
    """Pages that need no key count for their address; health is answered all the same."""
    client = serve(rate_limit="2/minute", **keys)
    assert [client.get(path).status_code for _ in range(3)] == [200, 200, 429]
    for probe in ("/health", "/health/live", "/v2/health/ready", "/ping"):
        assert client.get(probe).status_code == 200, probe


@pytest.mark.parametrize("keys", [{}, {"api_keys": KEYS}])
@pytest.mark.parametrize(
    "path", ["/web/page.js", "/web/icon.svg", "/docs/docs.js", "/docs/swagger-ui/swagger-ui.css"]
)
def test_the_files_of_pages_do_not_count(serve: Serve, keys: dict[str, str], path: str) -> None:
    """A page has many files, so reading them needs no key and has no limit; the page itself has."""
    client = serve(rate_limit="1/minute", **keys)
    assert [client.get(path).status_code for _ in range(3)] == [200, 200, 200]
    assert [client.get("/").status_code for _ in range(2)] == [200, 429]
    assert [client.get(path).status_code, client.head(path).status_code] == [200, 200]
    assert client.post(path).status_code == (401 if keys else 429)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/models"), ("POST", "/models/tiny/reload")], ids=["key", "admin"]
)
def test_wrong_keys_lock_nobody_out(serve: Serve, method: str, path: str) -> None:
    """However many wrong keys an address has sent, a right key opens, used before or not."""
    client = serve(api_keys=KEYS, admin_keys=KEYS)

    def ask(key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        return client.request(method, path, headers=headers).status_code

    assert {ask(f"wrong-key-{number}") for number in range(150)} == {401}
    assert ask("second-key-2") == 200


def test_an_ipv6_network_is_one_client() -> None:
    """Whoever has a network of 64 bits has one rate limit, not one for each address."""
    settings = Settings(rate_limit="1/minute")
    limits = access.Access(settings, access.Paths(), Board.alone(), Credentials.read(settings))

    def passes(address: str) -> bool:
        asked = SimpleNamespace(verb="POST", path="/classify", headers={}, client=address)
        try:
            limits.check(asked)
        except RateLimited:
            return False
        return True

    addresses = ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1", "fe80::1%eth0", "10.0.0.1"]
    assert [passes(address) for address in addresses] == [True, False, True, True, True]
    assert not passes("10.0.0.1")


def test_the_keys_seen_least_recently_are_forgotten() -> None:
    """Any number of addresses takes bounded memory; those seen last are still limited."""
    limit = HitLimit(1, 60, Board.alone().parts("hits"), keys=3)
    assert not any(limit.hit(key) for key in "abcd")
    assert limit.hit("d") > 0
    assert limit.hit("a") == 0


def test_several_origins_may_be_allowed(serve: Serve) -> None:
    """Each of the listed origins may read answers."""
    origins = ["https://example.org", "https://example.com"]
    client = serve(cors_origins=", ".join(origins))
    for origin in origins:
        answer = client.get("/health", headers={"origin": origin})
        assert answer.headers["access-control-allow-origin"] == origin


def test_refusals_are_counted_by_route(serve: Serve) -> None:
    """By the template of the path; one with an encoded line end or NUL has no route."""
    client = serve(api_keys=KEYS)
    key = {"authorization": "Bearer first-key-1"}
    client.get("/info%00", headers=key)
    client.post("/classify%0a", json={"inputs": "love"}, headers=key)
    client.post("/v2/models/any/infer")
    client.get("/info")
    client.post("/v1/models/any:predict", json={"instances": ["love"]}, headers=key)
    for route, method, status in (
        ("/v2/models/{name}/infer", "POST", "401"),
        ("/info", "GET", "401"),
        ("/v1/models/{name}:predict", "POST", "404"),
        ("unmatched", "GET", "404"),
        ("unmatched", "POST", "404"),
    ):
        labels = {"route": route, "method": method, "status": status}
        assert metric(client, "sentiment_http_requests_total", **labels) == 1


def test_without_docs_nothing_leads_there(serve: Serve) -> None:
    """With docs off, neither the page nor an error mentions /docs, and its files are not served."""
    for docs in ("on", "off"):
        client = serve(docs=docs)
        page = client.get("/", headers={"accept": "text/html"})
        assert "content-security-policy" in page.headers
        assert ('href="docs"' in page.text) == (docs == "on")
        assert ("/docs" in client.get("/nowhere").json()["detail"]) == (docs == "on")
        for path in ("/docs/docs.js", "/docs/swagger-ui/swagger-ui.css"):
            assert client.get(path).status_code == (200 if docs == "on" else 404), path


def test_keys_are_described(serve: Serve) -> None:
    """OpenAPI requires a bearer token on the routes that need a key, and only there."""
    described = serve(api_keys=KEYS).get("/openapi.json").json()
    assert described["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    assert described["paths"]["/classify"]["post"]["security"] == [{"HTTPBearer": []}]
    assert "securitySchemes" not in serve().get("/openapi.json").json()["components"]


def test_a_time_begins_with_its_first_hit() -> None:
    """A key has so many hits in that time, then it waits for its end; refused ones do not count."""
    times = iter([100, 106, 109, 109.5, 110, 111, 116])
    limit = HitLimit(2, 10, Board.alone().parts("hits"), clock=lambda: next(times))
    assert [limit.hit("key") for _ in range(7)] == [0, 0, 1, 0.5, 0, 0, 4]


def test_uvicorns_variable_names_proxies_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """FORWARDED_ALLOW_IPS has an effect, unless the setting is given."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.0.0.7")
    assert load_settings({}).trusted_proxies == ("10.0.0.7",)
    assert load_settings({"trusted_proxies": "*"}).trusted_proxies == ("*",)


@pytest.mark.parametrize("wrong", ["proxy", "10.0.0.1/8", "10.0.0.7,*", "10.0.0.300"])
def test_a_wrong_proxy_ends_the_start(wrong: str) -> None:
    """The error says what is accepted."""
    words = r"^--trusted-proxies: give addresses and networks, such as .*, not "
    with pytest.raises(ValueError, match=words):
        load_settings({"trusted_proxies": wrong})


TRUSTED = ("127.0.0.1", "10.0.0.0/8")


@pytest.mark.parametrize(
    ("trusted", "lines", "client"),
    [
        (TRUSTED, ["198.51.100.7"], "198.51.100.7"),
        (TRUSTED, ["203.0.113.9, 198.51.100.7, 10.1.2.3"], "198.51.100.7"),
        (TRUSTED, ["203.0.113.9", "198.51.100.7", "10.1.2.3"], "198.51.100.7"),
        (TRUSTED, ["10.0.0.1, 10.0.0.2"], "10.0.0.1"),
        (TRUSTED, ["198.51.100.7:443"], "198.51.100.7"),
        (TRUSTED, ["[2001:DB8::7]:443"], "2001:db8::7"),
        (TRUSTED, ["2001:db8:0::7"], "2001:db8::7"),
        (TRUSTED, ["::ffff:198.51.100.7"], "198.51.100.7"),
        (TRUSTED, ["I love this!"], "127.0.0.1"),
        (TRUSTED, ["198.51.100.7, unknown, 10.1.2.3"], "10.1.2.3"),
        (TRUSTED, ["198.51.100.7, "], "127.0.0.1"),
        (TRUSTED, ["[198.51.100"], "127.0.0.1"),
        (TRUSTED, ["2001:db8::7%I love this!"], "2001:db8::7"),
        (TRUSTED, ["\x1b[31m198.51.100.7"], "127.0.0.1"),
        (("*",), ["203.0.113.9, 198.51.100.7"], "203.0.113.9"),
        (("*",), ["x" * 10_000 + ", 198.51.100.7"], "198.51.100.7"),
        ((), ["198.51.100.7"], "127.0.0.1"),
    ],
)
def test_only_addresses_are_taken_from_a_proxy(
    trusted: tuple[str, ...], lines: list[str], client: str
) -> None:
    """What no trusted proxy has added is not believed, and what is no address ends the search.

    Then the client is the last proxy that could be named.
    """
    forwarded = [line.encode("latin-1") for line in lines]
    assert access.Proxies(trusted).client("127.0.0.1", forwarded) == client


def test_the_log_and_the_rate_have_only_addresses(start: Start) -> None:
    """A made-up X-Forwarded-For is neither logged nor a way around the rate limit."""
    flags = ("--access-log", "on", "--log-format", "json", "--trusted-proxies", "127.0.0.1")
    process = start(*flags, "--rate-limit", "1/hour")
    codes = [
        process.client.get("/info", headers={"x-forwarded-for": f"love-{n}"}).status_code
        for n in range(3)
    ]
    assert codes == [200, 429, 429]
    log = process.terminate()
    assert '"client":"127.0.0.1"' in log
    assert "love-" not in log


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_proxies_and_clients_have_one_address(start: Start) -> None:
    """IPv4 addresses and their IPv6 form count as one, for trusted proxies and for clients.

    --trusted-proxies may have either form of a proxy's address, and the proxy may send either
    form of a client's address. Without keys, each address has a rate.
    """
    proxies = ("--trusted-proxies", "127.0.0.1, ::ffff:127.0.0.2")
    process = start("--host", "::", "--rate-limit", "1/hour", *proxies)
    for proxy, trusted in (("127.0.0.1", True), ("127.0.0.2", True), ("127.0.0.3", False)):
        transport = httpx2.HTTPTransport(local_address=proxy)
        network = f"198.51.100.{proxy[-1]}"
        with httpx2.Client(base_url=process.url, transport=transport) as client:
            codes = [
                client.get("/info", headers={"x-forwarded-for": address}).status_code
                for address in (f"{network}1", f"{network}2", f"::ffff:{network}1")
            ]
        assert codes == ([200, 200, 429] if trusted else [200, 429, 429])
