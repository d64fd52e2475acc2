"""Sentiment classification on ONNX Runtime: the service, and what programs import.

Each name is loaded when it is asked for: a program that classifies needs no web framework, and the
command handles signals before the imports that take long.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentiment_client import ItemError as ItemError
    from sentiment_client import Prediction as Prediction
    from sentiment_client import Results as Results

    from sentiment_service.errors import ServiceError as ServiceError
    from sentiment_service.errors import UserError as UserError
    from sentiment_service.files.spark import classify_frame as classify_frame
    from sentiment_service.main import create_app as create_app
    from sentiment_service.python import Classifier as Classifier
    from sentiment_service.settings.settings import Settings as Settings

# ONNX Runtime reads this when it is imported. Otherwise it writes telemetry to the home directory.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_MODULES = {
    "Classifier": "sentiment_service.python",  # a model in this process
    **dict.fromkeys(("Prediction", "ItemError", "Results"), "sentiment_client"),
    # What a single bad text raises, and what a model that cannot be used raises.
    **dict.fromkeys(("ServiceError", "UserError"), "sentiment_service.errors"),
    "Settings": "sentiment_service.settings.settings",
    "create_app": "sentiment_service.main",  # a FastAPI application, for Ray Serve
    "classify_frame": "sentiment_service.files.spark",  # a DataFrame of Spark
}
__all__ = (*_MODULES,)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        from sentiment_service.installation import missing_extra

        raise ModuleNotFoundError(str(missing_extra(error)), name=error.name) from error
    except ImportError as error:
        if error.name == "sentiment_client":
            raise ImportError(f"{error.path} is of another version: copy it again") from error
        raise
