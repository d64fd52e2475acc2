"""Asks the hub which commit a revision is now. The extra ``hub`` is not needed for that."""

import json
import os
import urllib.request
from urllib.parse import quote

from app.engine.model.bundle import HubCommit

HUB = "https://huggingface.co"
TIMEOUT_S = 5.0


def newest_commit(repository: str, revision: str) -> HubCommit | None:
    """The commit of a branch or tag on the hub; None if the hub does not answer, or is not asked.

    As in the hub's own client, HF_ENDPOINT is its address, HF_TOKEN a token, and HF_HUB_OFFLINE
    forbids to ask.
    """
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return None
    hub = os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB
    address = f"{hub}/api/models/{repository}/revision/{quote(revision, safe='')}"
    if not address.startswith(("https://", "http://")):
        return None
    token = os.environ.get("HF_TOKEN", "").strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            told = json.load(answer)
            return HubCommit(
                repo_id=repository, revision=told["sha"], date=told.get("lastModified")
            )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
