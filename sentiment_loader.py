"""Finds our packages ``app`` and ``model_export``, whatever comes first on ``PYTHONPATH``.

Many projects call a package of their own ``app``. Importing this module loads the one that lies
beside it. What the processes of a cluster call or unpickle is therefore named by this module.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

# ONNX Runtime reads this when it is imported. Otherwise it writes telemetry to the home directory.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def on_node(name: str = "", *arguments: Any) -> Any:
    """Call ``name``, such as ``app.main.create_app``, in a process of a cluster.

    Ray's workers call this when they start, with nothing: before they unpickle anything, they have
    imported this module.
    """
    module, _, member = name.rpartition(".")
    return getattr(importlib.import_module(module), member)(*arguments) if module else None


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
