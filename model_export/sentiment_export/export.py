"""Exports a checkpoint to a bundle, and verifies it before the bundle appears."""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sentiment_service.atomic_files import atomic_directory, full_disk_named
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import (
    FORMAT_VERSION,
    MANIFEST,
    SIDE_FILES,
    Bundle,
    CheckpointSource,
    DataFile,
    Manifest,
    Parity,
    Precision,
    ReferenceKind,
    Variant,
    sha256,
)
from sentiment_service.engine.model.model import TEXTS, Model
from sentiment_service.errors import UserError

from sentiment_export.bundle_calibration import CalibrationTexts, calibrated
from sentiment_export.checkpoint.checkpoint import Checkpoint
from sentiment_export.checkpoint.source import commit_date, origin
from sentiment_export.graph.builder import external_data
from sentiment_export.graph.source_graphs import SourceGraphs
from sentiment_export.graph.variants import Graphs, graphs_of
from sentiment_export.output import ONNX_FILES, check_bundle_output, model_card
from sentiment_export.quality.evaluation import AccuracyGate
from sentiment_export.quality.labelled import MAX_ACCURACY_LOSS, Example
from sentiment_export.quality.verification import NAMES, DiffersTooMuch, Reference, verify

MADE_WITH = ("sentiment-service", "onnx", "onnxruntime")


