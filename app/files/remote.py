"""A sentiment service elsewhere, asked through ``sentiment_client``."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict
from itertools import tee
from typing import Any

from app.errors import ServiceError, UserError
from app.files.classifier import Answered
from app.files.outputs import Outcome
from app.files.tables import Chunk, Text
from sentiment_client import Client, ItemError, SentimentError
from sentiment_client import Outcome as ClientOutcome

# Seconds for a request with all its tries: long enough for a busy service to have its turn.
TIMEOUT_S = 60.0
BATCH_TEXTS = 32  # even of long texts a request's deadline has time for so many
CONCURRENCY = 8


class Remote:
    """The default model of the service at a URL."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """Ask the service for its model.

        Raises:
            UserError: it does not answer, or the URL or the key cannot be used.
        """
        try:
            self._client = Client(
                url,
                api_key=api_key,
                timeout_s=TIMEOUT_S,
                batch_size=BATCH_TEXTS,
                concurrency=CONCURRENCY,
            )
            model, *_ = self._client.models()
        except (SentimentError, ValueError) as error:
            raise UserError(str(error)) from error
        self.labels = list(model.labels)
        self.identity: dict[str, Any] = {
            "url": self._client.url,
            "model": model.name,
            "revision": model.revision,
            "precision": model.precision,
        }

    def answers(
        self, chunks: Iterable[Chunk], *, ahead: int, advance: Callable[[int], None]
    ) -> Generator[Answered, None, None]:
        """See ``Classifier``; with ``ahead``, the client reads ahead as far as it needs to."""
        for together in [chunks] if ahead else ([chunk] for chunk in chunks):
            asked, answered = tee(together)
            texts = (text for chunk in asked for text in chunk.texts if isinstance(text, str))
            results = self._client.classify_iter(texts)
            for chunk in answered:
                try:
                    outcomes = [_outcome(text, results, advance) for text in chunk.texts]
                except SentimentError as error:
                    raise UserError(str(error)) from error
                yield chunk, outcomes


def _outcome(
    text: Text, results: Iterator[ClientOutcome], advance: Callable[[int], None]
) -> Outcome:
    outcome = next(results) if isinstance(text, str) else text
    advance(1)
    if isinstance(outcome, ServiceError):
        return {"error": {"code": outcome.code, "message": outcome.detail}}
    return {"error": asdict(outcome)} if isinstance(outcome, ItemError) else asdict(outcome)
