"""The routes that Vertex AI chooses: ``AIP_HEALTH_ROUTE`` and ``AIP_PREDICT_ROUTE``."""

from collections.abc import Iterable

from fastapi import APIRouter, Response
from fastapi.routing import APIRoute

from app.api.body import read_body
from app.api.http_exchange import HttpRequest
from app.api.openapi import examples
from app.api.openapi.document import ERRORS, documented, documented_body, example
from app.api.protocols.instances import (
    InstancesRequest,
    InstancesResponse,
    answer_instances,
)
from app.api.routes import operations
from app.api.routing import Route
from app.config.platforms import VertexRoutes
from app.errors import NotReady, ShuttingDown, UserError
from app.limits import HEALTH

# Their own forms are different, so each request's body decides.
SHARED = ("/predict", "/invocations")


def router(chosen: VertexRoutes, routes: Iterable[APIRoute]) -> APIRouter:
    """The chosen routes that are not among our ``routes``.

    Raises:
        UserError: one of them has another purpose.
    """
    paths = {route.path for route in routes}
    vertex_router = APIRouter(tags=["compatibility"], route_class=Route)
    if (path := chosen.health) and path not in HEALTH:
        if path in paths:
            raise UserError(f"AIP_HEALTH_ROUTE: {path} is another route; use /health/ready")
        vertex_router.add_api_route(
            path,
            health,
            operation_id="checkVertex",
            responses=documented(NotReady, ShuttingDown),
            response_class=Response,
        )
    if (path := chosen.predict) and path not in SHARED:
        if path in {*paths, chosen.health}:
            raise UserError(f"AIP_PREDICT_ROUTE: {path} is another route; use /predict")
        vertex_router.add_api_route(
            path,
            predict,
            methods=["POST"],
            operation_id="predictVertex",
            response_model=InstancesResponse,
            responses={**example(examples.PREDICTIONS), **documented(*ERRORS)},
            openapi_extra=documented_body(InstancesRequest),
        )
    return vertex_router


async def health(request: HttpRequest) -> Response:
    """Succeeds while you can send traffic."""
    await operations.ready(request)
    return Response()


async def predict(request: HttpRequest) -> Response:
    """Labels, scores and logits, in the format of Vertex AI.

    A bad text has its error in its place.
    """
    return await answer_instances(request, await read_body(request, InstancesRequest))
