"""AWS Comprehend's sentiment: POST / with the header X-Amz-Target (JSON 1.1)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field
from starlette.routing import Match
from starlette.types import Scope

from sentiment_service import errors
from sentiment_service.adapters import documents as shared
from sentiment_service.http.routes import HttpRequest, JsonAnswer, read_bytes, validated
from sentiment_service.requests.service import Adapter

PREFIX = "Comprehend_20171127"
# By our errors' codes: what its clients raise.
EXCEPTIONS = {
    "unauthorized": "UnrecognizedClientException",
    "text_too_long": "TextSizeLimitExceededException",
    "payload_too_large": "TextSizeLimitExceededException",
    "too_many_texts": "BatchSizeLimitExceededException",
    "overloaded": "TooManyRequestsException",
    "rate_limited": "TooManyRequestsException",
}


class DetectSentiment(BaseModel):
    text: str = Field(alias="Text")
    language: str = Field(alias="LanguageCode")


class BatchDetectSentiment(BaseModel):
    texts: list[Any] = Field(alias="TextList", min_length=1)
    language: str = Field(alias="LanguageCode")


def _exception(kind: type[errors.ServiceError]) -> str:
    if issubclass(kind, shared.UnsupportedLanguageCode):
        return "UnsupportedLanguageException"
    blamed = "InvalidRequestException" if kind.status < 500 else "InternalServerException"
    return EXCEPTIONS.get(kind.code, blamed)


class ComprehendRoute(shared.CloudRoute):
    """A route that a header names, whose errors have the members that AWS' clients read.

    Its path in lists of routes is not the one that it answers, which is another route's, too.
    """

    key = "the access key id"
    id_header = b"x-amzn-requestid"

    def __init__(self, path: str, *args: Any, **options: Any) -> None:
        super().__init__(path, *args, **options)
        self.path_regex = re.compile("^/$")

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if not any(name == b"x-amz-target" for name, _ in scope.get("headers", ())):
            return Match.NONE, {}
        return super().matches(scope)

    @staticmethod
    def failure(kind: type[errors.ServiceError], detail: str) -> Mapping[str, Any]:
        return {"__type": _exception(kind), "message": detail}


router = APIRouter(tags=["compatibility"], route_class=ComprehendRoute)


@router.post(f"/#X-Amz-Target={PREFIX}", operation_id="classifyComprehend")
async def comprehend(request: HttpRequest) -> Response:
    """AWS Comprehend's DetectSentiment and BatchDetectSentiment, at `/`, by `X-Amz-Target`."""
    match request.headers["x-amz-target"].removeprefix(f"{PREFIX}."):
        case "DetectSentiment":
            one = await validated(request, await read_bytes(request), DetectSentiment)
            (answer,) = await _sentiments(request, [one.text], one.language)
            if isinstance(answer, errors.ServiceError):
                raise answer
            return JsonAnswer(answer)
        case "BatchDetectSentiment":
            many = await validated(request, await read_bytes(request), BatchDetectSentiment)
            return JsonAnswer(_batch(await _sentiments(request, many.texts, many.language)))
    raise errors.InvalidRequest(
        f"X-Amz-Target must be {PREFIX}.DetectSentiment or {PREFIX}.BatchDetectSentiment"
    )


async def _sentiments(
    request: HttpRequest, texts: Sequence[Any], language: str
) -> list[dict[str, Any] | errors.ServiceError]:
    no_text = errors.InvalidRequest("the text must be a string")
    documents = [
        shared.Document(text if isinstance(text, str) else no_text, language) for text in texts
    ]
    return await shared.judge(request, documents, _sentiment)


def _sentiment(judged: shared.Judged) -> dict[str, Any]:
    """The model's scores of the whole text, less what the sentences say against each other.

    Mixed is twice the smaller of two sums: the scores of the positive sentences and those of the
    negative ones, each divided by the number of sentences.
    """
    sums = {"positive": 0.0, "negative": 0.0, "neutral": 0.0}
    for sentence in judged.sentences:
        sums[sentence["label"]] += sentence["score"] / len(judged.sentences)
    mixed = 2 * min(sums["positive"], sums["negative"])
    scores = {label: (1 - mixed) * s for label, s in shared.scores_of(judged.whole).items()}
    scores["mixed"] = mixed
    return {
        "Sentiment": max(scores, key=scores.__getitem__).upper(),
        "SentimentScore": {label.capitalize(): score for label, score in scores.items()},
    }


def _batch(answers: list[dict[str, Any] | errors.ServiceError]) -> dict[str, Any]:
    done, failed = [], []
    for index, answer in enumerate(answers):
        if isinstance(answer, errors.ServiceError):
            code = _exception(type(answer))
            failed.append({"Index": index, "ErrorCode": code, "ErrorMessage": answer.detail})
        else:
            done.append({"Index": index, **answer})
    return {"ResultList": done, "ErrorList": failed}


ADAPTER = Adapter(router.routes)
