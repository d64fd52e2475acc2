"""``sentiment doctor --url``: looks at a running service, in the way in which clients reach it."""

import importlib.metadata
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from ssl import cert_time_to_seconds
from time import monotonic, time
from typing import Any

import httpx
from sentiment_client import Client

from sentiment_service.cli.findings import Finding

TIMEOUT_S = 10.0
# Requests with a text, each on a connection of its own: a balancer has several replicas behind it.
ANSWERS = 8
TEXT = "I love this!"
EXPIRES_S = 7 * 86_400
# Cures of failed connections, by words of the reason. The first that fits is the one.
CURES = {
    "mismatch": "ask by a name that the certificate has",
    "has expired": "renew the certificate, and send SIGHUP to the service",
    "CERTIFICATE_VERIFY_FAILED": "let SSL_CERT_FILE name the certificate of its issuer; for a "
    "self-signed one, its own",
    "SSL": "if the service has no TLS on this port, use http://",
    "refused": "nothing listens there: start the service, or correct host and port",
    "resolution": "correct the host's name",
    "not known": "correct the host's name",
    "getaddrinfo": "correct the host's name",
    "illegal": "this port does not speak HTTP/1.1; --grpc-port is for gRPC, use that of --port",
    "disconnected": "if the service has TLS, use https://; otherwise its log says why",
    "timed out": "a firewall is in the way, or the process hangs: look at its log",
}
PROXY_FAILS = (502, 503, 504)


# A detail is written by whatever answers.
MOST_DETAIL_CHARS = 300


