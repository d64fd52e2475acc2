"""What an adapter tells the core of itself: the formats of another server, or another protocol."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from app.limits import Paths
from app.service import Service

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


class SideServer(Protocol):
    """A server of another protocol than HTTP, on the same event loop."""

    async def start(self) -> None:
        """Answer from now on."""

    async def stop(self, stop_by: float) -> None:
        """Finish what is asked; ``stop_by`` is on the clock ``time.monotonic``."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter. ``ADAPTERS`` in ``main.py`` names the modules whose ``register`` returns it.

    ``routes`` are HTTP's, of the class ``app.api.http_exchange.Route``. ``server`` makes a server
    on the event loop when the models are ready; it raises UserError if it cannot use its address.
    """

    routes: "Sequence[BaseRoute]" = ()
    paths: Paths = field(default_factory=Paths)
    server: Callable[[Service], SideServer] | None = None
