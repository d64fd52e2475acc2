"""The wheel that the tests of the project look into and install."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.serving import ROOT


@pytest.fixture(scope="session")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"]
    subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)], check=True
    )
    (path,) = folder.glob("sentiment_service-*.whl")
    return path
