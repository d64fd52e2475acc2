"""What hosting platforms tell a container: variables that they set, and directories they mount.

A platform gives a setting its value only if neither a flag nor ``SENTIMENT_<NAME>`` does. Nothing
else reads these variables. ``docs/platforms.md`` describes each platform.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.errors import UserError

# In the order in which they are looked up: Vertex AI, SageMaker, Cloud Run and Knative.
PORT_VARIABLES = ("AIP_HTTP_PORT", "SAGEMAKER_BIND_TO_PORT", "PORT")
# The port that SageMaker calls. It says so in a variable only where a container is one of several.
SAGEMAKER_PORT = 8080
SAGEMAKER_MOUNT = Path("/opt/ml")
# SageMaker, KServe and Hugging Face Endpoints.
MODEL_MOUNTS = (SAGEMAKER_MOUNT / "model", Path("/mnt/models"), Path("/repository"))
AZURE_MODEL_VARIABLE = "AZUREML_MODEL_DIR"
MANIFEST = "manifest.json"  # of a bundle
# SageMaker's own limits for a batch transform job that sets none: seconds for one request, and
# records of tweets in the 100 MB that all its requests may have together.
BATCH_DEADLINE_MS = 600_000
BATCH_TEXTS = 100_000
ROUTE = re.compile(r"/[\w.~:@/-]*", re.ASCII)


@dataclass(frozen=True)
class PlatformValue:
    """The value that a platform gives a setting, and the variable or directory that says so."""

    value: Any
    source: str


@dataclass(frozen=True)
class VertexRoutes:
    """The paths that Vertex AI calls; None where it has set none."""

    health: str | None
    predict: str | None


def platform_settings(environment: Mapping[str, str]) -> dict[str, PlatformValue]:
    """What the platform says, by the name of the setting. The values are not validated."""
    return _port(environment) | _model(environment) | _sagemaker(environment)


def vertex_routes(environment: Mapping[str, str]) -> VertexRoutes:
    """The routes of ``AIP_HEALTH_ROUTE`` and ``AIP_PREDICT_ROUTE``.

    Raises:
        UserError: one of them is not a path.
    """
    return VertexRoutes(
        _route(environment, "AIP_HEALTH_ROUTE"), _route(environment, "AIP_PREDICT_ROUTE")
    )


def unused_mounts(environment: Mapping[str, str]) -> list[str]:
    """Why no model is loaded from a directory that is mounted: a sentence for each of them."""
    reasons = []
    for mount in _mounts(environment):
        try:
            if any(mount.iterdir()) and not _bundles(mount):
                reasons.append(f"{mount} has files, but no bundle; no model is loaded from there")
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            reasons.append(
                f"{mount} cannot be read: {error.strerror}; no model is loaded from there"
            )
    return reasons


def _port(environment: Mapping[str, str]) -> dict[str, PlatformValue]:
    for name in PORT_VARIABLES:
        if environment.get(name):
            return {"port": PlatformValue(environment[name], name)}
    theirs = (name for name in environment if name.startswith("SAGEMAKER_") and environment[name])
    variable = next(theirs, None)
    if variable or SAGEMAKER_MOUNT.is_dir():
        return {
            "port": PlatformValue(
                SAGEMAKER_PORT, variable or f"SageMaker's {SAGEMAKER_MOUNT} exists"
            )
        }
    return {}


def _model(environment: Mapping[str, str]) -> dict[str, PlatformValue]:
    for mount in _mounts(environment):
        if bundles := _bundles(mount):
            return {"model": PlatformValue(bundles, f"{mount} has {MANIFEST}")}
    return {}


def _sagemaker(environment: Mapping[str, str]) -> dict[str, PlatformValue]:
    settings = {}
    megabytes = environment.get("SAGEMAKER_MAX_PAYLOAD_IN_MB", "")
    if megabytes not in ("", "0"):  # 0 means: no limit, in chunks; then our own limit stays
        value = int(megabytes) * 2**20 if megabytes.isdecimal() else megabytes
        settings["max_body_bytes"] = PlatformValue(value, "SAGEMAKER_MAX_PAYLOAD_IN_MB")
    if environment.get("SAGEMAKER_BATCH", "").lower() == "true":
        settings["deadline_ms"] = PlatformValue(BATCH_DEADLINE_MS, "SAGEMAKER_BATCH")
        settings["max_texts"] = PlatformValue(BATCH_TEXTS, "SAGEMAKER_BATCH")
    return settings


def _mounts(environment: Mapping[str, str]) -> list[Path]:
    azure = environment.get(AZURE_MODEL_VARIABLE)
    return [*MODEL_MOUNTS, *([Path(azure)] if azure else [])]


def _bundles(mount: Path) -> tuple[Path, ...]:
    """The directory itself if it is a bundle, else those of its directories that are."""
    try:
        if (mount / MANIFEST).is_file():
            return (mount,)
        return tuple(sorted(manifest.parent for manifest in mount.glob(f"*/{MANIFEST}")))
    except OSError:  # it cannot be read
        return ()


def _route(environment: Mapping[str, str], name: str) -> str | None:
    path = environment.get(name)
    if path and not ROUTE.fullmatch(path):
        raise UserError(f"{name}: must be a path such as /predict, not {path!r}")
    return path or None
