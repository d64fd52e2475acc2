"""Reloads of a model with another revision."""

from pathlib import Path
from typing import Any

import httpx2

from tests.support.tiny_bundle import write_manifest

ADMIN = {"authorization": "Bearer admin-key-1"}


def release(bundle: Path, revision: str) -> None:
    """Put another revision in place of the bundle, as a deployment would."""
    source = {"path": "made by a test", "revision": revision, "files": {}}
    write_manifest(bundle, source=source)


def reload(client: httpx2.Client, name: str = "tiny") -> httpx2.Response:
    """POST /models/{name}/reload with the admin key ``admin-key-1``."""
    return client.post(f"/models/{name}/reload", headers=ADMIN)


def revision_of(document: Any) -> str:
    """The model's revision in an answer to POST /classify, if each text has a label."""
    assert all(result["label"] for result in document["results"])
    return str(document["model"]["revision"])
