"""The bytes that request bodies hold, all together."""


class InflightBytes:
    """A number of bytes that may be taken and given back. For the event loop.

    What is taken is taken from ``within``, too, of which this is a part.
    """

    def __init__(self, limit: int, *, within: "InflightBytes | None" = None) -> None:
        self.limit = limit
        self.taken = 0
        self._within = within

    @property
    def left(self) -> int:
        """Bytes that may still be taken."""
        return self.limit - self.taken

    def take(self, size: int) -> bool:
        """Whether there was room for so many more."""
        if size > self.left or (self._within is not None and not self._within.take(size)):
            return False
        self.taken += size
        return True

    def give(self, size: int) -> None:
        """Give back what was taken."""
        self.taken -= size
        if self._within is not None:
            self._within.give(size)
