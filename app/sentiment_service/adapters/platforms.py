"""Amazon SageMaker: GET /ping, GET /execution-parameters, and POST /invocations. Vertex AI: the
routes that it chooses with ``AIP_HEALTH_ROUTE`` and ``AIP_PREDICT_ROUTE``. KServe's protocol V1,
whose list of models is OpenAI's, too: /v1/models.
"""

import csv
import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec
from fastapi import APIRouter, Response
from pydantic import BaseModel

from sentiment_service import errors
from sentiment_service.adapters import forms
from sentiment_service.engine.classifier import Classifier
from sentiment_service.engine.step_thread import Steps
from sentiment_service.engine.text.text_tokenizer import Text
from sentiment_service.http import routes
from sentiment_service.http.pages import OWN_PATHS
from sentiment_service.http.routes import (
    HttpRequest,
    JsonAnswer,
    Route,
    TextRoute,
    media_type,
    read_body,
    read_bytes,
)
from sentiment_service.requests.limits import Paths, PathSet
from sentiment_service.requests.service import Adapter, Service
from sentiment_service.requests.validation import ClassifyRequest, parse
from sentiment_service.results import Outcome, item
from sentiment_service.settings.settings import Settings

# Not in our OpenAPI document: JSON Schema can neither say which field decides nor describe lines.
router = APIRouter(include_in_schema=False, route_class=Route)
text_router = APIRouter(include_in_schema=False, route_class=TextRoute)

Reader = Callable[[bytes, int], Text]  # of a line and its number, from 1

JOB_MEGABYTES = 100  # the requests of a transform job may together have at most so many
GROUP_RECORDS = 128  # the most that are classified together
# If a text has such an error, the whole request fails, and the platform sends it again.
TRY_AGAIN = (503, 504)
# A line of CSV whose last column begins with a quote that does not close.
OPEN_QUOTE = re.compile(rb'(?:(?:[^",][^,]*+|"[^"]*+(?:""[^"]*+)*+")?,)*+"[^"]*+(?:""[^"]*+)*+')


def read_json(line: bytes, number: int) -> Text:
    """The text or pair of a JSON value: a string, or an object with a text. Blank is empty."""
    if not line.strip():
        return ""
    text = forms.text_of_record(parse(line, f"line {number}"))
    if text is None:
        raise errors.InvalidRequest(f"line {number} must be {forms.ACCEPTED}")
    return text


class CsvReader:
    """Reads the lines of CSV, which has one column and no header.

    A line is answered by a line, so all lines of a quoted text with line breaks are refused: a part
    of it would get a label of its own.
    """

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._last = 0  # the number of the line that ends the quoted text
        self._closes = True  # whether a quote may still be closed

    def __call__(self, line: bytes, number: int) -> Text:
        if number > self._last and self._closes and OPEN_QUOTE.fullmatch(line):
            self._last = self._end(number)
        if number <= self._last:
            raise errors.InvalidRequest(
                f"line {number} is part of a quoted text with a line break; send such texts as "
                "application/jsonlines"
            )
        return _read_csv(line, number)

    def _end(self, number: int) -> int:
        """The number of the line that closes the quote of this one; 0 if none does."""
        for later in range(number, len(self._lines)):
            if not OPEN_QUOTE.fullmatch(b'"' + self._lines[later]):
                return later + 1
        self._closes = False  # a quote in a later line would end where this one does
        return 0


def _read_csv(line: bytes, number: int) -> Text:
    try:
        (columns,) = csv.reader([line.decode()], strict=True)
    except UnicodeDecodeError:
        raise errors.InvalidRequest(f"line {number} is not UTF-8") from None
    except (csv.Error, ValueError):
        raise errors.InvalidRequest(f"line {number} is not valid CSV") from None
    if len(columns) > 1:
        raise errors.InvalidRequest(
            f"line {number} has {len(columns)} columns; send one, and quote texts with commas"
        )
    return columns[0] if columns else ""


def write_json(outcome: Outcome) -> bytes:
    """The result or the error, as ``results`` of POST /classify has it."""
    return msgspec.json.encode(item(outcome))


def write_csv(outcome: Outcome) -> bytes:
    """Three columns: label, score, and the code of the error."""
    if isinstance(outcome, errors.ServiceError):
        columns = ["", "", outcome.code]
    else:
        columns = [outcome["label"], repr(outcome["score"]), ""]
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(columns)
    return line.getvalue().encode()


@dataclass(frozen=True, slots=True)
class Answers:
    """A form of answers: one for each line, ``join`` between them, ``ends`` around all of them."""

    media_type: str
    write: Callable[[Outcome], bytes]
    join: bytes = b"\n"
    ends: tuple[bytes, bytes] = (b"", b"\n")


