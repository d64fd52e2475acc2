"""GET /info: whether the logits of a text depend on its batch."""

import json
import platform
from pathlib import Path
from typing import cast

import pytest
from fastapi import FastAPI

from app.engine.machine.gpu import CUDA
from app.engine.model.bundle import MANIFEST
from tests.conftest import Serve
from tests.support.tiny_bundle import make_bundle, write_manifest


def test_info_claims_only_what_was_proven(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fp32 and int8 on x86 CPUs, whose bits the property tests compare; not fp16, arm64 or GPUs."""
    client = serve()
    assert client.get("/info").json()["batch_invariant"] is True
    with monkeypatch.context() as arm:
        arm.setattr(platform, "machine", lambda: "aarch64")
        assert client.get("/info").json()["batch_invariant"] is None
    cast(FastAPI, client.app).state.service.models.classifier(None).model.provider = CUDA
    assert client.get("/info").json()["batch_invariant"] is None
    half = make_bundle(tmp_path / "half")
    variants = json.loads((half / MANIFEST).read_text(encoding="utf-8"))["variants"]
    write_manifest(half, variants={"fp16": variants["fp32"]})
    info = serve(model=(half,), precision="fp16").get("/info").json()
    assert info["batch_invariant"] is None
