"""How errors of other libraries are quoted in our one-line messages."""


def first_line(error: Exception) -> str:
    """The first line of the error's message, or its ``repr`` when it has no message."""
    return next(iter(str(error).strip().splitlines()), repr(error))
