"""Counts the bytes that all request bodies hold together."""


class InflightBytes:
    """A number of bytes that may be taken and given back. Use it only on the event loop.

    If ``within`` is given, this is a part of it: bytes taken here are taken there, too.
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
        """Take ``size`` bytes if there is room for them. Returns whether there was."""
        if size > self.left or (self._within is not None and not self._within.take(size)):
            return False
        self.taken += size
        return True

    def give(self, size: int) -> None:
        """Give back ``size`` bytes that were taken."""
        self.taken -= size
        if self._within is not None:
            self._within.give(size)
