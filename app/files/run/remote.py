"""Classify with a remote sentiment service, through ``sentiment_client``."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict
from itertools import tee
from typing import Any

from app.errors import CannotContinue, ServiceError, UserError
from app.files.run.patient_client import ModelChanged, PatientClient
from app.files.tables.table import Chunk, ClassifiedChunk, ResultItem, Text
from sentiment_client import ItemError, Outcome, SentimentError

BATCH_TEXTS = 32  # a service can classify so many texts within a deadline, even long ones
CONCURRENCY = 8


class RemoteClassifier:
    """The default model of the service at a URL."""

    def __init__(self, url: str, api_key: str | None) -> None:
        """Ask the service which model it serves.

        Raises:
            UserError: the service does not answer, or refuses the URL or the key.
        """
        try:
            self._client = PatientClient(
                url, api_key=api_key, batch_size=BATCH_TEXTS, concurrency=CONCURRENCY
            )
            model, *_ = self._client.models()
        except (SentimentError, ValueError) as error:
            raise UserError(str(error)) from error
        self._client.model = model
        self.labels = list(model.labels)
        self.identity: dict[str, Any] = {
            "url": self._client.url,
            "model": model.name,
            "revision": model.revision,
            "precision": model.precision,
        }

    def classify(
        self, chunks: Iterable[Chunk], *, read_ahead: int, advance: Callable[[int], object]
    ) -> Generator[ClassifiedChunk, None, None]:
        """See ``TableClassifier``. The client decides how far it reads ahead, if it may."""
        for group in [chunks] if read_ahead else ([chunk] for chunk in chunks):
            to_send, to_answer = tee(group)
            texts = (text for chunk in to_send for text in chunk.texts if isinstance(text, str))
            outcomes = self._client.classify_iter(texts)
            for chunk in to_answer:
                try:
                    results = [_result(text, outcomes, advance) for text in chunk.texts]
                except ModelChanged as error:
                    raise CannotContinue(str(error)) from error
                except SentimentError as error:
                    raise UserError(str(error)) from error
                yield chunk, results


def _result(
    text: Text, outcomes: Iterator[Outcome], advance: Callable[[int], object]
) -> ResultItem:
    outcome = next(outcomes) if isinstance(text, str) else text
    advance(1)
    if isinstance(outcome, ServiceError):
        return {"error": {"code": outcome.code, "message": outcome.detail}}
    return {"error": asdict(outcome)} if isinstance(outcome, ItemError) else asdict(outcome)