def export(
    checkpoint: Checkpoint,
    output: Path,
    *,
    precisions: Sequence[Precision] = ("fp32", "int8"),
    examples: Sequence[Example] = (),
    max_accuracy_loss: float = MAX_ACCURACY_LOSS,
    calibration_texts: CalibrationTexts | None = None,
    reference: ReferenceKind | None = None,
    debug_parity: bool = False,
    graphs_of: Callable[[Checkpoint, Path], Graphs] = graphs_of,
    say: Callable[[str], None] = print,
) -> Manifest:
    """Write a bundle to ``output``; replaces an existing bundle.

    The bundle is written to a temporary directory beside ``output``, opened and computed there as
    the service does, and renamed at the end. So ``output`` never holds half a bundle. With labelled
    ``examples``, the scores of every variant are recorded, and a variant that scores worse than
    fp32 is left out. So is an int8 that differs from the ``reference`` by more than its tolerance.
    That is PyTorch's model, or the fp32 graph where PyTorch is not installed. Of an ONNX graph, it
    is that graph itself; one that is quantized or fp16 is the only variant. With
    ``calibration_texts``, every variant gets a temperature.

    Raises:
        UserError: the architecture is not supported, PyTorch is needed and not installed, fp32 or
            fp16 differs from the reference by more than its tolerance, ``output`` holds something
            other than a bundle, a labelled text cannot be classified, no temperature fits, or the
            disk is full. Also raised after the other variants were written, if a variant was left
            out.
    """
    output = check_bundle_output(output)
    gate = AccuracyGate(examples, max_accuracy_loss)
    kind = reference or ("pytorch" if has_pytorch() else "fp32")
    if checkpoint.graph is not None:
        if reference or debug_parity:
            asked = "--debug-parity" if debug_parity else f"--reference {reference}"
            raise UserError(
                f"{asked} needs weights, and {checkpoint.graph.path} is an ONNX graph: what is "
                "made of it is compared with the graph itself"
            )
        kind = "onnx"
    elif not has_pytorch() and (kind == "pytorch" or debug_parity):
        raise UserError(
            "a comparison with PyTorch needs PyTorch and transformers, which the extra `torch` "
            "installs; without them, give --reference fp32"
        )
    # The other variants are compared with fp32, even if fp32 was not requested.
    first: Sequence[Precision] = ("fp32",) if examples or kind == "fp32" else ()
    made = dict.fromkeys((*first, *precisions))
    with atomic_directory(output) as directory:
        (directory / "onnx").mkdir()
        _write_side_files(checkpoint, directory)
        with tempfile.TemporaryDirectory(dir=directory) as work, full_disk_named(directory):
            say("writing the graphs")
            if checkpoint.graph is None:
                source, graphs = None, graphs_of(checkpoint, Path(work))
            else:
                source = graphs = SourceGraphs(checkpoint, checkpoint.graph, Path(work))
                made = dict.fromkeys(source.possible((*made,)))
                precisions = source.possible(precisions)
                if source.kept:
                    say(f"{checkpoint.graph.path.name}: {source.kept}")
            passes = {p: graphs.write(p, directory / ONNX_FILES[p]) for p in made}
        manifest = _manifest(checkpoint, directory, output.name, passes, kind)
        checks = _Checks(checkpoint, directory, gate, say, kind, source)
        for precision in made:
            if debug_parity:
                say(_layers(checkpoint, directory, precision))
            manifest = checks.passed(manifest, precision)
        manifest = _only(manifest, [p for p in precisions if p not in gate.refused], directory)
        if not manifest.variants:
            raise UserError(f"no bundle was written: {gate.verdict()}")
        if calibration_texts:
            bundle = Bundle(directory, manifest, dict(checkpoint.config))
            manifest = calibrated(bundle, calibration_texts, say=say)
        text = manifest.model_dump_json(indent=2, exclude_none=True)
        (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")
        (directory / "README.md").write_text(model_card(manifest), encoding="utf-8")
        Bundle.open(directory)  # as the service does: what was written contradicts itself nowhere
        check_bundle_output(output)  # something may have been put there meanwhile
    if gate.refused:
        raise UserError(
            f"{output} was written with {', '.join(manifest.variants)}: {gate.verdict()}"
        )
    return manifest


def has_pytorch() -> bool:
    """Whether a checkpoint can be computed by PyTorch."""
    return all(find_spec(package) for package in ("torch", "transformers"))


@dataclass(slots=True)
class _Checks:
    """Compares the variants with one reference, and scores them."""

    checkpoint: Checkpoint
    directory: Path
    gate: AccuracyGate
    say: Callable[[str], None]
    kind: ReferenceKind
    source: SourceGraphs | None
    reference: Reference | None = None  # known once the first variant is open

    def passed(self, manifest: Manifest, precision: Precision) -> Manifest:
        """Verify and score the variant; returns the manifest with its parity and accuracy.

        The gate refuses an int8 that differs from the reference by more than its tolerance.
        """
        variant = manifest.variants[precision]
        bundle = Bundle(self.directory, manifest, dict(self.checkpoint.config))
        model = load_model(bundle, device="cpu", precision=precision, threads=0)
        parity = invariant = None
        if self.kind == "fp32" and precision == "fp32":
            self.say("computing the reference with fp32")
            self.reference = Reference.of_graph(model)
        else:
            try:
                parity, same = self._compared(model)
                if self.source is not None:  # what it computes, only its maker knows
                    invariant = same
            except DiffersTooMuch as error:
                if precision != "int8":  # only int8's coarser weights may be too coarse
                    raise
                self.gate.refused[precision] = str(error)
                return manifest
            self.say(
                f"{precision}: {variant.total_bytes / 1e6:.1f} MB, logits within "
                f"{parity.max_abs_logit_diff:.2g} of {NAMES[self.kind]}, labels agree on "
                f"{parity.label_agreement:.1%} of {parity.samples} texts"
            )
        accuracy = self.gate.scored(model, self.say)
        filled = variant.model_copy(
            update={"parity": parity, "accuracy": accuracy, "batch_invariant": invariant}
        )
        return manifest.model_copy(update={"variants": {**manifest.variants, precision: filled}})

    def _compared(self, model: Model) -> tuple[Parity, bool]:
        self.say(f"comparing {model.precision} with {NAMES[self.kind]}")
        if self.reference is None and self.source is not None:
            self.reference = Reference.of_source(self.source.session, model)
        elif self.reference is None:
            self.reference = Reference.of_pytorch(self.checkpoint, model)
        if self.source is None:
            return verify(model, self.reference)
        masked = self.source.is_masked
        try:
            # Whoever quantized the graph has chosen how coarse it is.
            kept = bool(self.source.kept) and masked and model.precision == "int8"
            return verify(model, self.reference, coarse=kept)
        except DiffersTooMuch as error:
            if masked:
                raise
            raise UserError(
                "the graph takes no attention_mask, and padding changes its logits: export it "
                f"again with one ({error})"
            ) from error


def _layers(checkpoint: Checkpoint, directory: Path, precision: Precision) -> str:
    from sentiment_export.quality.layer_parity import layer_parity  # needs PyTorch

    ids = checkpoint.tokenizer.tokenizer.encode(TEXTS[-1]).ids[: checkpoint.max_tokens]
    report = layer_parity(checkpoint, directory / ONNX_FILES[precision], precision, ids)
    return f"{precision}, layer by layer:\n{report.table()}"


def _only(manifest: Manifest, kept: Sequence[Precision], directory: Path) -> Manifest:
    """The manifest with only the ``kept`` variants; deletes the files of the others."""
    for precision in manifest.variants.keys() - set(kept):
        file = directory / ONNX_FILES[precision]
        file.unlink()
        external_data(file).unlink(missing_ok=True)
    return manifest.model_copy(update={"variants": {p: manifest.variants[p] for p in kept}})


def _write_side_files(checkpoint: Checkpoint, directory: Path) -> None:
    # transformers leaves out what it would assume anyway, such as two labels called LABEL_0 and
    # LABEL_1. Other readers do not know its defaults, so the labels are always written.
    config = checkpoint.config
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")
    with full_disk_named(directory):
        checkpoint.tokenizer.write(directory, checkpoint.max_tokens)


def _manifest(
    checkpoint: Checkpoint,
    directory: Path,
    name: str,
    passes: dict[Precision, list[str]],
    reference: ReferenceKind,
) -> Manifest:
    hub, made_with = origin(checkpoint.path), [*MADE_WITH]
    exported = checkpoint.encoder is None and checkpoint.graph is None
    if exported:
        made_with.append("optimum-onnx")
    if exported or reference == "pytorch":
        made_with += ["torch", "transformers"]
    language = checkpoint.config.get("language")
    return Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        source=CheckpointSource(
            repo_id=hub[0] if hub else None,
            path=None if hub else checkpoint.path.resolve().name,
            revision=hub[1] if hub else None,
            date=commit_date(checkpoint.path) if hub else None,
            files=checkpoint.files,
        ),
        architecture=checkpoint.architecture,
        labels=checkpoint.labels,
        max_tokens=checkpoint.max_tokens,
        preprocessing=checkpoint.preprocessing,
        text_pairs=checkpoint.text_pairs,
        language=language if isinstance(language, str) else None,
        notes=checkpoint.notes,
        reference=reference,
        variants={p: _variant(directory, ONNX_FILES[p], done) for p, done in passes.items()},
        files={side_file: sha256(directory / side_file) for side_file in SIDE_FILES},
        created_with={package: version(package) for package in made_with},
    )


def _variant(directory: Path, name: str, passes: list[str]) -> Variant:
    data = external_data(Path(name))
    return Variant(
        **_data_file(directory, name),
        passes=passes,
        data=DataFile(**_data_file(directory, str(data))) if (directory / data).exists() else None,
    )


def _data_file(directory: Path, name: str) -> dict[str, Any]:
    path = directory / name
    return {"file": name, "sha256": sha256(path), "bytes": path.stat().st_size}