class _Asker(Client):
    """A client that is interested in answers of any kind, if they end in time."""

    @property
    def through(self) -> str:
        return self._through

    def ask(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        method, limit_s = "GET" if body is None else "POST", self._timeout_s
        http: httpx.Client = self._connections()[0]
        # httpx limits the time of each part of an answer, and there may be any number of parts.
        late = threading.Timer(limit_s, http.close)
        late.start()
        try:
            return http.request(method, path, json=body, headers=headers, timeout=limit_s)
        except (httpx.RequestError, OSError, ValueError, RuntimeError):
            if http.is_closed:  # now, or as the answer before this one ended
                raise httpx.ReadTimeout("the answer did not end") from None
            raise
        finally:
            late.cancel()


def examine_service(
    url: str, api_key: str | None, *, timeout_s: float = TIMEOUT_S
) -> Iterator[Finding]:
    """All findings, from the connection to answers. After some problems, no more can be found."""
    try:
        with (
            _Asker(url, timeout_s=timeout_s) as anyone,
            _Asker(url, api_key=api_key, timeout_s=timeout_s) as service,
        ):
            try:
                yield from _examine(anyone, service, api_key)
            except httpx.RequestError as error:
                yield _unreachable(service, error)
    except ValueError as error:  # of the URL, the key or a proxy
        yield Finding("connection", False, str(error).replace("api_key", "SENTIMENT_API_KEY"))
    except (AttributeError, LookupError, TypeError):
        fault = "it answers in another form than a sentiment service of this version"
        yield Finding("service", False, fault, "a proxy or another program answers there")


def _unreachable(service: _Asker, error: httpx.RequestError) -> Finding:
    reason = "timed out" if isinstance(error, httpx.TimeoutException) else str(error).rstrip(".")
    cure = next((cure for word, cure in CURES.items() if word in reason), "")
    check = "TLS" if "SSL" in reason else "connection"
    return Finding(check, False, f"cannot reach {service.url}{service.through}: {reason}", cure)


def _examine(anyone: _Asker, service: _Asker, api_key: str | None) -> Iterator[Finding]:
    live = service.ask("/health/live")
    if found := _other(service, live):
        yield found
        return
    yield Finding("connection", True, f"{service.url}{service.through} is a sentiment service")
    if service.url.startswith("https:"):
        yield _certificate(live)
    if live.status_code != 200:
        yield Finding("live", False, _why(live), "restart it; its log says why")
    info = anyone.ask("/info")
    needed = info.status_code == 401
    if needed and api_key:
        info = service.ask("/info")
    yield _key(info, api_key, needed=needed)
    ready = service.ask("/health/ready")
    cure = "" if ready.status_code == 200 else "its log says why (docs/operations.md)"
    yield Finding("ready", not cure, "it takes requests" if not cure else _why(ready), cure)
    if info.status_code != 401:
        yield from _served(service, info)


def _other(service: _Asker, live: httpx.Response) -> Finding | None:
    """Why the answer to ``/health/live`` is not that of a service at this URL; None if it is."""
    if _document(live) == {"status": "live"} or (live.status_code == 503 and _is_ours(live)):
        return None
    address = httpx.URL(service.url)
    root = str(address.copy_with(path="/"))
    if address.path.strip("/"):
        with suppress(httpx.RequestError):
            if _document(service.ask(root + "health/live")) == {"status": "live"}:
                fault = f"the service is at {root}, and not at its path {address.path}"
                return Finding("path", False, fault, f"use --url {root}")
    elif _is_ours(live):
        fault = "this port of the service has no such route; --metrics-port is for metrics alone"
        return Finding("port", False, fault, "use that of --port")
    kind = live.headers.get("content-type", "no content-type")
    by = f" of {live.headers['server']}" if "server" in live.headers else ""
    found = f"{service.url} answers {live.status_code} ({kind}){by}, not as a sentiment service"
    if live.is_redirect:
        there = live.headers.get("location", "nowhere")
        with suppress(httpx.InvalidURL):
            there = str(live.url.join(there))
        service_there, path, rest = there.partition("/health/live")
        cure = f"it redirects: use --url {service_there}"
        if rest or not path:
            cure = f"it redirects to {there}, as for a login: use the address behind it"
        return Finding("path", False, found, cure)
    if live.status_code in PROXY_FAILS:
        cure = "a proxy does not reach the service: check its address there, and the service's log"
        return Finding("proxy", False, found, cure)
    cure = f"correct host and port, or add the proxy's path, as in {root.rstrip('/')}/sentiment"
    return Finding("path", False, found, cure)


def _is_ours(answer: httpx.Response) -> bool:
    return str(_document(answer).get("type")).startswith("urn:sentiment:")


def _document(answer: httpx.Response) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        document = answer.json()
        return document if isinstance(document, dict) else {}
    return {}


def _why(answer: httpx.Response) -> str:
    problem = _document(answer)
    detail = str(problem.get("detail", "no detail"))[:MOST_DETAIL_CHARS]
    return f"{answer.status_code} {problem.get('code', '')}: {detail}"


def _certificate(answer: httpx.Response) -> Finding:
    connection = answer.extensions["network_stream"].get_extra_info("ssl_object")
    until = connection.getpeercert()["notAfter"] if connection else None
    if until is None:  # through a proxy
        return Finding("TLS", True, "the certificate is valid")
    soon = cert_time_to_seconds(until) < time() + EXPIRES_S
    cure = CURES["has expired"] if soon else ""
    return Finding("TLS", not soon, f"the certificate is valid until {until}", cure)


def _key(info: httpx.Response, api_key: str | None, *, needed: bool) -> Finding:
    if not needed:
        return Finding("key", True, "none is needed")
    if info.status_code != 401:
        return Finding("key", True, "the one in SENTIMENT_API_KEY is accepted")
    if api_key:
        cure = "take one of --api-keys or --api-keys-file; SIGHUP reads that file again"
        return Finding("key", False, "the one in SENTIMENT_API_KEY is not accepted", cure)
    return Finding("key", False, "one is needed", "set SENTIMENT_API_KEY in the environment")


def _served(service: _Asker, info: httpx.Response) -> Iterator[Finding]:
    """Version, device, workers, models, and answers."""
    listed = service.ask("/models")
    for answer, member in ((info, "version"), (listed, "models")):
        if answer.status_code != 200 or member not in _document(answer):
            yield Finding("service", False, _why(answer), "its log or a proxy in between says why")
            return
    facts, models = _document(info), _document(listed)["models"]
    own = importlib.metadata.version("sentiment-service")
    other = "" if facts["version"] == own else f"; this command is {own}"
    yield Finding("version", True, f"service {facts['version']}{other}")
    provider = facts.get("provider", "provider not known")
    yield Finding("device", True, f"{facts.get('device', 'not known')} ({provider})")
    if len(workers := facts.get("workers", ())) > 1:
        stages = Counter(worker["stage"] for worker in workers)
        restarts = sum(worker["restarts"] for worker in workers)
        said = ", ".join(f"{count} {stage}" for stage, count in stages.items())
        cure = "" if {*stages} == {"ready"} else "its log says why; a silent one is replaced soon"
        yield Finding("workers", not cure, f"{said}; {restarts} were replaced", cure)
    for one in models:
        languages = ", ".join(one.get("languages") or ["not known"])
        yield Finding(
            "model",
            True,
            f"{one['name']} {_digest(one)}, revision {one['revision'] or 'none'}, in "
            f"{one['precision']}; labels: {', '.join(one['labels'])}; languages: {languages}",
        )
    yield _answers(service)


def _digest(version: dict[str, Any]) -> str:
    return f"digest {version.get('digest', 'unknown')[:12]}"


def _answers(service: _Asker) -> Finding:
    """What several requests get: each may reach another replica."""
    served, started = Counter[str](), monotonic()
    for _ in range(ANSWERS):
        answer = service.ask("/classify", {"inputs": TEXT}, connection="close")
        if answer.status_code == 429 and served:  # a limit of few requests a second
            break
        if answer.status_code != 200 or "model" not in _document(answer):
            return Finding("answers", False, _why(answer), "docs/api.md explains the code")
        version = answer.json()["model"]
        served[f"{version['name']} {_digest(version)} in {version['precision']}"] += 1
    if len(served) > 1:
        found = ", ".join(f"{count} of {name}" for name, count in served.items())
        cure = "replicas serve different models: end the rollout, or reload those that are behind"
        return Finding("answers", False, found, cure)
    each_ms = (monotonic() - started) / served.total() * 1000
    return Finding("answers", True, f"{served.total()} of one model, each in {each_ms:.0f} ms")
