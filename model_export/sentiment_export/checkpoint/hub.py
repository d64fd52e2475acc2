"""Fetches checkpoints and bundles from a model hub, and explains why it gave none."""

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from inspect import signature
from pathlib import Path
from ssl import SSLError
from typing import TypeVar

from huggingface_hub import HfApi, ModelInfo, constants, get_hf_file_metadata, hf_hub_download
from huggingface_hub.errors import (
    FileMetadataError,
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
from sentiment_service.atomic_files import atomic_directory
from sentiment_service.engine.model.bundle import MANIFEST, SIDE_FILES, Bundle, HubCommit, Precision
from sentiment_service.errors import UserError, first_line, system_error

from sentiment_export.checkpoint.config import check_task, read_config
from sentiment_export.checkpoint.layout import (
    CONFIG_FILE,
    DATES,
    DEFAULT_REVISION,
    GRAPH,
    check_revision,
    choose_files,
    commit_date,
    is_complete,
    snapshot_of,
    weight_files,
)
from sentiment_export.output import BUNDLE_FILES, check_bundle_output, is_bundle

# The error of the HTTP library below the hub's client: httpx2, httpx or requests, as it is of
# version 2, 1 or 0. Its subclasses say that nothing answers, and those named in CUT that a transfer
# has begun and was cut.
UNREACHABLE: type[Exception] = HfHubHTTPError.__mro__[HfHubHTTPError.__mro__.index(OSError) - 1]
CUT = ("RemoteProtocolError", "ReadError", "ChunkedEncodingError")
# What the hub's client raises, KeyError and TypeError where an answer is not that of a hub.
FAILURES = (OSError, RuntimeError, ValueError, KeyError, TypeError, UNREACHABLE)
NOT_A_HUB = (json.JSONDecodeError, KeyError, TypeError, FileMetadataError)
# The variable that names the certificates to trust, for those libraries.
CERTIFICATES = "REQUESTS_CA_BUNDLE" if "requests" in UNREACHABLE.__module__ else "SSL_CERT_FILE"
TRIES = 5
MAX_WAIT_S = 60.0
# Newer clients of the hub wait themselves before they ask again for a file, as long as it says.
CLIENT_WAITS = "retry_on_errors" in signature(get_hf_file_metadata).parameters

logger = logging.getLogger(__name__)
T = TypeVar("T")


def _download(repo_id: str, name: str, revision: str | None) -> Path:
    path = with_retries(
        lambda: hf_hub_download(repo_id, name, revision=revision), waits=not CLIENT_WAITS
    )
    return Path(path)


def with_retries(call: Callable[[], T], *, waits: bool = True) -> T:
    """Repeat the call while a transfer is cut and, where it ``waits``, while the hub is busy."""
    attempt = 1
    while True:
        try:
            return call()
        except (OSError, RuntimeError, UNREACHABLE) as error:
            # "Not in the cache" hides the error of the request to the hub.
            cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None
            real = cause if isinstance(cause, Exception) else error
            wait_s = _wait_s(real, attempt, waits=waits)
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
    return isinstance(error, UNREACHABLE) if status is None else status == 429 or status >= 500


def explain(error: Exception, repo_id: str, revision: str) -> str:
    """One line: what went wrong, and what the user can do."""
    hub, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    status = _status(error)
    request = None
    with suppress(RuntimeError):  # httpx, of an error without one
        request = getattr(getattr(error, "response", None) or error, "request", None)
    url = str(request.url) if request is not None else hub
    address = "/".join(url.split("/")[:3]) if "://" in url else hub
    detail = first_line(error)
    other = f"a directory: there is none named {repo_id}"
    if isinstance(error, OfflineModeIsEnabled):
        variable = "HF_HUB" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS"
        return (
            f"{variable}_OFFLINE is set, and {cache} has no complete copy of {repo_id} at "
            f"{revision}; unset it to download one, or give {other}"
        )
    if isinstance(error, GatedRepoError):
        return (
            f"{repo_id} is gated; accept its conditions on {hub}/{repo_id} and set HF_TOKEN to a "
            "token of that account"
        )
    refused = status == 401 and request is not None and "Authorization" in request.headers
    if refused or isinstance(error, UnicodeEncodeError):  # a character that no header can have
        return (
            f"the token is not one for {hub}; set HF_TOKEN to a valid one (it may have expired), "
            "or remove it for a public model"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"{repo_id} has no revision {revision}; give a branch, a tag or a commit of it"
    if isinstance(error, RepositoryNotFoundError) or status == 401:
        return (
            f"there is no directory {repo_id}, and no model {repo_id} on {hub}; if it is private, "
            "set HF_TOKEN to a token that may read it"
        )
    # The hub hands out large files elsewhere.
    if status == 403 and not hub.lower().startswith(address.lower()):
        return (
            f"{address} denies access to {repo_id}; check the network and the proxy (HTTPS_PROXY), "
            f"or give {other}"
        )
    if status == 403:
        return (
            f"{hub} denies access to {repo_id}; set HF_TOKEN to a token that may read it, or give "
            f"{other}"
        )
    if status is not None and (status == 429 or status >= 500):
        return (
            f"{address} is busy or fails (status {status}); run the same command again in a few "
            f"minutes, or give {other}"
        )
    if type(error).__name__ in CUT:
        return f"the download of {repo_id} was cut {TRIES} times; run the same command again"
    # 416: the cache's part of a file is longer than the file.
    if status not in (None, 416) or isinstance(error, NOT_A_HUB):
        which = f" (status {status})" if status is not None else ""
        return (
            f"{address} does not answer like a model hub{which}; check HF_ENDPOINT and the proxy, "
            f"or give {other}"
        )
    if "CERTIFICATE_VERIFY_FAILED" in detail:
        why = detail.rpartition("failed: ")[2].partition(" (_ssl")[0]
        return (
            f"the certificate of {address} is not trusted ({why}); let {CERTIFICATES} name a file "
            "with that of its issuer, such as your company"
        )
    if isinstance(error, UNREACHABLE) and status is None:
        return (
            f"cannot reach {address} ({type(error).__name__}); check the network, the proxy "
            f"(HTTPS_PROXY) and HF_ENDPOINT, or give {other}"
        )
    unreadable = (FileNotFoundError, IsADirectoryError, PermissionError, SSLError)
    if isinstance(error, unreadable) and error.errno and not error.filename:
        return (
            f"the certificates in {CERTIFICATES}, {os.environ.get(CERTIFICATES)}, cannot be used: "
            f"{detail}; let it name a file of certificates, or unset it"
        )
    if isinstance(error, OSError) and not _is_cached(error.filename or cache):
        return system_error(error)
    errno = error.errno if isinstance(error, OSError) else None
    if errno or "No space left" in detail:  # a client not written in Python gives text only
        return (
            f"cannot keep {repo_id} in the cache {cache}: "
            f"{os.strerror(errno) if errno else detail}; set HF_HUB_CACHE to a directory that has "
            "room and can be written"
        )
    return (
        f"cannot download {repo_id}: {detail}; run the same command again, and if that does not "
        f"help, set HF_HUB_DISABLE_XET=1 or delete {repo_id} from {cache}"
    )


def _is_cached(file: str) -> bool:
    """Whether the file is in the cache of the hub's client, or the cache in it."""
    path, cache = Path(file), Path(constants.HF_HUB_CACHE)
    return path.is_relative_to(cache) or cache.is_relative_to(path)


def _wait_s(error: Exception, attempt: int, *, waits: bool) -> float | None:
    """Seconds to wait before the next attempt; None if another attempt cannot help."""
    if type(error).__name__ in CUT:
        return 1.0
    # The hub's client retries a 5xx itself and then raises a plain HTTPError, which is final.
    response = error.response if isinstance(error, HfHubHTTPError) else None
    if not waits or response is None or not is_outage(error):
        return None
    asked = re.fullmatch(r"(\d+)", response.headers.get("Retry-After", "")) or re.search(
        r"\bt=(\d+)", response.headers.get("RateLimit", "")
    )
    return min(MAX_WAIT_S, float(asked[1]) if asked else 2.0**attempt)


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    return None if response is None else int(response.status_code)


def _ask(repo_id: str, revision: str | None) -> tuple[ModelInfo, set[str]]:
    """What the hub says of a model at a revision, and the names of its files."""
    api = HfApi()
    info = with_retries(lambda: api.model_info(repo_id, revision=revision, timeout=30))
    return info, {file.rfilename for file in info.siblings or ()}


def _date_of(info: ModelInfo) -> str | None:
    """When the commit was made (ISO 8601) that the hub has described, if it says it."""
    return info.last_modified.isoformat() if info.last_modified else None


def fetch_checkpoint(repo_id: str, revision: str, onnx: str | None) -> Path:
    """The directory of a snapshot in the hub's cache; downloads the files that are missing."""
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UserError(
            f"{repo_id!r} is neither a directory nor a hub id such as ORG/NAME"
        ) from error
    model = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo_id, repo_type="model")
    commit: str | None = None

    try:
        info, held = _ask(repo_id, revision)
        if info.sha is None:
            raise TypeError("no commit")
        names, weights = choose_files(held, repo_id, onnx)
        commit = info.sha
        # What is not exported is refused before anything large is downloaded.
        path = _download(repo_id, CONFIG_FILE, commit).parent
        of_graph = weights.endswith(GRAPH)
        check_task(read_config(path, repo_id, of_graph=of_graph), repo_id)
        for name in names:
            _download(repo_id, name, commit)
        # Weights come last: a snapshot that has them is complete.
        _download(repo_id, weights, commit)
        for name in weight_files(path, weights):
            if name not in held:
                raise UserError(f"{repo_id} has no {name}, in which {weights} has its weights")
            _download(repo_id, name, commit)
    except FAILURES as error:
        why = explain(error, repo_id, revision)
        # Once the hub has named a commit, an older copy must not stand in for it.
        if commit is None and is_outage(error):
            snapshot = snapshot_of(model, revision)
            if snapshot is not None and is_complete(snapshot, onnx):
                if not isinstance(error, OfflineModeIsEnabled):
                    logger.warning("%s; using the copy in %s", why.split(";")[0], snapshot)
                return snapshot
        raise UserError(why) from error
    _note_commit(model, revision, commit, _date_of(info))
    return path


def _note_commit(model: Path, revision: str, commit: str, date: str | None) -> None:
    """Keep what the hub has said of a revision in the model's directory of the cache."""
    if revision != commit:  # the hub's client reads this note when it is offline
        _note(model / "refs" / revision, commit)
    if date:
        _note(model / DATES / commit, date)


def _note(path: Path, text: str) -> None:
    with suppress(OSError):  # the cache may be read-only
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def fetch_bundle(
    source: str,
    output: Path,
    revision: str | None,
    precisions: Sequence[Precision],
    *,
    others: Sequence[Precision] = (),
    refuse: Callable[[str], None],
) -> bool:
    """Copy the bundle that a hub repository holds to ``output``; False if it holds none.

    The copy has only those of the ``precisions`` that the bundle has, or else the first of the
    ``others`` that it has. If the hub does not answer, the hub's cache does. ``refuse`` gets the
    name of a bundle, and raises if the user asks for what only an export does.
    """
    check_revision(revision)
    wanted = revision or DEFAULT_REVISION
    try:
        model = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=source, repo_type="model")
        commit, held = _commit_of_bundle(source, wanted, model)
        if MANIFEST not in held or not is_bundle(
            _download(source, MANIFEST, commit.revision).parent
        ):
            return False
        refuse(source)
        print(f"{source} holds a bundle; its commit is {commit.revision}")
        with atomic_directory(check_bundle_output(output)) as directory:
            _copy(source, commit, held & BUNDLE_FILES, directory, precisions, others)
            check_bundle_output(output)  # something may have been put there meanwhile
    except HFValidationError:
        return False
    except FAILURES as error:
        raise UserError(explain(error, source, wanted)) from error
    if commit.revision:
        _note_commit(model, wanted, commit.revision, commit.date)
    return True


