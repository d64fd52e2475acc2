"""Where the engine's tests export their models, and GPUs that they know."""

from pathlib import Path

import onnxruntime as ort
import pytest
from sentiment_service.engine.model.device import MACHINE_CODE


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the test session's exports, for ``checkpoints.exported``."""
    return tmp_path_factory.getbasetemp()


@pytest.fixture
def version_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs are known of this version of ONNX Runtime; that for CPUs may be ahead of CUDA's."""
    version = ort.__version__.rpartition(".")[0]
    monkeypatch.setitem(MACHINE_CODE, version, [*MACHINE_CODE.values()][-1])
