"""How many CPUs each actor of a Ray cluster gets, and how many actors there are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentiment_service.config.settings import Settings
from sentiment_service.errors import UserError

# The most CPUs of an actor, unless the settings ask for more: one process reads and tokenises for
# so many runners, which share one copy of the weights.
ACTOR_CPUS = 4


@dataclass(frozen=True)
class Share:
    """What each actor gets: CPUs and GPUs of its node; and how many actors the cluster has."""

    cpus: int
    gpus: int
    actors: int


def actor_share(settings: Settings, nodes: Sequence[Mapping[str, Any]]) -> Share:
    """The share that leaves the fewest CPUs idle, unless the settings say how many to use.

    Ray only counts CPUs: an actor may run on all of its node. So the actor's runners and threads
    are set to its share. ``nodes`` is what ``ray.nodes()`` returns.

    Raises:
        UserError: no node has so many CPUs, or CUDA was asked for and none has a GPU.
    """
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    wanted = (settings.runners or 1) * (settings.threads or 1)
    if settings.device == "cuda":
        gpu_nodes = [(int(r.get("GPU", 0)), int(r.get("CPU", 0))) for r in resources]
        shares = [cpus // gpus for gpus, cpus in gpu_nodes if 0 < gpus <= cpus]
        if not shares:
            raise UserError(
                "CUDA was requested, but no node of the cluster has a GPU and a CPU for it"
            )
        size = max(wanted, min(ACTOR_CPUS, *shares))
        return Share(size, 1, sum(min(gpus, cpus // size) for gpus, cpus in gpu_nodes))
    cpu_counts = [int(r.get("CPU", 0)) for r in resources]
    sizes = [wanted] if settings.runners or settings.threads else range(1, ACTOR_CPUS + 1)
    used, size = max((sum(n // size * size for n in cpu_counts), size) for size in sizes)
    if not used:
        raise UserError(f"no node of the cluster has {size} CPUs, which one actor needs")
    return Share(size, 0, used // size)
