"""Azure Language's sentiment analysis: version 3.1, and /language/:analyze-text of later ones."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from sentiment_service import errors
from sentiment_service.adapters import documents as shared
from sentiment_service.http.routes import HttpRequest, JsonAnswer, read_body
from sentiment_service.requests.service import Adapter
from sentiment_service.requests.validation import checked

# Versions have different names for the first, and people write them in different cases.
Unit = Literal["textelement_v8", "textelements_v8", "unicodecodepoint", "utf16codeunit"]
UNITS = {"unicodecodepoint": "characters", "utf16codeunit": "utf-16"}
CODES = {401: "401", 404: "NotFound", 429: "429", 503: "ServiceUnavailable"}


def _documents(value: Any) -> dict[str, shared.Document]:
    if not isinstance(value, list) or not value:
        raise PydanticCustomError("documents", "must be a list of at least one document")
    documents: dict[str, shared.Document] = {}
    for place, one in enumerate(value):
        name = one.get("id") if isinstance(one, dict) else None
        # No half of a surrogate pair either, which the answer could not hold.
        readable = isinstance(name, str) and name.encode(errors="ignore").decode()
        if not isinstance(name, str) or name != readable or name in documents:
            fault = "must be objects, each with another string as id; see place {place}, from 0"
            raise PydanticCustomError("documents", fault, {"place": place})
        text, language = one.get("text"), one.get("language")
        if not isinstance(text, str) or not isinstance(language, str | None):
            text, language = errors.InvalidRequest("text and language must be strings"), None
        documents[name] = shared.Document(text, language or None)
    return documents


class Documents(BaseModel):
    documents: Annotated[dict[str, shared.Document], PlainValidator(_documents)]


class Parameters(BaseModel):
    """How to answer; others, such as loggingOptOut, are ignored."""

    unit: Annotated[Unit, BeforeValidator(lambda name: str(name).lower())] = Field(
        "textelement_v8", alias="stringIndexType"
    )
    version: str = Field("latest", validation_alias=AliasChoices("modelVersion", "model-version"))
    opinions: bool = Field(False, alias="opinionMining")
    statistics: bool = Field(False, alias="showStats")


class AnalyzeText(BaseModel):
    kind: Literal["SentimentAnalysis"]
    input: Documents = Field(alias="analysisInput")
    parameters: Parameters = Field(Parameters.model_validate({}))


class AzureRoute(shared.CloudRoute):
    key = "Ocp-Apim-Subscription-Key"

    @staticmethod
    def failure(kind: type[errors.ServiceError], detail: str) -> Mapping[str, Any]:
        blamed = "InvalidRequest" if kind.status < 500 else "InternalServerError"
        inner = {"code": kind.__name__, "message": detail}
        code = CODES.get(kind.status, blamed)
        return {"error": {"code": code, "message": detail, "innererror": inner}}


router = APIRouter(tags=["compatibility"], route_class=AzureRoute)


@router.post("/text/analytics/v3.1/sentiment", operation_id="classifyAzureV31")
async def sentiment(request: HttpRequest) -> Response:
    """Azure Language's sentiment analysis, version 3.1."""
    parameters = checked(dict(request.query_params), Parameters)
    body = await read_body(request, Documents)
    return JsonAnswer(await _results(request, body.documents, parameters))


@router.post("/language/:analyze-text", operation_id="classifyAzure")
async def analyze_text(request: HttpRequest) -> Response:
    """Azure Language's sentiment analysis, versions from 2022-05-01 on."""
    shown = checked(dict(request.query_params), Parameters).statistics
    body = await read_body(request, AnalyzeText)
    parameters = body.parameters.model_copy(update={"statistics": shown})
    results = await _results(request, body.input.documents, parameters)
    return JsonAnswer({"kind": "SentimentAnalysisResults", "results": results})


async def _results(
    request: HttpRequest, documents: dict[str, shared.Document], parameters: Parameters
) -> dict[str, Any]:
    if parameters.opinions:
        raise errors.InvalidRequest("opinionMining is not done here; leave it out, or send false")
    model = None if parameters.version == "latest" else parameters.version
    write = partial(_document, parameters=parameters)
    judged = await shared.judge(request, [*documents.values()], write, model=model)
    done, failed = [], []
    for name, one in zip(documents, judged, strict=True):
        if isinstance(one, errors.ServiceError):
            failed.append({"id": name, **AzureRoute.failure(type(one), one.detail)})
        else:
            done.append({"id": name, **one})
    version = request.exchange.model
    answer: dict[str, Any] = {"documents": done, "errors": failed, "modelVersion": version}
    if parameters.statistics:
        answer["statistics"] = {
            "documentsCount": len(documents),
            "validDocumentsCount": len(done),
            "erroneousDocumentsCount": len(failed),
            "transactionsCount": sum(one["statistics"]["transactionsCount"] for one in done),
        }
    return answer


def _document(judged: shared.Judged, parameters: Parameters) -> dict[str, Any]:
    unit = UNITS.get(parameters.unit, shared.CLUSTERS)
    chars = shared.Places(judged.text, unit).at(len(judged.text))
    statistics = {"charactersCount": chars, "transactionsCount": math.ceil(chars / 1_000)}
    return {
        "sentiment": judged.label,
        "confidenceScores": judged.mean_scores,
        **({"statistics": statistics} if parameters.statistics else {}),
        "sentences": [
            {
                "sentiment": sentence["label"],
                "confidenceScores": shared.scores_of(sentence),
                "offset": start,
                "length": length,
                "text": text,
            }
            for sentence, text, start, length in judged.parts(unit)
        ],
        "warnings": [
            {"code": code, "message": f"the model may be wrong: {code}"}
            for code in judged.whole.get("warnings", ())
        ],
    }


ADAPTER = Adapter(router.routes)
