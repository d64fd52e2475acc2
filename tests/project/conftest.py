"""The wheel that the tests of the project look into and install."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.serving import ROOT


@pytest.fixture(scope="session")
def wheel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without a network of the source distribution as a ZIP archive.

    So source distribution and archive are ways in, too, and hold all that a build needs.
    """
    folder = tmp_path_factory.mktemp("wheel")
    sdist = [sys.executable, "-m", "hatchling", "build", "--target", "sdist"]
    subprocess.run([*sdist, "--directory", str(folder)], cwd=ROOT, check=True)
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as tar:
        tar.extractall(folder / "source", filter="data")
    zipped = shutil.make_archive(str(folder / "source"), "zip", folder / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"]
    subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", str(folder), zipped], check=True
    )
    (path,) = folder.glob("sentiment_service-*.whl")
    return path
