"""What hosting platforms tell a container: variables that they set, and directories they mount.

A platform gives a setting its value only if neither a flag nor ``SENTIMENT_<NAME>`` does. Nothing
else reads these variables. ``docs/platforms.md`` describes each platform.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# In the order in which they are looked up: Vertex AI, SageMaker, Cloud Run and Knative.
PORT_VARIABLES = ("AIP_HTTP_PORT", "SAGEMAKER_BIND_TO_PORT", "PORT")
# The port that SageMaker calls. It says so in a variable only where a container is one of several.
SAGEMAKER_PORT = 8080
SAGEMAKER_MOUNT = Path("/opt/ml")
# SageMaker, KServe and Hugging Face Endpoints.
MODEL_MOUNTS = (SAGEMAKER_MOUNT / "model", Path("/mnt/models"), Path("/repository"))
AZURE_MODEL_VARIABLE = "AZUREML_MODEL_DIR"
MANIFEST, CONFIG = "manifest.json", "config.json"  # of a bundle, and of a checkpoint
# SageMaker's own limits for a batch transform job that sets none: seconds for one request, and
# records of tweets in the 100 MB that all its requests may have together.
BATCH_DEADLINE_MS = 600_000
BATCH_TEXTS = 100_000


@dataclass(frozen=True)
class PlatformValue:
    """The value that a platform gives a setting, and the variable or directory that says so."""

    value: Any
    source: str


def platform_settings(environment: Mapping[str, str]) -> dict[str, PlatformValue]:
    """What the platform says, by the name of the setting. The values are not validated."""
    proxies = environment.get("FORWARDED_ALLOW_IPS")  # uvicorn's own
    trusted = {"trusted_proxies": PlatformValue(proxies, "FORWARDED_ALLOW_IPS")} if proxies else {}
    return _port(environment) | _model(environment) | _sagemaker(environment) | trusted


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
    azure = environment.get(AZURE_MODEL_VARIABLE)
    mounts = [*MODEL_MOUNTS, *([Path(azure)] if azure else [])]
    for mount in mounts:
        if bundles := _directories_with(MANIFEST, mount):
            return {"model": PlatformValue(bundles, f"{mount} has {MANIFEST}")}
    for mount in mounts:
        # Whoever mounts a model wants that one. A checkpoint is exported; otherwise the start ends.
        if _has_files(mount):
            models = _directories_with(CONFIG, mount) or (mount,)
            return {"model": PlatformValue(models, f"{mount} has files")}
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


def _has_files(mount: Path) -> bool:
    try:
        return any(mount.iterdir())
    except FileNotFoundError:
        return False
    except OSError:  # a file, or it cannot be read; that it is there was meant
        return True


def _directories_with(file: str, mount: Path) -> tuple[Path, ...]:
    """The directory itself if it has the file, else those of its directories that have it."""
    try:
        if (mount / file).is_file():
            return (mount,)
        return tuple(sorted(found.parent for found in mount.glob(f"*/{file}")))
    except OSError:  # it cannot be read
        return ()
