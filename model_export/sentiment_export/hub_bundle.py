"""Bundles in repositories of a model hub: fetched as they are."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import ModelInfo, constants
from huggingface_hub.errors import HFValidationError
from huggingface_hub.file_download import repo_folder_name
from sentiment_service.atomic_files import atomic_directory
from sentiment_service.engine.model.bundle import MANIFEST, SIDE_FILES, Bundle, HubCommit, Precision
from sentiment_service.errors import UserError
from sentiment_service.settings.settings import AS_IT_SAYS, CheckpointOptions

from sentiment_export.checkpoint.source import FAILURES, ask, date_of, download, explain, is_outage
from sentiment_export.output import BUNDLE_FILES, check_bundle_output, is_bundle


def fetch_bundle(
    source: str,
    output: Path,
    revision: str | None,
    precisions: Sequence[Precision],
    *,
    options: CheckpointOptions = AS_IT_SAYS,
) -> bool:
    """Copy the bundle that a hub repository holds to ``output``; False if it holds none.

    The copy has only those of the ``precisions`` that the bundle has. If the hub does not answer,
    and its cache has the repository, the answer is False: ``find_checkpoint`` may find a
    checkpoint there. ``options`` are what the user says of a checkpoint.
    """
    try:
        info, names = ask(source, revision)
        if MANIFEST not in names or not is_bundle(download(source, MANIFEST, info.sha).parent):
            return False
        options.refuse_bundle(source)
        print(f"{source} holds a bundle; its commit is {info.sha}")
        with atomic_directory(check_bundle_output(output)) as directory:
            _copy(source, info, names & BUNDLE_FILES, directory, precisions)
            check_bundle_output(output)  # something may have been put there meanwhile
    except HFValidationError:
        return False
    except FAILURES as error:
        name = repo_folder_name(repo_id=source, repo_type="model")
        if is_outage(error) and (Path(constants.HF_HUB_CACHE) / name).is_dir():
            return False
        why = explain(error, source, revision or constants.DEFAULT_REVISION)
        raise UserError(why) from error
    return True


def _copy(
    source: str, info: ModelInfo, held: set[str], directory: Path, precisions: Sequence[Precision]
) -> None:
    """Copy the bundle of a commit, which has the files ``held``, to an empty directory."""
    (directory / "onnx").mkdir()

    def copy(name: str) -> None:
        if name not in held:  # the manifest may be anyone's
            raise UserError(f"{source} has no file {name}, which a bundle must have")
        shutil.copyfile(download(source, name, info.sha), directory / name)

    for name in (MANIFEST, *SIDE_FILES, "README.md"):
        copy(name)
    bundle = Bundle.open(directory)
    variants = bundle.manifest.variants
    kept = {precision: variants[precision] for precision in precisions if precision in variants}
    if not kept:
        raise UserError(
            f"the bundle {source} has no {' or '.join(precisions)}; it has {', '.join(variants)}: "
            "choose one of these with --precision"
        )
    for precision, variant in kept.items():
        copy(variant.file)
        if variant.data is not None:
            copy(variant.data.file)
        bundle.variant_path(precision)
    commit = HubCommit(repo_id=source, revision=info.sha, date=date_of(info))
    manifest = bundle.manifest.model_copy(update={"variants": kept, "fetched": commit})
    text = manifest.model_dump_json(indent=2, exclude_none=True)
    (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")
