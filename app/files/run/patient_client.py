"""The client of a long run: it waits for the service, and accepts the answers of one model only."""

import logging
import random
import threading
import time
from itertools import count
from typing import Any, cast

from sentiment_client import (
    FIRST_BACKOFF_S,
    Client,
    ItemError,
    ModelInfo,
    Outcome,
    Overflow,
    SentimentError,
    Text,
)

# Seconds for one attempt: enough for a busy service to answer.
TIMEOUT_S = 60.0
# A service that has answered before may be away for so long, for example to restart.
ABSENCE_S = 60.0
# One that has never answered: its URL may be wrong.
FIRST_CONTACT_S = 3.0
# The longest pause between two attempts, if the service does not say how long to wait.
LONGEST_PAUSE_S = 5.0
# A wait is shown when it gets as long as this, and then once in this time.
SHOWN_FROM_S, SHOWN_EVERY_S = 5.0, 60.0
# Errors of a text that say nothing of the text: later, it has a result.
PASSING = {"deadline_exceeded", "not_ready", "shutting_down"}

logger = logging.getLogger(__name__)


class ModelChanged(SentimentError):
    """An answer is from another model than the first answer was."""


class PatientClient(Client):
    """Waits as long as a rate limit or an overloaded service says, and while the service is away.

    Set ``model`` after the first contact. Later answers must be from it.
    """

    def __init__(self, url: str, *, api_key: str | None, batch_size: int, concurrency: int) -> None:
        """See ``Client``."""
        super().__init__(url, api_key=api_key, batch_size=batch_size, concurrency=concurrency)
        self.model: ModelInfo | None = None
        self._showing = threading.Lock()
        self._shown_at = float("-inf")

    def _classify_batch(
        self, batch: list[Text], model: str | None, overflow: Overflow
    ) -> list[Outcome]:
        """The outcomes; texts with passing errors are sent again, alone, until they have others."""
        outcomes = super()._classify_batch(batch, model, overflow)
        attempts, since = 0, time.monotonic()
        while missing := [place for place, one in enumerate(outcomes) if _passes(one)]:
            again = super()._classify_batch([batch[place] for place in missing], model, overflow)
            for place, outcome in zip(missing, again, strict=True):
                outcomes[place] = outcome
            if not all(map(_passes, again)):
                attempts, since = 0, time.monotonic()
                continue
            attempts += 1
            first = cast(ItemError, again[0])
            error = SentimentError(first.message, status=503, code=first.code)
            pause_s = self._pause_s(error, attempts, time.monotonic() - since)
            if pause_s is None or self._closed.wait(pause_s):
                raise error
        return outcomes

    def _request(self, method: str, path: str, body: bytes | None = None) -> Any:
        started = time.monotonic()
        for attempts in count(1):
            try:
                document = self._attempt(method, path, body, TIMEOUT_S)
                break
            except SentimentError as error:
                pause_s = self._pause_s(error, attempts, time.monotonic() - started)
                if pause_s is None or self._closed.wait(pause_s):
                    raise
        if self.model is not None:
            self._check_model(self.model, document)
        return document

    def _pause_s(self, error: SentimentError, attempts: int, waited_s: float) -> float | None:
        """Seconds to wait before the next attempt; None if there should be no other attempt."""
        backoff_s = min(LONGEST_PAUSE_S, FIRST_BACKOFF_S * 2**attempts)
        # A little longer than the service says, so that not all requests return at the same moment.
        pause_s = (error.retry_after_s or 0.0) + random.uniform(0, backoff_s)
        if error.status == 429:
            self._show(f"{error}; waiting {pause_s:.0f} s", waited_s + pause_s)
            return pause_s
        if error.code != "connection_failed" and error.status not in (502, 503):
            return None
        limit_s = ABSENCE_S if self.model else FIRST_CONTACT_S
        if waited_s + pause_s > limit_s:
            return None
        self._show(f"{error}; trying again for up to {limit_s:.0f} s", waited_s + pause_s)
        return pause_s

    def _show(self, message: str, waited_s: float) -> None:
        """Log why the run waits. Several requests wait at the same time; one of them says so."""
        with self._showing:
            now = time.monotonic()
            if waited_s >= SHOWN_FROM_S and now - self._shown_at >= SHOWN_EVERY_S:
                self._shown_at = now
                logger.warning(message)

    def _check_model(self, first: ModelInfo, document: Any) -> None:
        try:
            model, labels = document["model"], tuple(document["labels"])
            served = ModelInfo(model["name"], model["revision"], model["precision"], labels)
        except (KeyError, TypeError):
            return  # not an answer of /classify
        if served != first:
            raise ModelChanged(
                f"{self.url} now serves {_shown(served)}, but this run began with {_shown(first)}; "
                "serve the first model again to continue, or start anew with the other"
            )


def _passes(outcome: Outcome) -> bool:
    return isinstance(outcome, ItemError) and outcome.code in PASSING


def _shown(model: ModelInfo) -> str:
    labels = ", ".join(model.labels)
    return f"{model.name} (revision {model.revision}, {model.precision}, labels {labels})"
