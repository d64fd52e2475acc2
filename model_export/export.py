"""Checkpoint → bundle: exported, verified, and only then put in its place."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from app.bundle import (
    FORMAT_VERSION,
    MANIFEST,
    SIDE_FILES,
    Bundle,
    Manifest,
    Precision,
    Source,
    Variant,
    sha256,
)
from app.errors import UserError
from app.model import Model
from model_export.checkpoint import Checkpoint
from model_export.evaluation import evaluate
from model_export.labelled import Example
from model_export.model_card import model_card
from model_export.onnx_graph import export_graph, write_fp32, write_int8
from model_export.verification import verify

ONNX_FILES: dict[Precision, str] = {"fp32": "onnx/model.onnx", "int8": "onnx/model_int8.onnx"}
WRITERS: dict[Precision, Callable[[Path, Path], None]] = {"fp32": write_fp32, "int8": write_int8}
MADE_WITH = ("sentiment-service", "torch", "transformers", "optimum-onnx", "onnx", "onnxruntime")


def export(
    checkpoint: Checkpoint,
    output: Path,
    *,
    precisions: Sequence[Precision] = ("fp32", "int8"),
    examples: Sequence[Example] = (),
    say: Callable[[str], None] = print,
) -> Manifest:
    """Write a bundle to ``output``, replacing a bundle that is there.

    Everything happens in a temporary directory beside it, which is renamed at the end: at
    no moment is there half a bundle in ``output``. Given labelled ``examples``, every
    variant's scores are recorded.

    Raises:
        UserError: the architecture is not supported, a variant departs from the checkpoint
            beyond its tolerance, or ``output`` is in use for something else.
    """
    output = output.resolve()
    _refuse_foreign(output)
    with _replaced_at_the_end(output) as directory:
        (directory / "onnx").mkdir()
        _write_side_files(checkpoint, directory)
        with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".export-") as work:
            say("exporting the graph")
            plain = export_graph(checkpoint, Path(work))
            for precision in precisions:
                WRITERS[precision](plain, directory / ONNX_FILES[precision])
        manifest = _manifest(checkpoint, directory, output.name, precisions)
        for precision in precisions:
            manifest = _verified(manifest, precision, checkpoint, directory, examples, say)
        text = manifest.model_dump_json(indent=2, exclude_none=True)
        (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")
        (directory / "README.md").write_text(model_card(manifest), encoding="utf-8")
    return manifest


def _verified(
    manifest: Manifest,
    precision: Precision,
    checkpoint: Checkpoint,
    directory: Path,
    examples: Sequence[Example],
    say: Callable[[str], None],
) -> Manifest:
    """The manifest with this variant's parity and accuracy filled in."""
    variant = manifest.variants[precision]
    bundle = Bundle(directory, manifest, checkpoint.model.config.to_dict())
    model = Model.load(bundle, device="cpu", precision=precision, threads=0)
    parity = verify(model, checkpoint)
    say(
        f"{precision}: {variant.bytes / 1e6:.1f} MB, logits within "
        f"{parity.max_abs_logit_diff:.2g} of PyTorch, labels agree on "
        f"{parity.label_agreement:.1%} of {parity.samples} texts"
    )
    scores = evaluate(model, examples) if examples else None
    if scores is not None:
        say(f"{precision}: {scores.table()}")
    accuracy = scores.as_dict() if scores is not None else None
    filled = variant.model_copy(update={"parity": parity, "accuracy": accuracy})
    return manifest.model_copy(update={"variants": {**manifest.variants, precision: filled}})


def _write_side_files(checkpoint: Checkpoint, directory: Path) -> None:
    config = checkpoint.model.config
    config.id2label = dict(enumerate(checkpoint.labels))
    config.label2id = {label: index for index, label in enumerate(checkpoint.labels)}
    config.save_pretrained(directory)
    tokenizer = checkpoint.tokenizer
    tokenizer.model_max_length = checkpoint.max_tokens
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".export-") as work:
        tokenizer.save_pretrained(work)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(Path(work) / name, directory / name)


def _manifest(
    checkpoint: Checkpoint, directory: Path, name: str, precisions: Sequence[Precision]
) -> Manifest:
    variants = {
        precision: Variant(
            file=ONNX_FILES[precision],
            sha256=sha256(directory / ONNX_FILES[precision]),
            bytes=(directory / ONNX_FILES[precision]).stat().st_size,
        )
        for precision in precisions
    }
    return Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        source=Source(path=checkpoint.path.name, files=checkpoint.files),
        architecture=checkpoint.architecture,
        labels=checkpoint.labels,
        max_tokens=checkpoint.max_tokens,
        preprocessing=checkpoint.preprocessing,
        variants=variants,
        files={side_file: sha256(directory / side_file) for side_file in SIDE_FILES},
        created_with={package: version(package) for package in MADE_WITH},
    )


def _refuse_foreign(output: Path) -> None:
    if output.is_file() or (
        output.is_dir() and any(output.iterdir()) and not _has_manifest_of_ours(output)
    ):
        raise UserError(f"{output} exists and is not a bundle; name another --output")


def _has_manifest_of_ours(output: Path) -> bool:
    """Whether this was a bundle once; web pages and extensions have a manifest.json as well."""
    try:
        return "format_version" in json.loads((output / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


@contextmanager
def _replaced_at_the_end(output: Path) -> Iterator[Path]:
    """A directory to fill, renamed to ``output`` if nothing fails and removed if it does."""
    output.parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=output.parent, prefix=f".{output.name}-"))
    directory.chmod(0o755)
    try:
        yield directory
        if output.exists():
            old = directory.with_name(directory.name + ".old")
            output.rename(old)
            directory.rename(output)
            shutil.rmtree(old)
        else:
            directory.rename(output)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
