"""Clients that ask all the time and remember what became of each request."""

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2


@contextmanager
def constant_load(
    url: str, clients: Sequence[list[str]], outcome: Callable[[Any], Hashable]
) -> Iterator[Counter[Hashable]]:
    """A client for each list of texts asks all the time; yields how often each outcome came.

    ``outcome`` is told the document of a 200; any other status or error is an outcome itself.
    """
    seen: Counter[Hashable] = Counter()
    done = threading.Event()

    def ask(texts: list[str]) -> None:
        with httpx2.Client(base_url=url, timeout=30) as client:  # longer than any deadline
            while not done.is_set():
                try:
                    answer = client.post("/classify", json={"inputs": texts})
                    sound = answer.status_code == 200
                    seen[outcome(answer.json()) if sound else answer.status_code] += 1
                except (httpx2.HTTPError, KeyError, ValueError) as error:
                    seen[repr(error)] += 1

    with ThreadPoolExecutor(len(clients)) as pool:
        for texts in clients:
            pool.submit(ask, texts)
        try:
            yield seen
        finally:
            done.set()
