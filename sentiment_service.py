"""The service by a name that no other package has: its commands, and what programs import.

The package of the service is called ``app``, as many projects call their own. This module loads
the ``app`` that lies beside it, whatever comes first on ``PYTHONPATH``.
"""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.config.settings import Settings as Settings
    from app.files.cluster.spark import classify as classify_frame
    from app.main import create_app as create_app

__all__ = ("Settings", "classify_frame", "create_app")

HERE = Path(__file__).resolve().parent
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


def on_node(function: str = "", *arguments: Any) -> Any:
    """What the processes of Ray's nodes call; ``function`` is the name of one in ``app``.

    They import this module first, so ``app`` is ours there. Their workers call it when they start,
    with nothing, before they unpickle anything.
    """
    module, _, name = function.rpartition(".")
    return getattr(importlib.import_module(module), name)(*arguments) if module else None


def partition_classifier(*fields: Any) -> Any:
    """What Spark's workers unpickle. They import this module first, so ``app`` is ours there."""
    from app.files.cluster.spark import PartitionClassifier

    return PartitionClassifier(*fields)


def _load(package: str) -> None:
    """Let ``import`` find our package of this name, and no other.

    Raises:
        ImportError: another package of this name is imported already.
    """
    folder = HERE / package
    there = sys.modules.get(package)
    if there is None:
        spec = importlib.util.spec_from_file_location(
            package, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec  # noqa: S101 - a path of a Python file has one
        sys.modules[package] = importlib.util.module_from_spec(spec)  # __init__.py is empty
    elif folder not in map(Path.resolve, map(Path, there.__path__)):
        raise ImportError(
            f"sentiment_service has a package named {package!r}, and this process has imported "
            f"another one from {', '.join(there.__path__)}; use sentiment_service in a process "
            "of its own"
        )


for _package in ("app", "model_export"):
    _load(_package)
