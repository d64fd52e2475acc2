"""Who may use the service, and how often."""

import hashlib
import hmac
import time
from collections import OrderedDict, deque
from collections.abc import Sequence

from starlette.types import Scope

from app.errors import RateLimited, Unauthorized
from app.settings import Settings

# For whoever asks: probes, the page and the descriptions, none of which classifies anything.
OPEN = frozenset(
    {"/health", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"}
)
ADMIN = "/models/"  # whatever is posted below it
OPEN_PAGES = frozenset({"/", "/docs", "/openapi.json", "/metrics"})
IPV4_MAPPED = "::ffff:"  # where a socket for IPv6 has a connection from IPv4
PERIOD_S = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}


class Access:
    """Checks a request's key and counts it. Only digests of the keys are known here."""

    def __init__(self, settings: Settings) -> None:
        self._digests = settings.api_keys
        self._admin_digests = settings.admin_keys
        self._rate = settings.rate_limit
        if self._rate:
            requests, period = self._rate.split("/")
            self._window = MovingWindow(int(requests), PERIOD_S[period])

    def check(self, scope: Scope) -> None:
        """Let a request pass.

        Raises:
            Unauthorized: it has no key, or not one of ours.
            RateLimited: its key, or without keys its address, has sent too many.
        """
        if scope["method"] == "POST" and scope["path"].startswith(ADMIN):
            if not self._admin_digests:
                raise Unauthorized(
                    "this service has no admin keys, so it reloads on the signal SIGHUP only; "
                    "whoever runs it can set SENTIMENT_ADMIN_KEYS"
                )
            _key_digest(scope, self._admin_digests)
            return
        if not (self._digests or self._rate) or _is_open(scope):
            return
        address = (scope["client"] or ("",))[0]
        who = _key_digest(scope, self._digests) if self._digests else address
        if self._rate and (wait_s := self._window.hit(who)):
            raise RateLimited(f"at most {self._rate} are accepted", retry_after_s=wait_s)


class MovingWindow:
    """At most ``most`` hits of each key in any ``seconds``, by a clock that nobody sets.

    The package ``limits`` goes by the time of day: after that is set back, whoever has used up his
    hits waits as much longer.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        # By key, the one that was let in last at the end: its hits, which are no more than count.
        self._hits: OrderedDict[str, deque[float]] = OrderedDict()

    def hit(self, key: str) -> float:
        """Let a hit in and count it, for 0; otherwise the seconds until the next may come."""
        now = time.monotonic()
        while self._hits and next(iter(self._hits.values()))[-1] + self._seconds <= now:
            self._hits.popitem(last=False)
        hits = self._hits.setdefault(key, deque(maxlen=self._most))
        if len(hits) == self._most and (wait_s := hits[0] + self._seconds - now) > 0:
            return wait_s
        hits.append(now)
        self._hits.move_to_end(key)
        return 0.0


def plain_address(host: str) -> str:
    """The address as a socket for IPv4 has it, if it is one: 1.2.3.4, not ::ffff:1.2.3.4."""
    return host.removeprefix(IPV4_MAPPED) if "." in host else host


def _key_digest(scope: Scope, digests: Sequence[bytes]) -> str:
    """The digest of the request's key, which must be one of these."""
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, key = given.partition(b" ")
    digest = hashlib.sha256(key.strip()).hexdigest()
    # All are compared, each in constant time: how long it takes tells nothing.
    known = [hmac.compare_digest(digest.encode(), one) for one in digests]
    if scheme.lower() != b"bearer" or not any(known):
        raise Unauthorized("send one of the service's keys, as 'Authorization: Bearer KEY'")
    return digest


def _is_open(scope: Scope) -> bool:
    path = scope["path"]
    if path in OPEN:
        return True
    reads = scope["method"] in ("GET", "HEAD")
    return reads and (path in OPEN_PAGES or path.startswith("/web/"))
