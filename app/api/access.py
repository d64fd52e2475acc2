"""Who may use the service, and how often."""

import hashlib
import hmac
import time
from collections.abc import Sequence

from limits import parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter
from starlette.types import Scope

from app.errors import RateLimited, Unauthorized
from app.settings import Settings

# For whoever asks: probes, the page and the descriptions, none of which classifies anything.
OPEN = frozenset(
    {"/health", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"}
)
ADMIN = "/models/"  # whatever is posted below it
OPEN_PAGES = frozenset({"/", "/docs", "/openapi.json", "/metrics"})


class Access:
    """Checks a request's key and counts it. Only digests of the keys are known here."""

    def __init__(self, settings: Settings) -> None:
        self._digests = [digest.encode() for digest in settings.api_keys]
        self._admin_digests = [digest.encode() for digest in settings.admin_keys]
        self._rate = parse(settings.rate_limit) if settings.rate_limit else None
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    async def check(self, scope: Scope) -> None:
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
        if self._rate is not None and not await self._limiter.hit(self._rate, who):
            window = await self._limiter.get_window_stats(self._rate, who)
            raise RateLimited(
                f"at most {self._rate} are accepted",
                retry_after_s=max(0.0, window.reset_time - time.time()),
            )


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
