"""The service by a name that no other package has: its commands, and what programs import.

``sentiment_loader`` sees to it that ``app`` is ours, whatever else is called so.
"""

import importlib
from typing import TYPE_CHECKING, Any

import sentiment_loader  # noqa: F401 - before anything of app is imported

if TYPE_CHECKING:
    from app.config.settings import Settings as Settings
    from app.errors import ServiceError as ServiceError
    from app.errors import UserError as UserError
    from app.files.cluster.spark import classify as classify_frame
    from app.main import create_app as create_app
    from app.python import Classifier as Classifier
    from app.python import ItemError as ItemError
    from app.python import Prediction as Prediction

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

# What programs import from this module, and where it is. Each is loaded when it is asked for.
PUBLIC = {
    "Classifier": "app.python.Classifier",  # a model in this process
    "Prediction": "app.python.Prediction",
    "ItemError": "app.python.ItemError",
    "ServiceError": "app.errors.ServiceError",  # what a single bad text raises
    "UserError": "app.errors.UserError",  # what a model that cannot be used raises
    "Settings": "app.config.settings.Settings",
    "create_app": "app.main.create_app",  # a FastAPI application, for Ray Serve
    "classify_frame": "app.files.cluster.spark.classify",  # a DataFrame of Spark
}


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = PUBLIC[name].rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        from app.config.extras import missing_extra

        raise ModuleNotFoundError(str(missing_extra(error)), name=error.name) from error


def main() -> int:
    """The command ``sentiment``; returns its exit code."""
    from app.__main__ import main as run

    return run()


def export() -> int:
    """The command ``sentiment-export``; returns its exit code."""
    from model_export.cli import main as run

    return run()
