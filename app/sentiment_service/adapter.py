"""What an adapter declares to the core: the formats of another server, or another protocol."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sentiment_service.limits import Paths
from sentiment_service.service import Service
from sentiment_service.settings.settings import Settings

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


class SideServer(Protocol):
    """A server of another protocol than HTTP, on the same event loop."""

    async def start(self) -> None:
        """Answer from now on."""

    async def stop(self, stop_by: float) -> None:
        """Finish the calls in progress; ``stop_by`` is on the clock ``time.monotonic``."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter. ``ADAPTERS`` in ``main.py`` names the modules whose ``ADAPTER`` it is.

    ``routes`` are HTTP's, of the class ``api.http_exchange.Route``; those at ``instances`` read
    Vertex AI's form. ``server`` makes a server on the event loop when the models are ready; it
    raises UserError if it cannot use its address. ``configured`` is for one that depends on the
    settings or on other adapters: it gets them, and returns the adapter to serve.
    """

    routes: "Sequence[BaseRoute]" = ()
    paths: Paths = field(default_factory=Paths)
    instances: Set[str] = frozenset()
    server: Callable[[Service], SideServer] | None = None
    configured: "Callable[[Settings, Sequence[Adapter]], Adapter] | None" = None
