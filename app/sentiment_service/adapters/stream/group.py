"""A group of lines of one stream, which are classified together."""

import asyncio
import math
from collections.abc import Sequence

from sentiment_service.adapters.stream.ndjson import Line, answer_line
from sentiment_service.api.routes.classify import in_places
from sentiment_service.engine.classifier import Classifier
from sentiment_service.engine.predictions import Outcome
from sentiment_service.engine.text.encoding import TextOptions
from sentiment_service.engine.text.pairs import Text
from sentiment_service.errors import ServiceError, ShuttingDown, TooManyTexts
from sentiment_service.exchange import Exchange


class StreamGroup:
    """Lines that wait for their turn at the gate, and are then classified and answered.

    ``admitted`` is set when the group has passed the gate, or will never pass it.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        exchange: Exchange,
        model: str | None,
        options: TextOptions,
    ) -> None:
        self.admitted = asyncio.Event()
        self.lines = lines
        self._exchange = exchange
        self._service = exchange.service
        self._model = model
        self._options = options

    async def answer(self) -> bytes:
        """The answers, in the order of the lines: a result or an error for each line."""
        texts = [line.text for line in self.lines]
        try:
            results = await self._outcomes([t for t in texts if not isinstance(t, ServiceError)])
        finally:
            self.admitted.set()
        self._classifier.observer.predictions(
            text for text in texts if isinstance(text, ServiceError)
        )
        outcomes = in_places(texts, results)
        self._exchange.asks(self._classifier.model.name, len(texts))
        self._exchange.add_tokens(outcomes)
        return b"".join(map(answer_line, self.lines, outcomes))

    @property
    def _classifier(self) -> Classifier:
        """Looked up at every use, because a reload may have replaced it."""
        return self._service.models.classifier(self._model)

    async def _outcomes(self, texts: Sequence[Text]) -> Sequence[Outcome]:
        if not texts:
            return []
        observer = self._classifier.observer
        try:
            outcomes = await self._across_reloads(texts)
        except BaseException as error:
            observer.failure(error, len(texts))
            if isinstance(error, ServiceError):
                return [error] * len(texts)
            raise
        self._classifier.observer.predictions(outcomes)
        return outcomes

    async def _across_reloads(self, texts: Sequence[Text]) -> Sequence[Outcome]:
        """The outcome of each text. Texts that a replaced model left undone go to the new one."""
        outcomes = await self._attempt(texts)
        if self._service.lifecycle.stopping:
            return outcomes
        undone = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, ShuttingDown)]
        if not undone:
            return outcomes
        again = await self._across_reloads([texts[n] for n in undone])
        by_number = dict(zip(undone, again, strict=True))
        return [by_number.get(n, outcome) for n, outcome in enumerate(outcomes)]

    async def _attempt(self, texts: Sequence[Text]) -> Sequence[Outcome]:
        attempt = self._classifier.attempt(
            texts, self._options, deadline=math.inf, admitted=self.admitted
        )
        try:
            return (await attempt).outcomes
        except ShuttingDown as error:
            if self._service.lifecycle.stopping:
                raise
            return [error] * len(texts)
        except TooManyTexts as error:  # more tokens than one request may queue: halve the group
            if len(texts) == 1:
                return [error]
            middle = len(texts) // 2
            first = await self._attempt(texts[:middle])
            return [*first, *await self._attempt(texts[middle:])]
