"""What the client of a fault may see."""

from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass

# What a client saw, if it was not a status.
CORRECT, WRONG, LOST = "correct", "wrong", "no answer"
CLOSED = "closed"  # the server closed the connection instead of answering
DISCONNECTED = "disconnected"  # the client did
DONE = "done"  # the fault has no answer
KILLED = "its worker was killed"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: its share of all faults, what it does, and what its client may see."""

    share: float
    inflict: Callable[[], Awaitable[str]]
    expected: Set[str]
