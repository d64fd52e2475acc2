"""Finds a checkpoint: a local directory, a model in a hub cache, or a model to download."""

import contextlib
import logging
import re
from pathlib import Path

from huggingface_hub import HfApi, ModelInfo, constants, hf_hub_download
from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils._validators import validate_repo_id
from sentiment_service.errors import UserError

from sentiment_export.checkpoint.config import check_task, read_config
from sentiment_export.checkpoint.hub import FAILURES, explain, is_outage, with_retries
from sentiment_export.checkpoint.layout import CONFIG_FILE, choose_files, shards

CACHED = "models--"  # a hub cache names a model's directory models--ORG--NAME
DATES = "commit-dates"  # our own notes beside the hub client's refs and snapshots
COMMIT = re.compile(r"[0-9a-f]{40}")

logger = logging.getLogger(__name__)


def find_checkpoint(source: str, revision: str | None = None) -> Path:
    """The directory that holds a checkpoint's files; downloads the files that are missing.

    Args:
        source: a checkpoint directory, a model's directory in a hub cache, or a hub id.
        revision: branch, tag or commit of a model on the hub (default: ``main``).

    Raises:
        UserError: the checkpoint does not exist, or cannot be downloaded.
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
                f"{source} is a local directory, which has no revisions; remove --revision"
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
    """Hub id and commit, if the path is that of a snapshot in a hub cache. No file is read."""
    commit, snapshots, model = [*reversed(path.absolute().parts), "", "", ""][:3]
    if snapshots != "snapshots" or not model.startswith(CACHED) or not COMMIT.fullmatch(commit):
        return None
    return model.removeprefix(CACHED).replace("--", "/"), commit


def commit_date(path: Path) -> str | None:
    """When the commit of a snapshot in a hub cache was made (ISO 8601), if the hub has said it."""
    note = path.parent.parent / DATES / path.name
    return note.read_text(encoding="utf-8") if note.is_file() else None


def date_of(info: ModelInfo) -> str | None:
    """When the commit was made (ISO 8601) that the hub has described, if it says it."""
    return info.last_modified.isoformat() if info.last_modified else None


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
        # Resumes a file that an earlier call or process downloaded in part.
        return Path(with_retries(lambda: hf_hub_download(repo_id, name, revision=commit)))

    try:
        api = HfApi()
        info = with_retries(lambda: api.model_info(repo_id, revision=revision, timeout=30))
        if info.sha is None:
            raise TypeError("no commit")
        names, weights = choose_files((file.rfilename for file in info.siblings or ()), repo_id)
        commit = info.sha
        # What is not exported is refused before anything large is downloaded.
        check_task(read_config(fetch(CONFIG_FILE).parent, repo_id), repo_id)
        for name in names:
            fetch(name)
        # Weights come last: a snapshot that has them is complete.
        path = fetch(weights)
        for name in shards(path):
            fetch(name)
    except FAILURES as error:
        why = explain(error, repo_id, revision)
        # Once the hub has named a commit, an older copy must not stand in for it.
        if commit is None and is_outage(error):
            snapshot = _snapshot(model, revision)
            if snapshot is not None and _is_complete(snapshot):
                if not isinstance(error, OfflineModeIsEnabled):
                    logger.warning("%s; using the copy in %s", why.split(";")[0], snapshot)
                return snapshot
        raise UserError(why) from error
    if revision != commit:  # the hub's client reads this note when it is offline
        _note(model / "refs" / revision, commit)
    if date := date_of(info):
        _note(model / DATES / commit, date)
    return path.parent


def _note(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):  # the cache may be read-only
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _snapshot(model: Path, revision: str) -> Path | None:
    ref = model / "refs" / revision
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else revision
    snapshot = model / "snapshots" / commit
    return snapshot if COMMIT.fullmatch(commit) and snapshot.is_dir() else None


def _is_complete(snapshot: Path) -> bool:
    try:
        _, weights = choose_files((path.name for path in snapshot.iterdir()), str(snapshot))
        return all((snapshot / name).is_file() for name in shards(snapshot / weights))
    except UserError:
        return False
