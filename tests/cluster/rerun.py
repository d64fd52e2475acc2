"""A script that goes on in an environment of its own."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def rerun_with(module: str, requirements: list[str]) -> None:
    """Start this script again where it can import ``module``, unless it can. Does not return then.

    The other environment lacks what the tests import, so nothing of them is imported there.
    """
    if find_spec(module) is None:
        from tests.support.own_environment import interpreter

        python = interpreter(f"check-{module}", requirements)
        variables = {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
        os.execve(python, [str(python), *sys.argv], os.environ | variables)  # noqa: S606
