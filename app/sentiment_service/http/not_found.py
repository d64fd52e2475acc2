"""What answers a path that no route has: an error that names the nearest route."""

from collections.abc import Iterable, Sequence

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from sentiment_service import errors
from sentiment_service.http.routes import HttpExchange

# A wrong path and the nearest route begin with the same characters, at least so many. Only the
# first ones of a long path are looked at.
LEAST_COMMON, LONGEST_ASKED = 4, 200


async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":  # under another server than ours
        await WebSocketClose()(scope, receive, send)
        return
    raise not_found(scope["exchange"])


def not_found(exchange: HttpExchange) -> errors.NotFound:
    """The error of a path that no route has, with the nearest route."""
    if exchange.path == "/metrics":
        port = exchange.service.settings.metrics_port
        return errors.NotFound(f"the metrics are on port {port} (--metrics-port)")
    known = [(route.path, *sorted(route.methods or ())) for route in exchange.routes]
    paths = {path for path, *_ in known}
    near = nearest(known, exchange.verb, exchange.path)
    if near or "/classify" in paths:
        near = f"; the nearest is {near}" if near else "; POST /classify classifies texts"
    docs = "; /docs lists our routes" if "/docs" in paths else ""
    return errors.NotFound(f"no route has this path{near}{docs}")


def nearest(routes: Iterable[Sequence[str]], method: str, path: str) -> str:
    """The route that a wrong path probably means, with its method; empty if none is like it.

    ``routes`` are paths with their methods. The nearest is the end of the path, as behind a proxy's
    prefix, or begins like it. To compare all letters would take a millisecond, and there are floods
    of wrong paths.
    """
    asked = path[:LONGEST_ASKED].strip("/").lower().split("/")
    whole = f"/{'/'.join(asked)}/"
    best, found = (LEAST_COMMON - 1, True, 0), ""
    for route, *methods in routes:
        known = f"{route}/"
        same = len(known) if whole.endswith(known) else 1
        if same > 1 or known[:LEAST_COMMON] == whole[:LEAST_COMMON]:
            same = max(same, _same_begin(known.strip("/").split("/"), asked))
        if (score := (same, method in methods, -len(known))) > best:
            best, found = score, f"{methods[0]} {route}"
    return found


def _same_begin(known: Sequence[str], asked: Sequence[str]) -> int:
    """With how many characters both paths begin. A name in braces stands for any other."""
    same = 1
    for part, word in zip(known, asked, strict=False):
        if "{" not in part and part != word:
            pairs = enumerate(zip(part, word, strict=False))
            shorter = min(len(part), len(word))
            return same + next((n for n, (one, other) in pairs if one != other), shorter)
        same += len(word) + 1
    return same
