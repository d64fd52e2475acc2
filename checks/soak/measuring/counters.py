"""Looks whether the counters of ``GET /metrics`` ever fall, whichever worker shows them."""

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from checks.soak.measuring.tally import Tally
from checks.soak.wire import Connection, Lost, request

INTERVAL_S = 5.0


class Counters:
    """Compares each scrape with the one before."""

    def __init__(self, port: int, tally: Tally) -> None:
        self._port = port
        self._tally = tally
        self._seen: dict[tuple[str, ...], float] = {}

    async def run(self) -> None:
        """Scrape every few seconds."""
        while True:
            try:
                async with await Connection.open(self._port) as connection:
                    answer = await connection.ask(request("GET", "/metrics"))
            except Lost:
                pass  # its worker was killed; the traffic judges lost answers
            else:
                if answer.status == 200:
                    self.compare(answer.body.decode())
            await asyncio.sleep(INTERVAL_S)

    def compare(self, scrape: str) -> None:
        """Count as failures the series that are lower than before, or gone."""
        now = {
            (sample.name, *map("=".join, sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(scrape)
            if family.type in {"counter", "histogram"}
            for sample in family.samples
        }
        for series, before in self._seen.items():
            if (value := now.get(series, -1.0)) < before:
                self._tally.failed("counters that fell", f"{series}: {before} to {value}")
        self._seen = now
