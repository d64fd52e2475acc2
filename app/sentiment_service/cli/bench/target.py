"""The service that a load is sent to, and what its metrics say."""

import json
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from sentiment_service.cli.bench.load import Load
from sentiment_service.errors import UserError, first_line

TIMEOUT_S = 10.0
# Not through a proxy that is set in the environment: the load takes none, either.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Target:
    """A service at a URL, which may have a path, and the API key that it wants."""

    url: str
    key: str | None = None

    def check(self, body: str) -> None:
        """Send a body once.

        Raises:
            UserError: there is no answer, or it is not that of the service.
        """
        try:
            status, answer = self._ask("/classify", body.encode())
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            why = first_line(reason) if isinstance(reason, Exception) else reason
            raise UserError(f"{self.url} does not answer: {why}") from None
        if status == 401:
            raise UserError(f"{self.url} answers 401: set SENTIMENT_API_KEY to a key it accepts")
        found: Any = None
        with suppress(ValueError):
            found = json.loads(answer)
        if not isinstance(found, dict) or (status == 200 and "results" not in found):
            raise UserError(f"{self.url} is not the sentiment service: it answers {status}")
        if status != 200:
            raise UserError(f"{self.url} answers {status}: {found.get('detail')}")

    def load(self, bodies: Sequence[str], seconds: float, rate: float | None) -> Load:
        """Requests with these bodies: at a rate per second, or one after the other."""
        headers = [f"authorization: Bearer {self.key}"] if self.key else []
        url, connections = f"{self.url.rstrip('/')}/classify", 1 if rate is None else 16
        return Load(url, bodies, connections, seconds, rate=rate, headers=headers)

    def metrics(self) -> Mapping[str, float]:
        """The ``sums`` of its metrics; zeros if they cannot be read."""
        try:
            status, scrape = self._ask("/metrics")
            return sums(scrape.decode() if status == 200 else "")
        except (OSError, HTTPException, ValueError):
            return sums("")

    def _ask(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of an answer."""
        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        url = self.url.rstrip("/") + path
        request = urllib.request.Request(url, body, headers)  # noqa: S310 - http or https
        try:
            answer = OPENER.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return answer.status, answer.read()


def sums(scrape: str) -> Mapping[str, float]:
    """The value of each metric without our prefix, summed over its labels; 0 of others."""
    found: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(scrape):
        for sample in family.samples:
            found[sample.name.removeprefix("sentiment_")] += sample.value
    return found
