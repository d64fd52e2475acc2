"""The service as a deployment of Ray Serve: ``serve run sentiment_serve:app``.

docs/scale.md says when not to use it. Needs Ray 2.60 and the service on every node.
"""

import math
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy
from sentiment_service import Settings, create_app

# CPUs of a replica. For Ray this is only a number: the settings make the service obey it.
CPUS = 2
# Predicted seconds in the queue of one replica, as in deploy/kubernetes/components/keda.
QUEUE_WAIT_S = 0.25


def replicas_for_queue(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Replicas for the predicted waits of all replicas, and a state that is not used.

    Without figures, the number of replicas stays.
    """
    waiting = context.aggregated_metrics.get("queue_wait_s", {})
    if not waiting:
        return context.target_num_replicas, {}
    return max(1, math.ceil(sum(waiting.values()) / QUEUE_WAIT_S)), {}


@serve.deployment(
    # Far more than are computed at a time: requests must reach the service's own queue, which
    # forms batches, knows the deadlines and refuses in time.
    max_ongoing_requests=500,
    # The rest is refused by Ray (503). Without a limit, it would wait in Ray without a deadline.
    max_queued_requests=100,
    ray_actor_options={"num_cpus": CPUS},
    graceful_shutdown_timeout_s=30,  # longer than the service's drain_ms
    health_check_period_s=5,
    health_check_timeout_s=10,
    autoscaling_config=AutoscalingConfig(
        min_replicas=1,
        max_replicas=10,
        upscale_delay_s=30,
        downscale_delay_s=300,
        policy=AutoscalingPolicy(policy_function=replicas_for_queue),
    ),
)
@serve.ingress()
class Sentiment:
    """One replica: the whole service, with its queue."""

    def __init__(self) -> None:
        """Load the model that the settings choose (``SENTIMENT_MODEL`` and others)."""
        self._app = create_app(Settings(runners=CPUS, threads=1))
        self._service = self._app.state.service

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app

    async def check_health(self) -> None:
        """Ray replaces the replica after three failures in a row."""
        await self._service.models.check_ready()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """The predicted wait in the queue, for ``replicas_for_queue``."""
        families = self._service.metrics.queue_wait_seconds.collect()
        return {"queue_wait_s": sum(one.value for family in families for one in family.samples)}


app = Sentiment.bind()  # type: ignore[attr-defined]
