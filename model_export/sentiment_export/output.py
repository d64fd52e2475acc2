"""The directory that a command writes, and what is never replaced."""

import json
from pathlib import Path

from sentiment_service.engine.model.bundle import MANIFEST, SIDE_FILES, Precision
from sentiment_service.errors import UserError

ONNX_FILES: dict[Precision, str] = {
    "fp32": "onnx/model.onnx",
    "int8": "onnx/model_int8.onnx",
    "fp16": "onnx/model_fp16.onnx",
}
BUNDLE_FILES = {
    MANIFEST,
    "README.md",
    *SIDE_FILES,
    *ONNX_FILES.values(),
    *(f"{name}_data" for name in ONNX_FILES.values()),  # weights beyond 2 GB
}


def check_bundle_output(output: Path) -> Path:
    """The absolute path of ``output``, if an export may write there.

    It may if nothing is there, or an empty directory, or a bundle and nothing else.

    Raises:
        UserError: the export would delete something that is not a bundle's, which the message
            names; or see ``check_new_output``.
    """
    output = _resolved(output)
    if _is_occupied(output) and not is_bundle(output):
        raise UserError(f"{output} exists and is not a bundle; choose another --output")
    held = [path for folder in (output, output / "onnx") for path in folder.glob("*")]
    names = {str(path.relative_to(output)) for path in held} - {"onnx"}
    foreign = sorted(names - BUNDLE_FILES)
    if foreign:
        raise UserError(
            f"{output} holds {', '.join(foreign[:3])}, which the export would delete: it is "
            "not part of a bundle. Move it away, or choose another --output"
        )
    return output


def check_new_output(output: Path) -> Path:
    """The absolute path of ``output``, if nothing or an empty directory is there.

    Raises:
        UserError: something is there, or the path is not valid UTF-8.
    """
    output = _resolved(output)
    if _is_occupied(output):
        raise UserError(f"{output} exists and is not replaced; choose another --output")
    return output


def _resolved(output: Path) -> Path:
    output = output.resolve()
    try:
        str(output).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"the path {str(output)!a} is not valid UTF-8: choose another --output"
        ) from None
    return output


def _is_occupied(output: Path) -> bool:
    return any(output.iterdir()) if output.is_dir() else output.exists()


def is_bundle(output: Path) -> bool:
    """Whether the manifest.json is a bundle's; web pages and extensions have one too."""
    try:
        return "format_version" in json.loads((output / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False
