"""GET /info: whether the logits of a text depend on its batch."""

import json
from pathlib import Path
from typing import cast

from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.engine.machine.gpu import CUDA
from app.engine.model.bundle import MANIFEST
from tests.conftest import Serve
from tests.support.tiny_bundle import make_bundle, write_manifest


def test_info_claims_it_on_cpus(serve: Serve) -> None:
    """The property tests compare bits of fp32 and int8 on CPUs."""
    assert serve().get("/info").json()["batch_invariant"] is True


def test_info_claims_nothing_of_fp16(serve: Serve, tmp_path: Path) -> None:
    """It has not been measured for fp16."""
    bundle = make_bundle(tmp_path / "half")
    variants = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))["variants"]
    write_manifest(bundle, variants={"fp16": variants["fp32"]})
    client = serve(model=(bundle,), precision="fp16")
    assert client.get("/info").json()["batch_invariant"] is None


def test_info_claims_nothing_of_gpus(client: TestClient) -> None:
    """It has not been measured on a GPU, in any precision."""
    model = cast(FastAPI, client.app).state.service.models.classifier(None).model
    model.provider = CUDA
    assert client.get("/info").json()["batch_invariant"] is None
