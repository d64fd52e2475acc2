"""A script that goes on in an environment of its own."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def rerun_with(module: str, packages: str) -> None:
    """Start this script again where it can import ``module``, unless it can. Does not return then.

    ``packages`` is the name of a file of ``requirements/``. The other environment lacks what the
    tests import, so nothing of them is imported there.
    """
    if find_spec(module) is None:
        from checks.support.environments import python

        interpreter = python(Path(__file__).parent / "requirements" / packages, service=True)
        variables = {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
        os.execve(interpreter, [str(interpreter), *sys.argv], os.environ | variables)  # noqa: S606
