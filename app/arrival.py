"""What the HTTP server tells the API of a request, beside what ASGI has a place for."""

from collections.abc import Callable
from dataclasses import dataclass

# A client may send any word as its method, and each word would become a series in the metrics.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER_METHOD = "other"


@dataclass(slots=True)
class Arrival:
    """The ``arrival`` of a request's scope.

    ``at`` is when the head arrived, on the event loop's clock; under load it waits before it is
    read. ``complete`` says whether the whole body has arrived with it.
    """

    at: float
    complete: bool = False
    left: bool = False  # whether the client has closed the connection
    on_leaving: Callable[[], None] | None = None

    def leave(self) -> None:
        """The client has closed the connection."""
        self.left = True
        if self.on_leaving is not None:
            self.on_leaving()
