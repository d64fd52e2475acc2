"""Sentiment classification on ONNX Runtime: the service, and what programs import.

Each name is loaded when it is asked for: a program that classifies needs no web framework, and the
command handles signals before the imports that take long.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sentiment_service.errors import ServiceError as ServiceError
    from sentiment_service.errors import UserError as UserError
    from sentiment_service.files.spark import classify as classify_frame
    from sentiment_service.main import create_app as create_app
    from sentiment_service.python import Classifier as Classifier
    from sentiment_service.python import ItemError as ItemError
    from sentiment_service.python import Prediction as Prediction
    from sentiment_service.settings.settings import Settings as Settings

__all__ = (
    "Classifier",
    "ItemError",
    "Prediction",
    "ServiceError",
    "Settings",
    "UserError",
    "classify_frame",
    "create_app",
)

# ONNX Runtime reads this when it is imported. Otherwise it writes telemetry to the home directory.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_MODULES = {
    "Classifier": "python.Classifier",  # a model in this process
    "Prediction": "python.Prediction",
    "ItemError": "python.ItemError",
    "ServiceError": "errors.ServiceError",  # what a single bad text raises
    "UserError": "errors.UserError",  # what a model that cannot be used raises
    "Settings": "settings.settings.Settings",
    "create_app": "main.create_app",  # a FastAPI application, for Ray Serve
    "classify_frame": "files.spark.classify",  # a DataFrame of Spark
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _MODULES[name].rpartition(".")
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    except ModuleNotFoundError as error:
        from sentiment_service.installation import missing_extra

        raise ModuleNotFoundError(str(missing_extra(error)), name=error.name) from error
