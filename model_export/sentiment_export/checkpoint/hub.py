"""Requests to the hub: retries, and one-line explanations of failures."""

import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import requests
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from sentiment_service.errors import first_line

# What is raised where nothing answers: by requests, and by the httpx of newer clients of the hub.
UNREACHABLE: tuple[type[Exception], ...] = (requests.RequestException,)
with suppress(ModuleNotFoundError):
    import httpx

    UNREACHABLE += (httpx.HTTPError,)
# What the hub's client raises, KeyError and TypeError where an answer is not that of a hub.
FAILURES: tuple[type[Exception], ...] = (
    OSError,
    RuntimeError,
    ValueError,
    KeyError,
    TypeError,
    *UNREACHABLE,
)
TRIES = 5
MAX_WAIT_S = 60.0

logger = logging.getLogger(__name__)
T = TypeVar("T")


def with_retries(call: Callable[[], T]) -> T:
    """Repeat the call while the hub is overloaded or a transfer is cut, ``TRIES`` times at most."""
    attempt = 1
    while True:
        try:
            return call()
        except (OSError, RuntimeError) as error:
            # "Not in the cache" hides the error of the request to the hub.
            cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None
            real = cause if isinstance(cause, Exception) else error
            wait_s = _wait_s(real, attempt)
            if wait_s is None or attempt == TRIES:
                raise real from None
        if wait_s:
            logger.warning("the hub is busy or the transfer was cut; trying again in %g s", wait_s)
        time.sleep(wait_s)
        attempt += 1


def is_outage(error: Exception) -> bool:
    """Whether the hub was unreachable, overloaded or failing, as opposed to refusing."""
    if isinstance(error, OfflineModeIsEnabled):
        return True
    status = _status(error)
    if status is None:
        return isinstance(error, UNREACHABLE)
    return status == 429 or status >= 500


def explain(error: Exception, repo_id: str, revision: str) -> str:
    """One line: what went wrong, and what the user can do."""
    hub, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    status = _status(error)
    request = None
    with suppress(RuntimeError):  # httpx, of an error without one
        request = getattr(error, "request", None)
    detail = first_line(error)
    if isinstance(error, OfflineModeIsEnabled):
        return (
            f"HF_HUB_OFFLINE is set, and {cache} has no complete copy of {repo_id} at {revision}; "
            "unset it to download one"
        )
    if isinstance(error, GatedRepoError):
        return (
            f"{repo_id} is gated; accept its conditions on {hub}/{repo_id} and set HF_TOKEN to a "
            "token of that account"
        )
    if status == 401 and request is not None and "Authorization" in request.headers:
        return (
            f"{hub} rejects the token; set HF_TOKEN to a valid one (it may have expired), or "
            "remove it for a public model"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{repo_id} has no revision {revision}; give a branch, a tag or a commit of it"
    if isinstance(error, RepositoryNotFoundError) or status == 401:
        return (
            f"there is no directory {repo_id}, and no model {repo_id} on {hub}; if it is private, "
            "set HF_TOKEN to a token that may read it"
        )
    if status == 403:
        return f"{hub} denies access to {repo_id}; set HF_TOKEN to a token that may read it"
    if status is not None and (status == 429 or status >= 500):
        return (
            f"{hub} is busy or fails (status {status}); run the same command again in a few "
            "minutes, or give a local directory"
        )
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return f"the download of {repo_id} was cut {TRIES} times; run the same command to resume it"
    if isinstance(error, (requests.exceptions.JSONDecodeError, KeyError, TypeError)):
        return f"{hub} does not answer like a model hub; check HF_ENDPOINT and the proxy"
    if isinstance(error, UNREACHABLE) and status is None:
        address = "/".join(str(request.url).split("/")[:3]) if request is not None else hub
        return (
            f"cannot reach {address} ({type(error).__name__}); check the network, the proxy "
            "(HTTPS_PROXY) and HF_ENDPOINT, or give a local directory"
        )
    errno = error.errno if isinstance(error, OSError) and status is None else None
    if errno or "No space left" in detail:  # a client not written in Python gives text only
        return (
            f"cannot write {repo_id} to the cache {cache}: "
            f"{os.strerror(errno) if errno else detail}; free some space there, or set HF_HOME to "
            "a directory on another disk"
        )
    return (
        f"cannot download {repo_id}: {detail}; run the same command again, and if that does not "
        f"help, set HF_HUB_DISABLE_XET=1 or delete {repo_id} from {cache}"
    )


def _wait_s(error: Exception, attempt: int) -> float | None:
    """Seconds to wait before the next attempt; None if another attempt cannot help."""
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return 1.0
    # The hub's client retries a 5xx itself and then raises a plain HTTPError, which is final.
    if not isinstance(error, HfHubHTTPError) or error.response is None or not is_outage(error):
        return None
    headers = error.response.headers
    asked = re.fullmatch(r"(\d+)", headers.get("Retry-After", "")) or re.search(
        r"\bt=(\d+)", headers.get("RateLimit", "")
    )
    return min(MAX_WAIT_S, float(asked[1]) if asked else 2.0**attempt)


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)
