"""Google Natural Language's sentiment analysis over REST, its versions v1 and v2."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from fastapi import APIRouter, Response
from pydantic import AliasChoices, BaseModel, BeforeValidator, Field

from sentiment_service import errors
from sentiment_service.adapters import documents as shared
from sentiment_service.http.routes import HttpRequest, JsonAnswer, Route, read_body
from sentiment_service.requests.service import Adapter

# By google.rpc.Code; every other error is INTERNAL, or where the client is to blame the first.
STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
# Google's client sends their numbers, which are these names' places; people write the names.
Type = Literal["TYPE_UNSPECIFIED", "PLAIN_TEXT", "HTML"]
Encoding = Literal["NONE", "UTF8", "UTF16", "UTF32"]
UNITS = {"UTF8": "bytes", "UTF16": "utf-16", "UTF32": "characters"}


def _named(names: Any) -> BeforeValidator:
    numbers = dict(enumerate(get_args(names)))
    return BeforeValidator(lambda value: numbers.get(value, value) if type(value) is int else value)


class GoogleDocument(BaseModel):
    """A document; without a type, it is taken for plain text."""

    content: str | None = None
    type: Annotated[Type, _named(Type)] = "PLAIN_TEXT"
    language: str = Field(
        "", validation_alias=AliasChoices("languageCode", "language_code", "language")
    )
    address: str = Field("", validation_alias=AliasChoices("gcsContentUri", "gcs_content_uri"))


class AnalyzeSentiment(BaseModel):
    document: GoogleDocument
    encoding: Annotated[Encoding, _named(Encoding)] = Field(
        "NONE", validation_alias=AliasChoices("encodingType", "encoding_type")
    )


class Unavailable(errors.Overloaded):
    """Google's clients send a request again after this status, but not after 429."""

    status = 503


class GooglePath(Route):
    """A route that its path with two slashes in front names, too.

    Google's client asks for it so if its ``api_endpoint`` ends with a slash.
    """

    def __init__(self, path: str, *args: Any, **options: Any) -> None:
        super().__init__(path, *args, **options)
        self.path_regex = re.compile(self.path_regex.pattern.replace("^", "^/?", 1))


class GoogleRoute(GooglePath, shared.CloudRoute):
    key = "x-goog-api-key or ?key="
    answered: ClassVar[shared.Kinds] = {
        **shared.CloudRoute.answered,
        errors.Overloaded: Unavailable,
    }

    @staticmethod
    def failure(kind: type[errors.ServiceError], detail: str) -> Mapping[str, Any]:
        status = STATUSES.get(kind.status, "INVALID_ARGUMENT" if kind.status < 500 else "INTERNAL")
        return {"error": {"code": kind.status, "message": detail, "status": status}}


router = APIRouter(tags=["compatibility"], route_class=GoogleRoute)


@router.post("/v1/documents:analyzeSentiment", operation_id="classifyGoogleV1")
async def analyze_v1(request: HttpRequest) -> Response:
    """Google Natural Language's sentiment analysis, version 1."""
    answer, language, _ = await _answer(request)
    return JsonAnswer({**answer, "language": language})


@router.post("/v2/documents:analyzeSentiment", operation_id="classifyGoogleV2")
async def analyze_v2(request: HttpRequest) -> Response:
    """Google Natural Language's sentiment analysis, version 2."""
    answer, language, supported = await _answer(request)
    return JsonAnswer({**answer, "languageCode": language, "languageSupported": supported})


class OtherRoute(GooglePath):
    """A route of Google's other methods. Its client reads no other form of an error."""

    error_media_type = GoogleRoute.error_media_type
    error_members = staticmethod(GoogleRoute.error_members)


other_router = APIRouter(include_in_schema=False, route_class=OtherRoute)


@other_router.post("/{version}/documents:{method}")
async def other(request: HttpRequest) -> Response:
    """Refuse what is not sentiment."""
    raise errors.NotFound("only analyzeSentiment of Google's versions v1 and v2 is served here")


async def _answer(request: HttpRequest) -> tuple[dict[str, Any], str, bool]:
    """What both versions answer; the document's language, and whether it is the model's."""
    body = await read_body(request, AnalyzeSentiment)
    asked, unit = body.document, UNITS.get(body.encoding)
    if asked.address:
        raise errors.InvalidRequest("gcsContentUri is not read here; send the text as content")
    if asked.type == "HTML":
        raise errors.InvalidRequest("HTML is not read here; send the text as PLAIN_TEXT")
    if asked.content is None:
        raise errors.InvalidRequest("document.content is required")
    document = shared.Document(asked.content, asked.language or None)
    (judged,) = await shared.judge(request, [document], lambda judged: judged)
    if isinstance(judged, errors.ServiceError):
        raise judged
    sentences, magnitude = [], 0.0
    for sentence, text, start, _ in judged.parts(unit or "characters"):
        polarity = sentence["polarity"]
        magnitude += abs(polarity)
        sentences.append(
            {
                "text": {"content": text, "beginOffset": start if unit else -1},
                "sentiment": {"score": polarity, "magnitude": abs(polarity)},
            }
        )
    whole = {"score": judged.whole["polarity"], "magnitude": magnitude}
    language = asked.language or next(iter(judged.model.languages), "en")
    supported = "other_language" not in judged.whole.get("warnings", ())
    return {"documentSentiment": whole, "sentences": sentences}, language, supported


ADAPTER = Adapter([*router.routes, *other_router.routes])
