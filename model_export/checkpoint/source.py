"""Where a checkpoint comes from: a directory, a hub cache, or a hub, downloaded into its cache."""

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import requests
from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils._validators import validate_repo_id

from app.errors import UserError
from model_export.checkpoint.layout import choose_files, shards
from model_export.errors import first_line

TRIES = 5
MAX_WAIT_S = 60.0
CACHED = "models--"  # what the directory of a model is called in a hub's cache
COMMIT = re.compile(r"[0-9a-f]{40}")

logger = logging.getLogger(__name__)
T = TypeVar("T")


def find_checkpoint(source: str, revision: str | None = None) -> Path:
    """The directory that holds a checkpoint's files, downloaded where they are not here yet.

    Args:
        source: a checkpoint directory, a model's directory in a hub cache, or a hub id.
        revision: branch, tag or commit of a hub's model; ``main`` unless given.

    Raises:
        UserError: there is no such checkpoint, or it cannot be downloaded.
    """
    if revision is not None and (not revision or ".." in revision or revision.startswith("/")):
        raise UserError(f"{revision!r} is not a revision; give a branch, a tag or a commit")
    path = Path(source)
    if source and path.is_dir():
        model = path.resolve()
        if model.name.startswith(CACHED) and (model / "snapshots").is_dir():
            return _of_cache(model, revision or constants.DEFAULT_REVISION)
        if revision is not None:
            raise UserError(
                f"{source} is a local directory, which has no revisions; leave --revision away"
            )
        return path
    if path.is_file():
        raise UserError(f"{source} is a file; give the checkpoint directory that holds it")
    try:
        validate_repo_id(source)
    except HFValidationError as error:
        raise UserError(
            f"{source!r} is neither a directory nor a hub id such as ORG/NAME"
        ) from error
    return _of_hub(source, revision or constants.DEFAULT_REVISION)


def origin(path: Path) -> tuple[str, str] | None:
    """Hub id and commit, if the path is a snapshot in a hub cache; only the path is looked at."""
    commit, snapshots, model = [*reversed(path.absolute().parts), "", "", ""][:3]
    if snapshots != "snapshots" or not model.startswith(CACHED) or not COMMIT.fullmatch(commit):
        return None
    return model.removeprefix(CACHED).replace("--", "/"), commit


def _of_cache(model: Path, revision: str) -> Path:
    snapshot = _snapshot(model, revision)
    if snapshot is None:
        refs = (path for path in (model / "refs").rglob("*") if path.is_file())
        held = [path.relative_to(model / "refs").as_posix() for path in refs]
        held += [path.name for path in (model / "snapshots").iterdir()]
        raise UserError(
            f"{model} has no revision {revision}; it holds {', '.join(sorted(held)) or 'none'}"
        )
    return snapshot


def _of_hub(repo_id: str, revision: str) -> Path:
    model = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo_id, repo_type="model")
    commit: str | None = None

    def fetch(name: str) -> Path:
        # Goes on where an earlier call, or an earlier process, was cut.
        return Path(_patiently(lambda: hf_hub_download(repo_id, name, revision=commit)))

    try:
        api = HfApi()
        info = _patiently(lambda: api.model_info(repo_id, revision=revision, timeout=30))
        if info.sha is None:
            raise TypeError("no commit")
        names, weights = choose_files((file.rfilename for file in info.siblings or ()), repo_id)
        commit = info.sha
        for name in names:
            fetch(name)
        # Weights come last, so that a snapshot which has them is whole.
        path = fetch(weights)
        for name in shards(path):
            fetch(name)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        why = _explain(error, repo_id, revision)
        # Files that were cut short are not papered over with an older commit.
        if commit is None and _is_outage(error):
            snapshot = _snapshot(model, revision)
            if snapshot is not None and _is_whole(snapshot):
                if not isinstance(error, OfflineModeIsEnabled):
                    logger.warning("%s; taking the copy in %s", why.split(";")[0], snapshot)
                return snapshot
        raise UserError(why) from error
    if revision != commit:  # as the hub's client notes it; without, offline use does not find it
        with contextlib.suppress(OSError):  # a whole cache may be read-only
            ref = model / "refs" / revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            ref.write_text(commit, encoding="utf-8")
    return path.parent


