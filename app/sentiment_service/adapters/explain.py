"""POST /explain: what each word of a text contributes to its label.

The method is leave-one-out: the occlusion of Zeiler and Fergus (arXiv:1311.2901), applied to words.
"""

import re
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from sentiment_service.engine.classifier import Classification, Classifier
from sentiment_service.errors import (
    CLASSIFY_ERRORS,
    EmptyText,
    ServiceError,
    TextTooLong,
    TooManyTexts,
)
from sentiment_service.http.openapi import VERSION, documented, documented_body, example
from sentiment_service.http.routes import Answered, HttpRequest, JsonAnswer, TextRoute, read_body
from sentiment_service.requests.service import Adapter
from sentiment_service.requests.validation import RequestBody, SingleText
from sentiment_service.results import Outcome, Prediction, Span


class ExplainRoute(TextRoute):
    operation = "explain"


router = APIRouter(tags=["classification"], route_class=ExplainRoute)

MAX_WORDS = 128
MAX_CHARS = 4_000
WORD = re.compile(r"\S+")
EXPLAINED = {
    "model": VERSION,
    "label": "positive",
    "score": 0.482,
    "tokens": 10,
    "truncated": False,
    "words": [
        {"start": 0, "end": 1, "word": "I", "contribution": 0.005},
        {"start": 2, "end": 6, "word": "love", "contribution": 0.449},
        {"start": 7, "end": 12, "word": "this,", "contribution": 0.247},
        {"start": 13, "end": 16, "word": "but", "contribution": -0.342},
        {"start": 17, "end": 19, "word": "it", "contribution": -0.163},
        {"start": 20, "end": 22, "word": "is", "contribution": 0.025},
        {"start": 23, "end": 32, "word": "expensive", "contribution": -0.396},
    ],
}


class Word(Span):
    """A word of a text, and what it contributes to the text's label."""

    word: Annotated[str, Field(description="the text between these positions")]
    contribution: Annotated[
        float, Field(description="how much lower the label's score is without this word")
    ]


class ExplainRequest(RequestBody):
    """One text."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"inputs": "I love this, but it is expensive"}]}
    )

    inputs: SingleText = Field(description="the text")
    model: str | None = Field(default=None, description="name of a served model")


class ExplainResponse(TypedDict):
    """The result of the text, and what each of its words contributes to it."""

    model: Answered
    label: Annotated[str, Field(description="the label with the highest score")]
    score: Annotated[float, Field(description="its score")]
    tokens: Annotated[
        int, Field(description="tokens of the text, special ones included, before truncation")
    ]
    truncated: Annotated[bool, Field(description="whether the end of the text was cut off")]
    words: Annotated[
        list[Word], Field(description="one item for each word, in the order of the text")
    ]


@router.post(
    "/explain",
    operation_id="explain",
    response_model=ExplainResponse,
    responses={**example(EXPLAINED), **documented(*CLASSIFY_ERRORS)},
    openapi_extra=documented_body(ExplainRequest),
)
async def explain(request: HttpRequest) -> Response:
    """Explain what each word of a text contributes to its label.

    The text is classified again without each word in turn. A word that speaks for the label has a
    contribution above 0, and a word that speaks against it has one below 0. A text may have at
    most 128 words and 4,000 characters. All copies of the text, each without one word, may
    together have at most half of `max_queue_tokens`.
    """
    body = await read_body(request, ExplainRequest)
    exchange = request.exchange
    classifier = exchange.service.models.classifiers.of(body.model)
    classifying = _classified(classifier, body.inputs, deadline=exchange.deadline)
    # Only the text counts, and not its copies that each lack a word.
    done = await exchange.counted(classifier, [body.inputs], exchange.while_connected(classifying))
    whole, *others = done.outcomes
    if isinstance(whole, ServiceError):
        raise whole
    multi_label = done.model.multi_label
    response: ExplainResponse = {
        "model": done.model.version,
        "label": whole["label"],
        "score": whole["score"],
        "tokens": whole["tokens"],
        "truncated": whole["truncated"],
        "words": contributions(words_of(body.inputs), whole, others, multi_label=multi_label),
    }
    return JsonAnswer(response, done.server_timing)


async def _classified(classifier: Classifier, text: str, *, deadline: float) -> Classification:
    """The text, and then its copies that each lack a word."""
    words = words_of(text)
    try:
        return await classifier.classify([text, *map(without, words)], deadline=deadline)
    except TooManyTexts as error:
        raise TextTooLong(
            f"the text and its {len(words)} copies, each without one word, are too long: {error}"
        ) from None


def words_of(text: str) -> list[re.Match[str]]:
    if len(text) > MAX_CHARS:
        raise TextTooLong(f"the text has {len(text)} characters; at most {MAX_CHARS} are explained")
    words = [*WORD.finditer(text)]
    if len(words) > MAX_WORDS:
        raise TextTooLong(f"the text has {len(words)} words; at most {MAX_WORDS} are explained")
    return words


def without(word: re.Match[str]) -> str:
    """The text without this word of it, and without the space before or after the word."""
    before, after = word.string[: word.start()], word.string[word.end() :]
    return before[:-1] + after if before[-1:].isspace() else before + after[1:]


def contributions(
    words: Sequence[re.Match[str]],
    whole: Prediction,
    others: Sequence[Outcome],
    *,
    multi_label: bool,
) -> list[Word]:
    """For each word: how much lower the score of the whole text's label is without it."""
    # Without its only word, a text is empty: then the score of a model that knows nothing.
    unknown = 0.5 if multi_label else 1 / len(whole["scores"])
    explained: list[Word] = []
    for word, outcome in zip(words, others, strict=True):
        if isinstance(outcome, EmptyText):
            score = unknown
        elif isinstance(outcome, ServiceError):
            raise outcome
        else:
            score = outcome["scores"][whole["label"]]
        start, end = word.span()
        difference = whole["score"] - score
        explained.append({"start": start, "end": end, "word": word[0], "contribution": difference})
    return explained


ADAPTER = Adapter(router.routes)
