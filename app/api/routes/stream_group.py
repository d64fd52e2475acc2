"""A group of lines of one stream, which are classified together."""

import asyncio
import math
from collections.abc import Sequence
from functools import partial

from app.api.ndjson import Line, answer_line
from app.api.service import Service
from app.api.work import Work
from app.engine.classifier import Classifier
from app.engine.observer import CountingFailures
from app.engine.results import Outcome
from app.engine.text.encoded_text import TextOptions
from app.engine.text.pairs import Input
from app.errors import ServiceError, ShuttingDown, TooManyTexts


class StreamGroup:
    """Lines that wait for their turn at the gate, and are then classified and answered.

    ``admitted`` is set when the group has passed the gate, or will never pass it.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        service: Service,
        model: str | None,
        options: TextOptions,
        work: Work | None,
    ) -> None:
        self.admitted = asyncio.Event()
        self.lines = lines
        self._service = service
        self._model = model
        self._options = options
        self._work = work
        self._gate = service.models.stream_gate(model)

    async def answer(self) -> bytes:
        """The answers, in the order of the lines: a result or an error for each line."""
        lines = self.lines
        texts = [line.text for line in lines if not isinstance(line.text, ServiceError)]
        try:
            outcomes = await self._outcomes(texts)
        finally:
            self.admitted.set()
        self._classifier.observer.predictions(
            line.text for line in lines if isinstance(line.text, ServiceError)
        )
        if self._work is not None:
            self._work.texts += len(lines)
            self._work.add_tokens(outcomes)
        answered = iter(outcomes)
        return b"".join(
            answer_line(line, line.text if isinstance(line.text, ServiceError) else next(answered))
            for line in lines
        )

    @property
    def _classifier(self) -> Classifier:
        """Looked up at every use, because a reload may have replaced it."""
        return self._service.models.classifier(self._model)

    async def _outcomes(self, texts: Sequence[Input]) -> Sequence[Outcome]:
        if not texts:
            return []
        try:
            with CountingFailures(self._classifier.observer, len(texts)):
                outcomes = await self._across_reloads(texts)
        except ServiceError as error:
            return [error] * len(texts)
        self._classifier.observer.predictions(outcomes)
        return outcomes

    async def _across_reloads(self, texts: Sequence[Input]) -> Sequence[Outcome]:
        """The outcome of each text. Texts that a replaced model left undone go to the new one."""
        outcomes = await self._attempt(texts)
        if self._service.lifecycle.stopping:
            return outcomes
        left = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, ShuttingDown)]
        if not left:
            return outcomes
        again = await self._across_reloads([texts[n] for n in left])
        by_number = dict(zip(left, again, strict=True))
        return [by_number.get(n, outcome) for n, outcome in enumerate(outcomes)]

    async def _attempt(self, texts: Sequence[Input]) -> Sequence[Outcome]:
        submit = partial(self._gate.submit, admitted=self.admitted)
        attempt = self._classifier.attempt(texts, self._options, deadline=math.inf, submit=submit)
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