JSON_LINES = Answers("application/jsonlines", write_json)
# By content type: what reads lines, given all of them, and how they are answered by default.
RECORDS: dict[str, tuple[Callable[[Sequence[bytes]], Reader], Answers]] = {
    "application/jsonlines": (lambda _: read_json, JSON_LINES),
    "application/jsonl": (lambda _: read_json, JSON_LINES),
    "application/x-ndjson": (lambda _: read_json, JSON_LINES),
    "text/csv": (CsvReader, Answers("text/csv", write_csv)),
}
# By the header Accept, whose first known media type counts.
ANSWERS = {
    **{kind: answers for kind, (_, answers) in RECORDS.items()},
    "application/json": Answers("application/json", write_json, join=b",", ends=(b"[", b"]")),
}
# A body in JSON has the form of the first of these fields that it has.
FORMS: dict[str, type[BaseModel]] = {
    "instances": forms.InstancesRequest,
    **{name: ClassifyRequest for name in ClassifyRequest.model_fields if name != "inputs"},
    "inputs": forms.TextClassification,
}


@router.get("/ping")
async def ping(request: HttpRequest) -> Response:
    """Succeeds, with an empty answer, while you can send traffic."""
    await request.exchange.service.check_ready()
    return Response()


@router.get("/execution-parameters")
async def execution_parameters(request: HttpRequest) -> dict[str, Any]:
    """How a batch transform job should call, unless it sets this itself."""
    service = request.exchange.service
    concurrent = service.models.classifiers.of(None).plan.runners
    megabytes = service.settings.max_body_bytes // 2**20
    return {
        "MaxConcurrentTransforms": concurrent,
        "BatchStrategy": "MULTI_RECORD",
        "MaxPayloadInMB": max(1, min(megabytes, JOB_MEGABYTES // concurrent)),
    }


@text_router.post("/invocations")
async def invocations(request: HttpRequest) -> Response:
    """Classify in the formats of Amazon SageMaker, and of the containers that run there.

    JSON Lines and CSV are answered line by line; blank and bad lines have their error in their
    place. In JSON, the fields decide: `inputs` alone is answered as by Hugging Face's containers,
    `inputs` with a field of `POST /classify` as there, and `instances` as by Vertex AI.
    """
    content_type = media_type(request)
    if content_type in RECORDS:
        reader, answers = RECORDS[content_type]
        accepted = request.headers.get("accept", "").lower().split(",")
        kinds = [kind.partition(";")[0].strip() for kind in accepted]
        answers = next((ANSWERS[kind] for kind in kinds if kind in ANSWERS), answers)
        return await answer_records(request, reader, answers)
    if content_type != "application/json":
        raise errors.UnsupportedMediaType(f"send one of: application/json, {', '.join(RECORDS)}")
    body = await read_body(request, forms.ByField(FORMS))
    match body:
        case forms.InstancesRequest():
            return await forms.answer_instances(request, body)
        case ClassifyRequest():
            return await routes.answer(request, body)
        case _:
            return await _as_container(request, cast(forms.TextClassification, body))


async def answer_records(
    request: HttpRequest, reader: Callable[[Sequence[bytes]], Reader], answers: Answers
) -> Response:
    """Classify the lines of the body. Blank and bad lines have their errors in their places."""
    service = request.exchange.service
    body = await read_bytes(request, empty="the body has no line")
    body = body.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n")
    most = service.settings.max_texts
    if (found := body.count(b"\n") + 1) > most:  # a line of one byte takes sixty in a list
        raise errors.TooManyTexts(f"there are {found} lines; at most {most} are accepted")
    lines = body.split(b"\n")
    read = reader(lines)
    classifier = service.models.classifiers.of(None)
    # So that no group has more tokens than one request may queue.
    whole = max(1, classifier.request_tokens // classifier.model.max_tokens)
    size = min(GROUP_RECORDS, classifier.answer_texts, whole)
    written: list[bytes] = []
    with classifier.in_use():  # a reload must not give the other groups to another model
        for start in range(0, len(lines), size):
            group = lines[start : start + size]
            outcomes = await _classified(request, classifier, read, group, start + 1)
            new = [answers.write(outcome) for outcome in outcomes]
            request.exchange.hold(sum(map(len, new)))
            written += new
    before, after = answers.ends
    return Response(before + answers.join.join(written) + after, media_type=answers.media_type)


def _texts(
    read: Reader, lines: Sequence[bytes], first: int
) -> Steps[list[Text | errors.ServiceError]]:
    texts: list[Text | errors.ServiceError] = []
    for number, line in enumerate(lines, first):
        try:
            texts.append(read(line.removesuffix(b"\r"), number))
        except errors.InvalidRequest as error:
            texts.append(error.again())  # the raised one has the stack's frames
        yield
    return texts


async def _classified(
    request: HttpRequest, classifier: Classifier, read: Reader, lines: Sequence[bytes], first: int
) -> list[Outcome]:
    """The outcome of each line. ``first`` is the number of the first line."""
    exchange = request.exchange
    texts = await exchange.in_steps(_texts(read, lines, first), sum(map(len, lines)))
    done = await exchange.classify_by(classifier, texts)
    for outcome in done.outcomes:
        if isinstance(outcome, errors.ServiceError) and outcome.status in TRY_AGAIN:
            raise outcome.again()
    return done.outcomes


async def _as_container(request: HttpRequest, body: forms.TextClassification) -> Response:
    """As Hugging Face's pipeline: the best label of each text, or with ``top_k`` a list of each.

    That of a single text stands alone.
    """
    parameters = body.parameters or forms.PipelineParameters()
    best = "top_k" not in parameters.model_fields_set
    if best and parameters.return_all_scores:
        raise errors.InvalidRequest(
            "parameters.return_all_scores is not served; send top_k: null for all labels"
        )
    ranked, done = await forms.best_labels(request, body)
    if best:
        return JsonAnswer([labels[0] for labels in ranked], done.server_timing)
    return JsonAnswer(ranked if isinstance(body.inputs, list) else ranked[0], done.server_timing)


models_router = APIRouter(
    prefix="/v1/models", tags=["compatibility"], route_class=forms.OpenAiRoute
)
# Not in our OpenAPI document: GET /v1/models/{name} would match it, too.
predict_router = APIRouter(prefix="/v1/models", include_in_schema=False, route_class=TextRoute)


@models_router.get("", operation_id="listModelsV1", response_model=None)
async def models(request: HttpRequest) -> dict[str, Any]:
    """OpenAI's list of models, and KServe's."""
    service = request.exchange.service
    names = [*service.models.classifiers]
    listed = [served_model(service, name) for name in names]
    return {"object": "list", "data": listed, "models": names}


@models_router.get("/{name}", operation_id="getModelV1", response_model=None)
async def model(request: HttpRequest) -> dict[str, Any]:
    """OpenAI's description of a model, and KServe's: succeeds while you can send traffic for it."""
    service = request.exchange.service
    asked = request.path_params["name"]
    if asked.endswith(":predict") and asked not in service.models.classifiers:
        raise errors.MethodNotAllowed("allowed here: POST", allowed=["POST"])
    classifier = service.models.classifiers.of(asked)
    service.lifecycle.check()
    await classifier.health.check_ready()
    name = classifier.model.name
    return {**served_model(service, name), "name": name, "ready": True}


@predict_router.post("/{name}:predict")
async def predict(request: HttpRequest) -> Response:
    """Labels, scores and logits, in the format of KServe's protocol V1 and of Vertex AI.

    A bad text has its error in its place.
    """
    asked = request.path_params.get("name")  # Vertex AI names no model
    name = request.exchange.service.models.classifiers.of(asked).model.name
    body = await read_body(request, forms.InstancesRequest)
    return await forms.answer_instances(request, body, model=name)


def served_model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "sentiment-service",
    }


ROUTE = re.compile(r"/[\w.~:@/-]*", re.ASCII)


def _configured(settings: Settings, others: Sequence[Adapter]) -> Adapter:
    """The routes that Vertex AI has chosen, too, but for those that answer as it expects anyway."""
    health_path, predict_path = _path("AIP_HEALTH_ROUTE"), _path("AIP_PREDICT_ROUTE")
    if predict_path in OWN_PATHS.admin:
        raise errors.UserError(
            f"AIP_PREDICT_ROUTE: {predict_path} needs an admin key; use /predict"
        )
    probes = [OWN_PATHS.probes, *(other.paths.probes for other in others)]
    routes = [*ADAPTER.routes]
    if health_path and not any(health_path in known for known in probes):
        routes.append(Route(health_path, ping, name="AIP_HEALTH_ROUTE", include_in_schema=False))
    if predict_path and not any(predict_path in other.instances for other in others):
        route = TextRoute(
            predict_path,
            predict,
            methods=["POST"],
            name="AIP_PREDICT_ROUTE",
            include_in_schema=False,
        )
        routes.append(route)
    probe = Paths(probes=PathSet({health_path} if health_path else ()))
    return replace(ADAPTER, routes=routes, paths=ADAPTER.paths | probe)


def _path(variable: str) -> str:
    path = os.environ.get(variable, "")
    if path and not ROUTE.fullmatch(path):
        raise errors.UserError(f"{variable}: must be a path such as /predict, not {path!r}")
    return path


ADAPTER = Adapter(
    [route for one in (router, text_router, models_router, predict_router) for route in one.routes],
    # The platform sends no key with GET.
    Paths(probes=PathSet({"/ping"}), open=PathSet({"/execution-parameters"})),
    instances=frozenset({"/invocations"}),
    configured=_configured,
)
