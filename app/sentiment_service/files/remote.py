"""Classify with a remote sentiment service, through ``sentiment_client``."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import asdict
from itertools import tee
from typing import Any

from sentiment_client import Client, ItemError, Outcome, SentimentError

from sentiment_service.errors import CannotContinue, ServiceError, UserError
from sentiment_service.files.results import Advance, ResultColumns, ResultItem, with_reason
from sentiment_service.files.table import READ_AHEAD_CHUNKS, Chunk, ClassifiedChunk, TextOrError
from sentiment_service.results import item

BATCH_TEXTS = 32  # a service can classify so many texts within a deadline, even long ones
CONCURRENCY = 8
# Seconds for one attempt: enough for a busy service to answer.
TIMEOUT_S = 60.0
# A service that has answered before may be away for so many seconds, for example to restart.
PATIENCE_S = 60.0


class RemoteClassifier:
    """The default model of the service at a URL."""

    def __init__(self, url: str, api_key: str | None, *, threshold: float | None) -> None:
        try:
            self._client = Client(
                url,
                api_key=api_key,
                timeout_s=TIMEOUT_S,
                patience_s=PATIENCE_S,
                batch_size=BATCH_TEXTS,
                concurrency=CONCURRENCY,
            )
            self._model, *_ = self._client.models()
        except (SentimentError, ValueError) as error:
            raise UserError(str(error)) from error
        self._threshold = threshold
        self.columns = ResultColumns(self._model.labels, multi_label=self._model.multi_label)
        self.identity: dict[str, Any] = {
            "url": self._client.url,
            "model": self._model.name,
            "revision": self._model.revision,
            "precision": self._model.precision,
            "digest": self._model.digest,
        }

    def classify(
        self,
        chunks: Iterable[Chunk],
        *,
        read_ahead: int = READ_AHEAD_CHUNKS,
        advance: Advance = lambda *_: None,
    ) -> Generator[ClassifiedChunk, None, None]:
        """As ``LocalClassifier`` has it. The client decides how far it reads ahead, if it may."""
        for group in [chunks] if read_ahead else ([chunk] for chunk in chunks):
            to_send, to_answer = tee(group)
            texts = (text for chunk in to_send for text in chunk.texts if isinstance(text, str))
            outcomes = self._client.classify_iter(
                texts, model=self._model, threshold=self._threshold
            )
            for chunk in to_answer:
                try:
                    results = [_result(text, outcomes, advance) for text in chunk.texts]
                except SentimentError as error:
                    if error.code in ("model_changed", "model_not_found"):
                        raise CannotContinue(
                            f"{error.detail}; serve {self._model.name} again as it was to "
                            "continue, or start anew with the other model"
                        ) from error
                    raise UserError(str(error)) from error
                yield chunk, [*map(with_reason, chunk.texts, results)]


def _result(text: TextOrError, outcomes: Iterator[Outcome], advance: Advance) -> ResultItem:
    outcome = next(outcomes) if isinstance(text, str) else text
    advance(1)
    if isinstance(outcome, ServiceError):
        return item(outcome)
    members = asdict(outcome)
    if isinstance(outcome, ItemError):
        return {"error": members}
    return {name: value for name, value in members.items() if value is not None}
