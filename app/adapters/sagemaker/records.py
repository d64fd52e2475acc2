"""Records, one a line, as SageMaker sends them: each line is answered by a line in its place."""

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec
from fastapi import Response

from app.adapters.forms.instances import ACCEPTED, text_of
from app.api.body import INLINE_BYTES, parse, read_bytes
from app.api.http_exchange import HttpRequest
from app.api.routes.classify import in_places
from app.engine.predictions import Outcome, item
from app.engine.step_thread import Steps, finish
from app.engine.text.pairs import Text
from app.errors import InvalidRequest, ServiceError, TooManyTexts

# The most records that are classified together.
GROUP_RECORDS = 128
# A text with such an error could be answered later or elsewhere. So the whole request fails, and
# the platform sends it again.
TRY_AGAIN = (503, 504)


class Format(ABC):
    """A format of records. ``join`` puts between the answers, ``ends`` around all of them."""

    media_type: str
    join = b"\n"
    ends = (b"", b"\n")

    @abstractmethod
    def text(self, line: bytes, number: int) -> Text:
        """The text or pair of a line; empty if the line is blank. ``number`` is for errors, from 1.

        Raises:
            InvalidRequest: the line is not in this format.
        """

    @abstractmethod
    def answer(self, outcome: Outcome) -> bytes:
        """The answer to a line, without its end."""


class JsonLines(Format):
    """A JSON value per line: a string, or an object with a text."""

    media_type = "application/jsonlines"

    def text(self, line: bytes, number: int) -> Text:
        """The text or pair of a line."""
        if not line.strip():
            return ""
        text = text_of(parse(line, f"line {number}"))
        if text is None:
            raise InvalidRequest(f"line {number} must be {ACCEPTED}")
        return text

    def answer(self, outcome: Outcome) -> bytes:
        """The result or the error, as ``results`` of POST /classify has it."""
        return msgspec.json.encode(item(outcome))


class JsonList(JsonLines):
    """The same answers as JSON lines, as items of one list. It is for answers only."""

    media_type = "application/json"
    join = b","
    ends = (b"[", b"]")


class CsvRecords(Format):
    """One column without a header: the text. The answer has three: label, score, error code."""

    media_type = "text/csv"

    def text(self, line: bytes, number: int) -> Text:
        """The text of a line."""
        try:
            (columns,) = csv.reader([line.decode()], strict=True)
        except UnicodeDecodeError:
            raise InvalidRequest(f"line {number} is not UTF-8") from None
        except (csv.Error, ValueError):
            raise InvalidRequest(f"line {number} is not valid CSV in one line") from None
        if len(columns) > 1:
            raise InvalidRequest(
                f"line {number} has {len(columns)} columns; send one, and quote texts with commas"
            )
        return columns[0] if columns else ""

    def answer(self, outcome: Outcome) -> bytes:
        """Label and score, or the code of the error."""
        if isinstance(outcome, ServiceError):
            columns = ["", "", outcome.code]
        else:
            columns = [outcome["label"], repr(outcome["score"]), ""]
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(columns)
        return line.getvalue().encode()


async def answer_records(request: HttpRequest, reads: Format, writes: Format) -> Response:
    """Classify the lines of the body. Blank and bad lines have their errors in their places.

    Raises:
        TooManyTexts: there are more lines than a request may have texts.
        ServiceError: the body cannot be read, or the request as a whole failed.
    """
    service = request.exchange.service
    body = await read_bytes(request, empty="the body has no line")
    body = body.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n")
    most = service.settings.max_texts
    if (found := body.count(b"\n") + 1) > most:  # a line of one byte takes sixty in a list
        raise TooManyTexts(f"there are {found} lines; at most {most} are accepted")
    lines = body.split(b"\n")
    classifier = service.models.classifier(None)
    # So that no group has more tokens than one request may queue.
    size = max(1, min(GROUP_RECORDS, classifier.request_tokens // classifier.model.max_tokens))
    answers: list[bytes] = []
    for start in range(0, len(lines), size):
        outcomes = await _classified(request, reads, lines[start : start + size], start + 1)
        group = [writes.answer(outcome) for outcome in outcomes]
        request.exchange.hold(sum(map(len, group)))
        answers += group
    before, after = writes.ends
    return Response(before + writes.join.join(answers) + after, media_type=writes.media_type)


def _texts(reads: Format, lines: Sequence[bytes], first: int) -> Steps[list[Text | ServiceError]]:
    texts: list[Text | ServiceError] = []
    for number, line in enumerate(lines, first):
        try:
            texts.append(reads.text(line.removesuffix(b"\r"), number))
        except InvalidRequest as error:
            texts.append(InvalidRequest(error.detail))  # a new error, without stack frames
        yield
    return texts


async def _classified(
    request: HttpRequest, reads: Format, lines: Sequence[bytes], first: int
) -> list[Outcome]:
    """The outcome of each line. ``first`` is the number of the first line."""
    steps = _texts(reads, lines, first)
    if sum(map(len, lines)) <= INLINE_BYTES:
        texts = finish(steps)
    else:
        step_thread = request.exchange.service.step_thread
        texts = await step_thread.run(steps, deadline=request.exchange.deadline)
    good = [text for text in texts if not isinstance(text, ServiceError)]
    bad = [text for text in texts if isinstance(text, ServiceError)]
    request.exchange.service.models.classifier(None).observer.predictions(bad)
    classified = (await request.exchange.classify(good, model=None)).outcomes if good else []
    outcomes = in_places(texts, classified)
    for outcome in outcomes:
        if isinstance(outcome, ServiceError) and outcome.status in TRY_AGAIN:
            # A new error, because other requests may share the original.
            raise type(outcome)(outcome.detail, retry_after_s=outcome.retry_after_s) from None
    return outcomes
