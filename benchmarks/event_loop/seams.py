"""The functions at which the event loop's work is divided into parts."""

import importlib
import inspect
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

HTTP, ASGI, BODY, VALIDATION = "HTTP parse", "ASGI layers", "body", "validation"
CLASSIFIER, TOKENISE, BATCHER = "classifier", "tokenise", "batcher"
METRICS, ANSWER, LOG = "metrics", "answer", "access log"
PARTS = (HTTP, ASGI, BODY, VALIDATION, CLASSIFIER, TOKENISE, BATCHER, METRICS, ANSWER, LOG)

UVICORN = "uvicorn.protocols.http.httptools_impl"

# Module, function or method, and the part to which its CPU time belongs. The time in another
# function of this table belongs to that function's part alone.
SEAMS = (
    ("app.server.http_protocol", "HttpProtocol.data_received", HTTP),
    ("app.server.http_protocol", "HttpProtocol.on_response_complete", HTTP),
    ("app.server.turns", "Turns._next", HTTP),
    (UVICORN, "RequestResponseCycle.run_asgi", ASGI),
    ("app.api.body", "read_body", BODY),
    ("app.api.body", "checked", VALIDATION),
    ("app.exchange", "Exchange.classify", CLASSIFIER),
    ("app.engine.classifier", "Classifier._encode", TOKENISE),
    ("app.engine.batching.batcher", "MicroBatcher.check_admission", BATCHER),
    ("app.engine.batching.batcher", "MicroBatcher.submit", BATCHER),
    ("app.engine.batching.batcher", "MicroBatcher._deliver", BATCHER),
    ("app.observability.model_observer", "ModelObserver.predictions", METRICS),
    ("app.observability.model_observer", "ModelObserver.stages", METRICS),
    ("app.observability.model_observer", "ModelObserver.lag", METRICS),
    ("app.observability.metrics", "Metrics.observe_request", METRICS),
    ("app.engine.predictions", "outcomes_of", ANSWER),
    ("app.api.answers", "timing", ANSWER),
    ("app.api.answers", "JsonAnswer.__init__", ANSWER),
    (UVICORN, "RequestResponseCycle.send", ANSWER),  # with the system call
    ("app.observability.logs", "log_request", LOG),
)

Timed = Callable[[FunctionType, str], Callable[..., Any]]


class MissingSeam(Exception):
    """A function of the table does not exist."""


def find(module: str, name: str) -> tuple[ModuleType | type, FunctionType]:
    """The module or class that has the function, and the function.

    Raises:
        MissingSeam: the function does not exist, or is not a plain function.
    """
    try:
        owner: Any = importlib.import_module(module)
        *classes, last = name.split(".")
        for one in classes:
            owner = getattr(owner, one)
        function = inspect.getattr_static(owner, last)
    except (ImportError, AttributeError):
        function = None
    if not isinstance(function, FunctionType):
        raise MissingSeam(
            f"{module} has no function {name}; correct SEAMS in benchmarks/event_loop/seams.py"
        )
    return owner, function


def replace_all(timed: Timed) -> None:
    """Replace each function of the table by ``timed(function, part)``, wherever it is imported.

    Raises:
        MissingSeam: a function does not exist.
    """
    found = [(*find(module, name), part) for module, name, part in SEAMS]
    for owner, function, part in found:
        replacement = timed(function, part)
        modules = [module for name, module in sys.modules.items() if name.startswith("app.")]
        for holder in (owner, *modules):
            for name, value in list(vars(holder).items()):
                if value is function:
                    setattr(holder, name, replacement)
