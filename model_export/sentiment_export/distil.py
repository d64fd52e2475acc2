"""Distils a classifier: fewer of its layers learn its logits, from texts without labels.

The student has the teacher's embeddings, head and some of its layers (Sanh et al. 2019,
"DistilBERT"). Its loss is the squared error of the logits (Ba and Caruana 2014, "Do Deep Nets
Really Need to be Deep?").
"""

import json
import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentiment_service.atomic_files import atomic_directory, full_disk_named, write_text_atomically
from sentiment_service.engine.loading import load_model
from sentiment_service.engine.model.bundle import Bundle, Manifest, Precision
from sentiment_service.engine.model.model import Model
from sentiment_service.errors import ServiceError, UserError
from sentiment_service.settings.settings import AS_IT_SAYS, CheckpointOptions

from sentiment_export.checkpoint.checkpoint import Checkpoint, find_checkpoint, load_checkpoint
from sentiment_export.checkpoint.config import model_config
from sentiment_export.checkpoint.graph_file import options_of, write_checkpoint
from sentiment_export.checkpoint.layout import origin
from sentiment_export.export import LeftOut, calibrated, export
from sentiment_export.finetune import fingerprint
from sentiment_export.output import check_bundle_output, distilled_section, is_bundle
from sentiment_export.quality.evaluation import (
    HeldOut,
    batches,
    compared,
    logits_of_examples,
    speed,
    too_bad,
)
from sentiment_export.quality.labelled import Columns, Example, read_examples, read_texts
from sentiment_export.training import Plan, Tokenised, decayed, digest, resumable, train

LEAST_TEXTS, ENOUGH_TEXTS = 500, 20_000
HELD_OUT = 0.1
CHUNK = 2048  # texts whose logits are kept together
TRIAL_STEPS = 12  # which say how many steps some minutes are


@dataclass(frozen=True, slots=True)
class Distillation:
    """What is asked for. ``layers`` is how many of the teacher's, or which; None means half."""

    source: str
    texts: Sequence[Path]
    layers: int | Sequence[int] | None = None
    labelled: Path | None = None
    epochs: int = 2
    minutes: float | None = None  # in the place of epochs
    learning_rate: float = 2e-4
    batch_size: int = 32
    seed: int = 0
    least_agreement: float = 0.0
    most_loss: float | None = None
    revision: str | None = None
    columns: Columns = field(default_factory=Columns)  # of texts and the labelled file
    options: CheckpointOptions = AS_IT_SAYS

    def identity(self, teacher: "Teacher", layers: Sequence[int]) -> dict[str, Any]:
        """What the student's weights depend on."""
        names = ("epochs", "minutes", "learning_rate", "batch_size", "seed")
        return {
            "the teacher": f"sha256 {teacher.key[:16]}",
            "the content of --texts": digest(self.texts),
            "the content of --labelled": digest([self.labelled] if self.labelled else []),
            "layers": list(layers),
            **asdict(self.columns.file),
            "column": self.columns.text,
            **{name: getattr(self, name) for name in names},
        }


def distil(recipe: Distillation, output: Path) -> Manifest:
    """Train a student of the teacher's layers, and write its bundle to ``output``.

    After an interruption, the same call goes on, and gives the same bundle; see ``resumable``.
    """
    output = check_bundle_output(output)
    if (source := Path(recipe.source)).exists() and source.resolve() == output:
        raise UserError(f"{output} is the teacher, which is not replaced; choose another --output")
    teacher = Teacher.find(recipe)
    layers = chosen_layers(recipe.layers, teacher)
    examples = _examples(recipe, teacher.checkpoint)
    texts = _texts(recipe, teacher, examples)
    with resumable(output, recipe.identity(teacher, layers)) as work:
        teachers, data, held_out = _lesson(teacher, texts, work)
        learnt, rest = len(data.ids), len(held_out.examples)
        print(f"{learnt} texts to learn from, {rest} held out; layers {_listed(layers)}")
        path = work / "student" / "checkpoint"  # a name from which nothing is guessed
        steps, seconds = _train(recipe, teacher.checkpoint, layers, data, work, path)
        student = load_checkpoint(path, options_of(teachers))
        record = {"teacher": teacher.described, "layers": layers, "texts": learnt, "steps": steps}
        record |= {"held_out": rest, "epochs": round(steps * recipe.batch_size / learnt, 2)}
        measured = ""

        def judge(bundle: Bundle) -> Manifest:
            nonlocal measured
            manifest = _calibrated(bundle, teachers.manifest, held_out)
            both = teachers, Bundle(bundle.path, manifest, dict(student.config))
            old, new = (load_model(b, device="cpu", precision="auto", threads=0) for b in both)
            found = {**record, **compared(old, new, held_out, examples)}
            measured = f"{speed(old, new, held_out)} The training took {seconds / 60:.1f} minutes."
            print(f"{distilled_section(found)}\n{measured}")
            if why := too_bad(found, recipe.least_agreement, recipe.most_loss):
                raise UserError(
                    f"nothing was written: {why}. More texts, more epochs or more layers would "
                    f"help; {work} keeps this student for the same command with lower limits"
                )
            return manifest.model_copy(update={"distilled": found})

        bundle = _exported(student, output, examples=examples, judge=judge)
        card = output / "README.md"
        write_text_atomically(card, f"{card.read_text('utf-8')}\n## Speed\n\n{measured}\n")
    if "int8" not in bundle.manifest.variants:
        raise UserError(f"{output} was written with fp32: see above why int8 was left out")
    return bundle.manifest


