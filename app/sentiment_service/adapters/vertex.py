"""The routes that Vertex AI chooses: ``AIP_HEALTH_ROUTE`` and ``AIP_PREDICT_ROUTE``."""

import os
import re
from collections.abc import Sequence

from fastapi import APIRouter, Response

from sentiment_service.adapters.forms import InstancesRequest, answer_instances
from sentiment_service.errors import UserError
from sentiment_service.http.application import OWN_PATHS
from sentiment_service.http.body import read_body
from sentiment_service.http.exchange import HttpRequest, Route, TextRoute
from sentiment_service.requests.limits import Paths, PathSet
from sentiment_service.requests.service import Adapter
from sentiment_service.settings.settings import Settings

ROUTE = re.compile(r"/[\w.~:@/-]*", re.ASCII)


async def health(request: HttpRequest) -> Response:
    """Succeeds while you can send traffic."""
    await request.exchange.service.check_ready()
    return Response()


async def predict(request: HttpRequest) -> Response:
    """Labels, scores and logits, in the format of Vertex AI.

    A bad text has its error in its place.
    """
    return await answer_instances(request, await read_body(request, InstancesRequest))


def _configured(settings: Settings, others: Sequence[Adapter]) -> Adapter:
    """The routes that the platform has chosen, but for those that answer as it expects anyway."""
    health_path, predict_path = _path("AIP_HEALTH_ROUTE"), _path("AIP_PREDICT_ROUTE")
    if predict_path in OWN_PATHS.admin:
        raise UserError(f"AIP_PREDICT_ROUTE: {predict_path} needs an admin key; use /predict")
    probes = [OWN_PATHS.probes, *(other.paths.probes for other in others)]
    # Not in our OpenAPI document: the platform has its own description.
    hidden = APIRouter(include_in_schema=False)
    if health_path and not any(health_path in known for known in probes):
        hidden.add_api_route(
            health_path, health, name="AIP_HEALTH_ROUTE", route_class_override=Route
        )
    if predict_path and not any(predict_path in other.instances for other in others):
        hidden.add_api_route(
            predict_path,
            predict,
            methods=["POST"],
            name="AIP_PREDICT_ROUTE",
            route_class_override=TextRoute,
        )
    return Adapter(hidden.routes, Paths(probes=PathSet({health_path} if health_path else ())))


def _path(variable: str) -> str:
    path = os.environ.get(variable, "")
    if path and not ROUTE.fullmatch(path):
        raise UserError(f"{variable}: must be a path such as /predict, not {path!r}")
    return path


ADAPTER = Adapter(configured=_configured)
