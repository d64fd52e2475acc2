"""Exports a checkpoint to a bundle, verified and calibrated before the bundle appears."""

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from sentiment_service.atomic_files import atomic_directory, full_disk_named, write_text_atomically
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import (
    FORMAT_VERSION,
    MANIFEST,
    SIDE_FILES,
    Bundle,
    CalibrationLoss,
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

from sentiment_export.checkpoint.checkpoint import Checkpoint
from sentiment_export.checkpoint.layout import commit_date, origin
from sentiment_export.graph.builder import external_data
from sentiment_export.graph.variants import SourceGraphs, Write, graphs_of
from sentiment_export.output import ONNX_FILES, calibration_section, check_bundle_output, model_card
from sentiment_export.quality.evaluation import (
    AccuracyGate,
    as_decisions,
    calibrate,
    logits_of_examples,
)
from sentiment_export.quality.labelled import (
    BY_DEFAULT,
    LEAST_TEXTS,
    MAX_ACCURACY_LOSS,
    Columns,
    Example,
    read_examples,
)
from sentiment_export.quality.scores import marks
from sentiment_export.quality.verification import (
    NAMES,
    DiffersTooMuch,
    Reference,
    layer_parity,
    layer_table,
    verify,
)

MADE_WITH = ("sentiment-service", "onnx", "onnxruntime")


class LeftOut(UserError):
    """The bundle was written, without a variant that is too bad."""


def export(
    checkpoint: Checkpoint,
    output: Path,
    *,
    precisions: Sequence[Precision] = ("fp32", "int8"),
    examples: Sequence[Example] = (),
    max_accuracy_loss: float = MAX_ACCURACY_LOSS,
    judge: Callable[[Bundle], Manifest] | None = None,
    reference: ReferenceKind | None = None,
    debug_parity: bool = False,
) -> Manifest:
    """Write a bundle to ``output``; replaces an existing bundle, and never leaves half of one.

    With labelled ``examples``, a variant that scores worse than fp32 is left out. So is an int8
    that differs from the ``reference`` by more than its tolerance; ``LeftOut`` says so at the end.
    ``judge`` may add to the manifest, or refuse the bundle.
    """
    output = check_bundle_output(output)
    gate = AccuracyGate(examples, max_accuracy_loss)
    kind = _compared_with(checkpoint, reference, debug_parity=debug_parity)
    # The other variants are compared with fp32, even if fp32 was not requested.
    first: Sequence[Precision] = ("fp32",) if examples or kind == "fp32" else ()
    made = dict.fromkeys((*first, *precisions))
    with atomic_directory(output) as directory:
        (directory / "onnx").mkdir()
        _write_side_files(checkpoint, directory)
        with tempfile.TemporaryDirectory(dir=directory) as work, full_disk_named(directory):
            print("writing the graphs")
            if checkpoint.graph is None:
                source, write = None, graphs_of(checkpoint, Path(work))
            else:
                source = SourceGraphs(checkpoint, checkpoint.graph, Path(work))
                write = source.write
                if source.kept:
                    print(f"{checkpoint.graph.path.name}: {source.kept}")
                    precisions = (checkpoint.graph.precision,)
                    made = dict.fromkeys(precisions)
            variants = _written(checkpoint, write, made, directory)
        checkpoint.weights.release()
        manifest = _manifest(checkpoint, directory, output.name, variants, kind)
        checks = _Checks(checkpoint, directory, gate, kind, source)
        for precision in made:
            if debug_parity:
                file = directory / ONNX_FILES[precision]
                ids = checkpoint.tokenizer.tokenizer.encode(TEXTS[-1]).ids[: checkpoint.max_tokens]
                found = layer_parity(checkpoint, file, precision, ids)
                print(f"{precision}, layer by layer:\n{layer_table(precision, found)}")
            manifest = checks.passed(manifest, precision)
        manifest = _only(manifest, [p for p in precisions if p not in gate.refused], directory)
        if not manifest.variants:
            raise UserError(f"no bundle was written: {gate.verdict()}; give --precision fp32")
        if judge:
            manifest = judge(Bundle(directory, manifest, dict(checkpoint.config)))
        card = model_card(manifest, multi_label=checkpoint.multi_label)
        text = manifest.model_dump_json(indent=2, exclude_none=True)
        (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")
        (directory / "README.md").write_text(card, encoding="utf-8")
        Bundle.open(directory)  # as the service does: what was written contradicts itself nowhere
        check_bundle_output(output)  # something may have been put there meanwhile
    if gate.refused:
        raise LeftOut(f"{output} was written with {', '.join(manifest.variants)}: {gate.verdict()}")
    return manifest


def _written(
    checkpoint: Checkpoint, write: Write, precisions: Iterable[Precision], directory: Path
) -> dict[Precision, Variant]:
    """Write the variants, from weights all at the same time: each copies a matrix at a time.

    What is made of a graph holds all of its weights, so one is written after the other.
    """

    def written(precision: Precision) -> tuple[Precision, Variant]:
        name = ONNX_FILES[precision]
        return precision, _variant(directory, name, write(precision, directory / name))

    with ThreadPoolExecutor(1 if checkpoint.encoder is None else None) as pool:
        return dict(pool.map(written, precisions))


def _compared_with(
    checkpoint: Checkpoint, reference: ReferenceKind | None, *, debug_parity: bool
) -> ReferenceKind:
    """What the variants are compared with, if there is what that needs."""
    if checkpoint.graph is not None:
        if reference or debug_parity:
            asked = "--debug-parity" if debug_parity else f"--reference {reference}"
            raise UserError(
                f"{asked} needs weights, and {checkpoint.graph.path} is an ONNX graph: what is "
                "made of it is compared with the graph itself"
            )
        return "onnx"
    has_pytorch = all(find_spec(package) for package in ("torch", "transformers"))
    if not has_pytorch and (reference == "pytorch" or debug_parity):
        raise UserError(
            "a comparison with PyTorch needs PyTorch and transformers, which the extra `torch` "
            "installs; without them, give --reference fp32"
        )
    return reference or ("pytorch" if has_pytorch else "fp32")


@dataclass(slots=True)
class _Checks:
    """Compares the variants with one reference, and scores them."""

    checkpoint: Checkpoint
    directory: Path
    gate: AccuracyGate
    kind: ReferenceKind
    source: SourceGraphs | None
    reference: Reference | None = None  # known once the first variant is open

    def passed(self, manifest: Manifest, precision: Precision) -> Manifest:
        """The manifest with the variant's parity and accuracy, unless the gate refuses it."""
        variant = manifest.variants[precision]
        bundle = Bundle(self.directory, manifest, dict(self.checkpoint.config))
        model = load_model(bundle, device="cpu", precision=precision, threads=0)
        parity = invariant = None
        if self.kind == "fp32" and precision == "fp32":
            print("computing the reference with fp32")
            self.reference = Reference.of_graph(model)
        else:
            try:
                parity, same = self._compared(model)
                # What it computes, only its maker knows. A few texts say too little of fp16.
                if self.source is not None and precision != "fp16":
                    invariant = same
            except DiffersTooMuch as error:
                if precision != "int8":  # only int8's coarser weights may be too coarse
                    raise
                self.gate.refused[precision] = str(error)
                return manifest
            print(
                f"{precision}: {variant.total_bytes / 1e6:.1f} MB, logits within "
                f"{parity.max_abs_logit_diff:.2g} of {NAMES[self.kind]}, labels agree on "
                f"{parity.label_agreement:.1%} of {parity.samples} texts"
            )
        accuracy = self.gate.scored(model)
        filled = variant.model_copy(
            update={"parity": parity, "accuracy": accuracy, "batch_invariant": invariant}
        )
        return manifest.model_copy(update={"variants": {**manifest.variants, precision: filled}})

    def _compared(self, model: Model) -> tuple[Parity, bool]:
        print(f"comparing {model.precision} with {NAMES[self.kind]}")
        if self.reference is None and self.source is not None:
            self.reference = Reference.of_source(self.source.session, model)
        elif self.reference is None:
            self.reference = Reference.of_pytorch(self.checkpoint, model)
        masked = self.source is None or self.source.is_masked
        # Whoever quantized the graph has chosen how coarse it is.
        kept = self.source is not None and masked and bool(self.source.kept)
        try:
            return verify(model, self.reference, coarse=kept and model.precision == "int8")
        except DiffersTooMuch as error:
            if masked:
                raise
            raise UserError(
                "the graph takes no attention_mask, and padding changes its logits: export it "
                f"again with one ({error})"
            ) from error


def _only(manifest: Manifest, kept: Sequence[Precision], directory: Path) -> Manifest:
    """The manifest with only the ``kept`` variants; deletes the files of the others."""
    for precision in manifest.variants.keys() - set(kept):
        file = directory / ONNX_FILES[precision]
        file.unlink()
        external_data(file).unlink(missing_ok=True)
    variants = {precision: manifest.variants[precision] for precision in kept}
    return manifest.model_copy(update={"variants": variants})


def _write_side_files(checkpoint: Checkpoint, directory: Path) -> None:
    text = json.dumps(checkpoint.config, indent=2, sort_keys=True) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")
    with full_disk_named(directory):
        checkpoint.tokenizer.write(directory, checkpoint.max_tokens)


def _manifest(
    checkpoint: Checkpoint,
    directory: Path,
    name: str,
    variants: dict[Precision, Variant],
    reference: ReferenceKind,
) -> Manifest:
    hub, made_with = origin(checkpoint.path), [*MADE_WITH]
    exported = checkpoint.encoder is None and checkpoint.graph is None
    if exported:
        made_with.append("onnxscript")
    if exported or reference == "pytorch":
        made_with += ["torch", "transformers"]
    languages = checkpoint.languages
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
        language=languages[0] if len(languages) == 1 else None,
        languages=languages if len(languages) > 1 else [],
        notes=checkpoint.notes,
        reference=reference,
        variants=variants,
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
    file = directory / name
    return {"file": name, "sha256": sha256(file), "bytes": file.stat().st_size}


def calibrated(
    bundle: Bundle,
    examples: Sequence[Example],
    digest: str,
    loss: CalibrationLoss = "log",
    *,
    teachers: NDArray[Any] | None = None,
    needed: bool = False,
) -> Manifest:
    """The bundle's manifest with a temperature for every variant, each fitted on its own logits.

    The ``examples`` are those of the labelled file with this ``digest``, or have a teacher's scores
    [texts, labels]. A variant whose scores no temperature brings nearer to them stays as it is, or
    is refused if a temperature is ``needed``.
    """
    labels = [example.labels for example in examples]
    likely = marks(labels, bundle.manifest.labels) if teachers is None else teachers
    variants = {**bundle.manifest.variants}
    for precision, variant in bundle.manifest.variants.items():
        model = load_model(bundle, device="cpu", precision=precision, threads=0)
        logits, gold = as_decisions(model, logits_of_examples(model, examples), likely)
        try:
            calibration = calibrate(logits, gold, loss, digest, len(gold) // len(examples))
        except UserError as error:
            if needed:
                raise
            print(f"{precision} is not calibrated: {error}")
            continue
        print(f"{precision}: {calibration.line()}")
        variants[precision] = variant.model_copy(update={"calibration": calibration})
    return bundle.manifest.model_copy(update={"variants": variants})


def calibrate_bundle(
    path: Path,
    file: Path,
    loss: CalibrationLoss,
    columns: Columns = BY_DEFAULT,
) -> None:
    """Calibrate a bundle on a labelled file, and record it in its manifest and its model card.

    What was added below a model card stays there. One that was edited otherwise stays as it is; its
    new section is printed instead.
    """
    bundle = Bundle.open(path)
    labels, multi_label = bundle.manifest.labels, bundle.multi_label
    if multi_label and {bundle.manifest.threshold, *bundle.manifest.thresholds.values()} != {0.5}:
        raise UserError(
            f"{path} has thresholds other than 0.5, which hold for its scores as they are: remove "
            f"them from {MANIFEST}, calibrate, and choose them anew"
        )
    examples = read_examples(file, labels, columns, multi_label=multi_label, least=LEAST_TEXTS)
    manifest = calibrated(bundle, examples, sha256(file), loss, needed=True)
    # The manifest may hold entries of a newer version; they stay.
    document = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    for precision, variant in manifest.variants.items():
        document["variants"][precision] |= variant.model_dump(include={"calibration"})
    card = path / "README.md"
    before = model_card(bundle.manifest, multi_label=multi_label)
    text = card.read_text(encoding="utf-8") if card.exists() else before
    write_text_atomically(
        path / MANIFEST, json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    )
    if not text.startswith(before):
        print(f"{card} was edited, so it stays; add this to it:\n{calibration_section(manifest)}")
    else:
        after = model_card(manifest, multi_label=multi_label)
        write_text_atomically(card, after + text.removeprefix(before))