@dataclass(frozen=True, slots=True)
class Teacher:
    """A checkpoint, and its bundle if that is the source; ``key`` changes with its logits."""

    checkpoint: Checkpoint
    bundle: Bundle | None
    key: str
    described: Mapping[str, Any]

    @classmethod
    def find(cls, recipe: Distillation) -> "Teacher":
        """The teacher; the weights of a bundle are read back."""
        path = find_checkpoint(recipe.source, recipe.revision, recipe.options.onnx)
        if is_bundle(path):
            recipe.options.refuse_bundle(recipe.source)
            bundle = Bundle.open(path)
            with tempfile.TemporaryDirectory(prefix="distil-") as directory:
                with full_disk_named(Path(directory)):
                    write_checkpoint(bundle, Path(directory))
                # The weights are mapped, so they stay when the file is gone.
                checkpoint = load_checkpoint(Path(directory), options_of(bundle))
            name, origin_of, key = bundle.manifest.name, bundle.manifest.source, bundle.digest
            hub = origin_of.repo_id, origin_of.revision
        else:
            bundle, checkpoint = None, load_checkpoint(path, recipe.options)
            said = json.dumps([checkpoint.files, recipe.options.checkpoint_flags()])
            key, hub = sha256(said.encode()).hexdigest(), origin(path) or (None, None)
            name = hub[0].rpartition("/")[2] if hub[0] else path.resolve().name
        if checkpoint.graph is not None:
            raise UserError(f"{path} is an ONNX graph, whose layers cannot be trained")
        if checkpoint.text_pairs:
            raise UserError(f"{path} takes pairs of texts, and distil trains on single ones")
        depth = model_config(checkpoint.config).num_hidden_layers
        known = {"name": name, "repo_id": hub[0], "revision": hub[1], "layers": depth}
        return cls(checkpoint, bundle, key, {n: v for n, v in known.items() if v is not None})


