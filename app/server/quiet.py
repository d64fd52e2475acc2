"""When a service that stops has no more clients who are about to connect or to send."""

import time

# When the server stops, it closes what has been silent for this long. It does not close earlier,
# because the client might be about to send a request.
QUIET_S = 0.5
# The share of drain-ms after which the listeners close, even if clients still connect.
ACCEPTING_SHARE = 0.5
LOOK_S = 0.05  # between two checks of the connections


class Quiet:
    """Tells for how long nothing has come, by a number that grows with whatever comes."""

    def __init__(self) -> None:
        self._heard = -1
        self._since = 0.0

    def seconds(self, heard: int) -> float:
        """For how many seconds the number has been what it is now."""
        now = time.monotonic()
        if heard != self._heard:
            self._heard, self._since = heard, now
        return now - self._since
