"""Where the engine's tests export their models."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the test session's exports, for ``checkpoints.exported``."""
    return tmp_path_factory.getbasetemp()
