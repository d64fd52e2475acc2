"""An application whose start fails half-way."""

import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sentiment_service.engine.classifier import Classifier
from sentiment_service.engine.model.model import Model
from sentiment_service.main import create_app
from sentiment_service.settings.settings import Settings

from tests.conftest import SET_BY_HAND
from tests.support.serving import eventually
from tests.support.tiny_bundle import make_bundle


def _runner_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("runner-")}


def test_a_start_that_fails_leaves_no_thread(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first model's runners end when the second model cannot be started."""
    names = []

    def fail_at_the_second(
        classifier: Classifier, model: Model, *arguments: Any, **options: Any
    ) -> None:
        names.append(model.name)
        if len(names) == 2:
            raise MemoryError
        begin(classifier, model, *arguments, **options)

    begin = Classifier.__init__
    monkeypatch.setattr(Classifier, "__init__", fail_at_the_second)
    other = make_bundle(tmp_path / "other", name="other")
    app = create_app(Settings.model_validate({"model": (bundle, other), **SET_BY_HAND}))
    before = _runner_threads()
    with pytest.raises(MemoryError), TestClient(app):
        pass
    assert names == ["tiny", "other"]
    eventually(lambda: _runner_threads() <= before)  # they end on their own