def chosen_layers(wanted: int | Sequence[int] | None, teacher: Teacher) -> list[int]:
    """The layers that the student has, counted from 0: evenly chosen unless they are named."""
    depth, kind = teacher.described["layers"], teacher.checkpoint.config["model_type"]
    name = teacher.described["name"]
    if kind in ("albert", "modernbert"):
        why = "share their weights" if kind == "albert" else "are of two kinds in turn"
        raise UserError(f"the layers of {name} {why}, so none can be left out")
    if depth < 2:
        raise UserError(f"{name} has {depth} layer, so there is none to leave out")
    asked = depth // 2 if wanted is None else wanted
    if isinstance(asked, int):
        given, chosen = str(asked), [(n + 1) * depth // asked - 1 for n in range(asked)]
    else:
        given, chosen = _listed(asked), sorted(asked)
    if not 0 < len({*chosen} & {*range(depth)}) == len(chosen) < depth:
        raise UserError(
            f"--layers {given} is not for {name}: it has {depth}, numbered from 0 to {depth - 1}, "
            "and a student has fewer of them, each once"
        )
    return chosen


def _listed(layers: Sequence[int]) -> str:
    return ",".join(map(str, layers))


def _texts(recipe: Distillation, teacher: Teacher, labelled: Sequence[Example]) -> list[str]:
    """The texts in a random order, each once, whatever its spelling; none is labelled."""
    found: dict[str, str] = {}
    count = 0
    for path in recipe.texts:
        texts, refused, has_labels = read_texts(path, recipe.columns.text, recipe.columns.file)
        count += len(texts)
        found |= {fingerprint(text): text for text in texts}
        if has_labels:
            print(f"{path}: its labels are not used")
        if refused:
            print(f"{path}: {refused} texts are empty or cannot be read; they are left out")
    for example in labelled:
        found.pop(fingerprint(example.text), None)
    left_out = count - len(found)
    if left_out:
        print(f"{left_out} of {count} texts occur twice or in --labelled; they are left out")
    if len(found) < LEAST_TEXTS:
        raise UserError(
            f"{len(found)} different texts are too few to distil from: at least {LEAST_TEXTS} are "
            f"needed, and {ENOUGH_TEXTS:,} or more, without labels, make a good student"
        )
    known = teacher.checkpoint
    if len(known.languages) > 1 or known.config["model_type"] == "xlm-roberta":
        print(
            "warning: the teacher is for several languages; the student forgets all but the texts'"
        )
    texts = [found[key] for key in sorted(found)]
    random.Random(recipe.seed).shuffle(texts)
    return texts


def _examples(recipe: Distillation, checkpoint: Checkpoint) -> list[Example]:
    if (labelled := recipe.labelled) is None:
        return []
    columns = recipe.columns
    if labelled.suffix == ".tsv" and columns.label in (None, "label") and columns.group is None:
        columns = Columns(file=columns.file)  # --column alone is that of --texts
    multi_label = checkpoint.multi_label
    return read_examples(labelled, checkpoint.labels, columns, multi_label=multi_label)


def _lesson(
    teacher: Teacher, texts: Sequence[str], work: Path
) -> tuple[Bundle, Tokenised, HeldOut]:
    """The teacher's bundle, and what its most exact variant says of the texts.

    A tenth of them is held out. ``work`` keeps what has been computed.
    """
    path, bundle = work / "teacher", teacher.bundle
    if bundle is None:
        exported = path.exists()
        bundle = Bundle.open(path) if exported else _exported(teacher.checkpoint, path)
    exact: Precision = "fp32" if "fp32" in bundle.manifest.variants else "int8"
    model = load_model(bundle, device="cpu", precision=exact, threads=0)
    encodings = {
        text: encoding
        for text, encoding in zip(texts, model.tokenizer.encode_batch(texts), strict=True)
        if not isinstance(encoding, ServiceError)
    }
    examples = [Example("", (), text) for text in encodings]
    logits = _teachers_logits(model, examples, work / "teacher.f32")
    cut = len(examples) - round(len(examples) * HELD_OUT)
    ids = [encoding.ids for encoding in encodings.values()][:cut]
    learnt = Tokenised(ids, torch.from_numpy(logits[:cut]), bundle.pad_token_id)
    rest, scores = [*encodings.values()][cut:], model.scores(logits[cut:])
    return bundle, learnt, HeldOut(examples[cut:], rest, scores)


def _exported(checkpoint: Checkpoint, path: Path, **how: Any) -> Bundle:
    """The checkpoint's bundle, if need be without an int8 that would be too coarse."""
    try:
        export(checkpoint, path, **how)
    except LeftOut as error:
        print(error)
    return Bundle.open(path)


def _teachers_logits(model: Model, examples: Sequence[Example], file: Path) -> NDArray[np.float32]:
    """The logits [texts, labels]; those that an interrupted run has computed are in the file."""
    width = len(model.labels)
    with file.open("ab") as kept:
        done = kept.tell() // (CHUNK * width * 4) * CHUNK
        kept.truncate(done * width * 4)
        for chunk in batches(examples[done:], CHUNK):
            kept.write(logits_of_examples(model, chunk).tobytes())
            kept.flush()
    return np.fromfile(file, np.float32).reshape(len(examples), width)


def _train(
    recipe: Distillation,
    checkpoint: Checkpoint,
    layers: Sequence[int],
    data: Tokenised,
    work: Path,
    student: Path,
) -> tuple[int, float]:
    """Write the student's checkpoint; the number of steps, and the seconds.

    Some minutes are so many steps as they have at the speed of the first ones, which is kept: the
    weights depend on nothing else.
    """
    model, loss = _student(checkpoint, layers), torch.nn.MSELoss()

    def trained(model: Any, steps: int, work: Path) -> float:
        plan = Plan(recipe.seed, steps, recipe.batch_size, recipe.learning_rate, dropout=False)
        return train(model, decayed(model), data, plan, loss, lambda *_: {}, work)[1]

    steps = ceil(len(data.ids) / recipe.batch_size) * recipe.epochs
    if recipe.minutes is not None:
        counted = work / "steps"
        if not counted.exists():
            for left in work.glob("trial-*"):  # by a run that was killed in it
                shutil.rmtree(left)
            for count in (1, TRIAL_STEPS):  # the first step of a process takes longer
                with tempfile.TemporaryDirectory(prefix="trial-", dir=work) as trial:
                    pace = count / trained(deepcopy(model), count, Path(trial))
            write_text_atomically(counted, str(max(1, round(recipe.minutes * 60 * pace))))
        steps = int(counted.read_text())
    print(f"{steps} steps of {recipe.batch_size} texts")
    seconds = trained(model, steps, work)
    model.config.preprocessing = checkpoint.preprocessing
    with atomic_directory(student) as directory:
        model.save_pretrained(directory)
        checkpoint.tokenizer.write(directory, checkpoint.max_tokens)
    return steps, seconds


def _calibrated(student: Bundle, teacher: Manifest, held_out: HeldOut) -> Manifest:
    """The student's manifest with temperatures, and with the teacher's thresholds."""
    texts = held_out.examples
    digest = sha256("\0".join(one.text for one in texts).encode()).hexdigest()
    manifest = calibrated(student, texts, digest, teachers=held_out.scores)
    same = {name: getattr(teacher, name) for name in ("threshold", "thresholds")}
    return manifest.model_copy(update=same)


def _student(checkpoint: Checkpoint, layers: Sequence[int]) -> Any:
    """The checkpoint's module with only these layers."""
    model = replace(checkpoint).model  # not the one that an export has compared with
    depth = model.config.num_hidden_layers
    name, every = next(
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == depth
    )
    parent, _, own = name.rpartition(".")
    kept = torch.nn.ModuleList([every[layer] for layer in layers])
    setattr(model.get_submodule(parent), own, kept)
    model.config.num_hidden_layers = len(layers)
    return model
