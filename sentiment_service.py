"""The service by a name that no other package has: its commands, and what programs import.

``sentiment_loader`` sees to it that ``app`` is ours, whatever else is called so.
"""

import importlib
from typing import TYPE_CHECKING, Any

import sentiment_loader  # noqa: F401 - before anything of app is imported

if TYPE_CHECKING:
    from app.config.settings import Settings as Settings
    from app.files.cluster.spark import classify as classify_frame
    from app.main import create_app as create_app

__all__ = ("Settings", "classify_frame", "create_app")

# What programs import from this module, and where it is. Each is loaded when it is asked for.
PUBLIC = {
    "Settings": ("app.config.settings", "Settings"),
    "create_app": ("app.main", "create_app"),  # a FastAPI application, for Ray Serve
    "classify_frame": ("app.files.cluster.spark", "classify"),  # a DataFrame of Spark
}


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = PUBLIC[name]
    return getattr(importlib.import_module(module), attribute)


def main() -> int:
    """The command ``sentiment``; returns its exit code."""
    from app.__main__ import main as run

    return run()


def export() -> int:
    """The command ``sentiment-export``; returns its exit code."""
    from model_export.cli import main as run

    return run()