def _commit_of_bundle(source: str, revision: str, model: Path) -> tuple[HubCommit, set[str]]:
    """The commit of a revision and the names of its files; of the cache if the hub is out of order.

    Of the cache, the names are those that a bundle can have, and none of what is not a bundle.
    """
    try:
        info, held = _ask(source, revision)
        return HubCommit(repo_id=source, revision=info.sha, date=_date_of(info)), held
    except FAILURES as error:
        snapshot = snapshot_of(model, revision) if is_outage(error) else None
        if snapshot is None:
            raise
        if not is_bundle(snapshot):
            return HubCommit(), set()
        if not isinstance(error, OfflineModeIsEnabled):
            why = explain(error, source, revision)
            logger.warning("%s; using the copy in %s", why.split(";")[0], snapshot)
        date = commit_date(snapshot)
        return HubCommit(repo_id=source, revision=snapshot.name, date=date), BUNDLE_FILES


def _copy(
    source: str,
    commit: HubCommit,
    held: set[str],
    directory: Path,
    precisions: Sequence[Precision],
    others: Sequence[Precision],
) -> None:
    """Copy the bundle of a commit, which has the files ``held``, to an empty directory."""
    (directory / "onnx").mkdir()

    def copy(name: str) -> None:
        if name not in held:  # the manifest may be anyone's
            raise UserError(f"{source} has no file {name}, which a bundle must have")
        shutil.copyfile(_download(source, name, commit.revision), directory / name)

    for name in (MANIFEST, *SIDE_FILES, "README.md"):
        copy(name)
    bundle = Bundle.open(_download(source, MANIFEST, commit.revision).parent)
    variants = bundle.manifest.variants
    found = [precision for precision in precisions if precision in variants]
    found = found or [precision for precision in others if precision in variants][:1]
    kept = {precision: variants[precision] for precision in found}
    if not kept:
        raise UserError(
            f"the bundle {source} has no {' or '.join([*precisions, *others])}; "
            f"it has {', '.join(variants)}: choose one of these with --precision"
        )
    for precision, variant in kept.items():
        copy(variant.file)
        if variant.data is not None:
            copy(variant.data.file)
        bundle.check(precision)
    manifest = bundle.manifest.model_copy(update={"variants": kept, "fetched": commit})
    text = manifest.model_dump_json(indent=2, exclude_none=True)
    (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")
