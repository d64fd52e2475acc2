"""The directory with what an unfinished training has saved, from which the same call resumes."""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.engine.model.bundle import sha256
from app.errors import UserError
from model_export.training.recipe import Recipe

IDENTITY = "training.json"


def start_or_resume(directory: Path, recipe: Recipe) -> None:
    """Make the directory, or check that what it holds is of the same training.

    Raises:
        UserError: the base, a labelled file or a setting is another than when it was saved.
    """
    directory.mkdir(parents=True, exist_ok=True)
    identity, path = _identity(recipe), directory / IDENTITY
    if not any(directory.glob("seed-*.pt")):
        path.write_text(json.dumps(identity, indent=2) + "\n", encoding="utf-8")
        return
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name, value in identity.items():
        if saved.get(name) != value:
            raise UserError(
                f"{directory} holds an unfinished training, but {name} was "
                f"{saved.get(name, 'not recorded')} then and is {value} now; repeat the first "
                "command to resume it, or remove the directory to start anew"
            )


def remove(directory: Path) -> None:
    """Remove what a training has saved. A directory with other files in it stays."""
    for path in (*directory.glob("seed-*.pt"), directory / IDENTITY):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        directory.rmdir()


def _identity(recipe: Recipe) -> dict[str, Any]:
    """What the weights of a seed depend on. Seeds can be added to an unfinished training."""
    settings = recipe.as_dict()
    for name in ("base", "train", "validation", "seeds"):
        del settings[name]
    return {
        "the content of the base": _digest(sorted(filter(Path.is_file, recipe.base.iterdir()))),
        "the content of --train": _digest(recipe.train),
        "the content of --validation": _digest([recipe.validation]),
        **settings,
    }


def _digest(paths: Iterable[Path]) -> str:
    digests = " ".join(map(sha256, paths))
    return "sha256 " + hashlib.sha256(digests.encode()).hexdigest()[:16]
