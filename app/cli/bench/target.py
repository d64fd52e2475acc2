"""The service that a load is sent to, and what its metrics say."""

import json
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from app.cli.bench.load import Load
from app.errors import UserError, first_line

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
            answer = self._ask("/classify", body.encode())
            sound = "results" in json.loads(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise UserError(f"{self.url} answers {error.code}{_reason(error)}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            why = first_line(reason) if isinstance(reason, Exception) else reason
            raise UserError(f"{self.url} does not answer: {why}") from None
        if not sound:
            raise UserError(f"{self.url} is not the sentiment service")

    def load(self, bodies: Sequence[str], seconds: float, rate: float | None) -> Load:
        """Requests with these bodies: at a rate per second, or one after the other."""
        address = urlsplit(self.url)
        tls = address.scheme == "https"
        return Load(
            port=address.port or (443 if tls else 80),
            path=f"{address.path.rstrip('/')}/classify",
            bodies=bodies,
            connections=1 if rate is None else 16,
            seconds=seconds,
            rate=rate,
            host=address.hostname or "",
            tls=tls,
            headers=[f"authorization: Bearer {self.key}"] if self.key else [],
        )

    def metrics(self) -> Mapping[str, float]:
        """The value of each metric, summed over its labels; 0 of those that cannot be read."""
        sums: dict[str, float] = defaultdict(float)
        try:
            text = self._ask("/metrics").decode()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    sums[sample.name.removeprefix("sentiment_")] += sample.value
        except urllib.error.HTTPError as error:
            error.close()
            sums.clear()
        except (OSError, ValueError):
            sums.clear()
        return sums

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        url = self.url.rstrip("/") + path
        request = urllib.request.Request(url, body, headers)  # noqa: S310 - http or https
        with OPENER.open(request, timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read()
        return content


def _reason(error: urllib.error.HTTPError) -> str:
    """What the service says of an error, and what helps."""
    if error.code == 401:
        return ": set SENTIMENT_API_KEY to a key that it accepts"
    try:
        return f": {json.load(error)['detail']}"
    except (ValueError, KeyError, TypeError):
        return ""
