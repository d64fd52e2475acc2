"""A group of lines of one stream, which are classified together."""

import asyncio
import math
from collections.abc import Sequence

from sentiment_service.adapters.stream.ndjson import Line, answer_line
from sentiment_service.engine.classifier import Classification, Classifier
from sentiment_service.engine.text.options import TextOptions
from sentiment_service.engine.text.pairs import Text
from sentiment_service.errors import ServiceError, ShuttingDown, TooManyTexts
from sentiment_service.exchange import Exchange
from sentiment_service.results import Outcome


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
            work = self._classified(texts)
            outcomes = (await self._exchange.counted(self._classifier, len(texts), work)).outcomes
        except ServiceError as error:
            outcomes = [text if isinstance(text, ServiceError) else error for text in texts]
        finally:
            self.admitted.set()
        return b"".join(map(answer_line, self.lines, outcomes))

    @property
    def _classifier(self) -> Classifier:
        """Looked up at every use, because a reload may have replaced it."""
        return self._service.models.classifier(self._model)

    async def _classified(self, texts: Sequence[Text | ServiceError]) -> Classification:
        outcomes = await self._across_reloads(texts)
        return Classification(self._classifier.model, outcomes, stages={})

    async def _across_reloads(self, texts: Sequence[Text | ServiceError]) -> list[Outcome]:
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

    async def _attempt(self, texts: Sequence[Text | ServiceError]) -> list[Outcome]:
        attempt = self._classifier.classify(
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