def _snapshot(model: Path, revision: str) -> Path | None:
    ref = model / "refs" / revision
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else revision
    snapshot = model / "snapshots" / commit
    return snapshot if COMMIT.fullmatch(commit) and snapshot.is_dir() else None


def _is_whole(snapshot: Path) -> bool:
    try:
        _, weights = choose_files((path.name for path in snapshot.iterdir()), str(snapshot))
        return all((snapshot / name).is_file() for name in shards(snapshot / weights))
    except UserError:
        return False


def _patiently(call: Callable[[], T]) -> T:
    """Call again where the hub asks for patience or a transfer was cut; a few times."""
    for attempt in range(1, TRIES + 1):
        try:
            return call()
        except (OSError, RuntimeError) as error:
            # "Not in the cache" hides the answer to the request for it.
            cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None
            real = cause if isinstance(cause, Exception) else error
            wait_s = _wait_s(real, attempt)
            if wait_s is None or attempt == TRIES:
                raise real from None
            if wait_s:
                logger.warning("the download is held up; trying again in %g s", wait_s)
            time.sleep(wait_s)
    raise AssertionError("the last attempt returns or raises")


def _wait_s(error: Exception, attempt: int) -> float | None:
    """Seconds until it is worth another try; None: it is not."""
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return 1.0
    # The client's own retries of a 5xx end in a plain HTTPError, which is final.
    if not isinstance(error, HfHubHTTPError) or error.response is None or not _is_outage(error):
        return None
    headers = error.response.headers
    named = re.fullmatch(r"(\d+)", headers.get("Retry-After", "")) or re.search(
        r"\bt=(\d+)", headers.get("RateLimit", "")
    )
    return min(MAX_WAIT_S, float(named[1]) if named else 2.0**attempt)


def _is_outage(error: Exception) -> bool:
    """Whether the hub could not be asked, or had no answer, rather than refused."""
    if isinstance(error, OfflineModeIsEnabled):
        return True
    status = _status(error)
    if status is None:
        return isinstance(error, requests.RequestException)
    return status == 429 or status >= 500


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


def _explain(error: Exception, repo_id: str, revision: str) -> str:
    """One line: what went wrong, and what helps."""
    hub, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    status = _status(error)
    request = getattr(error, "request", None)
    sent_token = request is not None and "Authorization" in request.headers
    detail = first_line(error)
    if isinstance(error, OfflineModeIsEnabled):
        return (
            f"HF_HUB_OFFLINE is set, and {cache} has no whole copy of {repo_id} at {revision}; "
            "unset it to download one"
        )
    if isinstance(error, GatedRepoError):
        return (
            f"{repo_id} is gated; accept its conditions on {hub}/{repo_id} and set HF_TOKEN to a "
            "token of that account"
        )
    if status == 401 and sent_token:
        return (
            f"{hub} refuses the token; set HF_TOKEN to a valid one (it may have expired), or "
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
    if status == 429:
        return (
            f"{hub} limits how often it may be asked (429); run the same command again in a few "
            "minutes, or set HF_TOKEN, which raises the limit"
        )
    if status is not None and status >= 500:
        return (
            f"{hub} is out of order ({status}); run the same command again later, or give a "
            "local directory"
        )
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return f"the download of {repo_id} was cut {TRIES} times; the same command resumes it"
    if isinstance(error, (requests.exceptions.JSONDecodeError, KeyError, TypeError)):
        return f"{hub} does not answer as a model hub does; check HF_ENDPOINT and the proxy"
    if isinstance(error, requests.RequestException) and status is None:
        place = "/".join(str(request.url).split("/")[:3]) if request is not None else hub
        return (
            f"cannot reach {place} ({type(error).__name__}); check the network, the proxy "
            "(HTTPS_PROXY) and HF_ENDPOINT, or give a local directory"
        )
    errno = error.errno if isinstance(error, OSError) and status is None else None
    if errno or "No space left" in detail:  # the latter from a client that is not Python
        return (
            f"cannot write {repo_id} to the cache {cache}: "
            f"{os.strerror(errno) if errno else detail}; make room there, or set HF_HOME to a "
            "directory on another disk"
        )
    return (
        f"cannot download {repo_id}: {detail}; run the same command again, and if that does not "
        f"help, set HF_HUB_DISABLE_XET=1 or delete {repo_id} from {cache}"
    )
