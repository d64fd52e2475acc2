"""The commands that make a model: ``sentiment-export`` itself, ``finetune`` and ``distil``."""

import argparse
import os
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, get_args

from sentiment_service.engine.model.bundle import Precision, ReferenceKind, sha256
from sentiment_service.engine.options import Preprocessing
from sentiment_service.errors import UserError
from sentiment_service.exported_models import HUB_ID
from sentiment_service.settings.formats import POSITIVE, SHARE, count
from sentiment_service.settings.settings import CheckpointOptions, flag
from sentiment_service.settings.sources import (
    CommandParser,
    add_settings,
    add_version,
    local_path,
    nearest,
    read_options,
)

from sentiment_export.output import check_bundle_output
from sentiment_export.quality.labelled import (
    LABELLED,
    LEAST_TEXTS,
    MAX_ACCURACY_LOSS,
    MAX_TRAINED_TOKENS,
    Columns,
    read_examples,
)

EXPORTED: tuple[Precision, ...] = ("fp32", "int8", "fp16")
DEFAULT: tuple[Precision, ...] = ("fp32", "int8")
DESCRIPTION = """\
Turn a checkpoint into a bundle that `sentiment serve` loads.

  sentiment-export SOURCE --output DIR     export and verify (see the options below)
  sentiment-export describe SOURCE         show what a checkpoint holds
  sentiment-export evaluate BUNDLE FILE    score a bundle on labelled texts
  sentiment-export calibrate BUNDLE FILE   make a bundle's scores match how often they are right
  sentiment-export finetune BASE ...       train a classifier on labelled texts
  sentiment-export distil SOURCE ...       make a faster model with fewer layers from texts alone
  sentiment-export COMMAND --help          all options of a command
"""
# The options of an export that a bundle, which was judged when it was made, cannot follow.
JUDGING = ("evaluate", "max_accuracy_loss", "calibrate", "reference", "debug_parity")
SOURCE = (
    "hub id (org/name[@revision]), a directory with a checkpoint or ONNX graphs, or a model's "
    "directory in a hub cache"
)
RESUMED = (
    "Run the same command again to continue an interrupted run: until the end, OUTPUT.training has "
    "what it needs, some three times the size of the weights for each seed."
)


# Each runs with the arguments ``words``. Wrong usage exits with code 2.


def export_command(words: list[str], commands: Iterable[str]) -> None:
    """Export; ``commands`` are the other ones, for the error when one of them is misspelt."""
    parser = CommandParser(
        "sentiment-export",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=source, help=SOURCE)
    parser.add_argument(
        "--output",
        type=local_path,
        required=True,
        help="bundle directory to write; an earlier bundle there is replaced, nothing else is",
    )
    parser.add_argument("--revision", help="branch, tag or commit on the hub (default: main)")
    parser.add_argument(
        "--precision",
        type=_precisions,
        default=DEFAULT,
        metavar="LIST",
        help=f"comma-separated variants to write, from {','.join(EXPORTED)}; int8 is for the CPU, "
        "fp16 for CUDA; an ONNX graph that is quantized or fp16 stays what it is (default: "
        f"{','.join(DEFAULT)})",
    )
    # For the service: what to copy of a bundle that has none of these, the first that it has.
    parser.add_argument("--else", type=_listed, default=(), dest="others", help=argparse.SUPPRESS)
    add_settings(parser, CheckpointOptions.model_fields)
    parser.add_argument(
        "--evaluate",
        type=local_path,
        metavar="FILE",
        help=f"record every variant's scores on {LABELLED}",
    )
    parser.add_argument(
        "--max-accuracy-loss",
        type=SHARE,
        default=MAX_ACCURACY_LOSS,
        metavar="LOSS",
        help="leave out a variant if its accuracy or macro recall on the labelled texts is lower "
        "than that of fp32 by more than this, from 0 to 1 (default: %(default)s)",
    )
    parser.add_argument(
        "--calibrate",
        type=local_path,
        metavar="FILE",
        help="fit every variant's temperature, so that scores match how often they are right, on "
        f"{LABELLED}; use texts that the checkpoint was not trained on",
    )
    Columns.add_arguments(parser)
    parser.add_argument(
        "--reference",
        choices=get_args(ReferenceKind)[:2],
        help="what the variants are compared with: the checkpoint in PyTorch, or the fp32 graph "
        "(default: pytorch where it is installed)",
    )
    parser.add_argument(
        "--debug-parity",
        action="store_true",
        help="compare every layer with PyTorch and name the first that differs too much",
    )
    add_version(parser)
    misspelt = nearest(words[0], commands) if words and "--output" not in " ".join(words) else ""
    if misspelt:
        parser.error(f"there is no command {words[0]!r}{misspelt}")
    options, reading = parsed(parser, words)
    check_bundle_output(options.output)
    fetched = False
    if not Path(options.source).exists():  # otherwise nothing of the hub is needed
        from sentiment_export.checkpoint.hub import fetch_bundle

        def refuse(name: str) -> None:
            reading.refuse_bundle(name)
            if given := [
                one for one in JUDGING if getattr(options, one) != parser.get_default(one)
            ]:
                raise UserError(
                    f"{name} is a bundle, which is copied as it is: leave out "
                    f"{', '.join(map(flag, given))}, and use sentiment-export evaluate and "
                    "calibrate on the copy"
                )

        wanted = (options.source, options.output, options.revision, options.precision)
        fetched = fetch_bundle(*wanted, others=options.others, refuse=refuse)
    if not fetched:
        _export_checkpoint(options, reading)
    print(f"wrote {options.output}")


def finetune_command(words: list[str]) -> None:
    parser = CommandParser(
        "sentiment-export finetune",
        description="Fine-tune an encoder for the labels negative, neutral and positive. The seeds "
        f"are trained one after another, and their weights are averaged. Files have {LABELLED}. "
        f"A text is cut to {MAX_TRAINED_TOKENS} tokens. {RESUMED}",
    )
    parser.add_argument("base", type=local_path, help="local checkpoint directory of the encoder")
    parser.add_argument(
        "--train", type=local_path, nargs="+", required=True, help="one or more labelled files"
    )
    parser.add_argument("--validation", type=local_path, required=True, help="a labelled file")
    Columns.add_arguments(parser, groups=False)
    _add_training(parser, parser, "checkpoint", learning_rate=1e-4)
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[0, 1],
        help="random seeds; each trains one model (default: 0 1)",
    )
    parser.add_argument(
        "--tokens-from",
        type=count,
        metavar="ID",
        help="train only the word embeddings from this token id on, such as those of added tokens; "
        "the answers to texts without these tokens stay the same to the last bit",
    )
    parser.add_argument(
        "--preprocessing",
        choices=("auto", *get_args(Preprocessing)),
        default="auto",
        help="how texts are normalised; auto means: as for an export of the base, and 'tweet' if "
        "nothing is known of it (default: %(default)s)",
    )
    options = parser.parse_args(words)
    seed, times = Counter(options.seeds).most_common(1)[0]
    if times > 1:
        parser.error(f"argument --seeds: {seed} is given {times} times; give each seed once")
    # Imported here because it loads torch and transformers, which --help does not need.
    from sentiment_export.finetune import Recipe, finetune

    names = Recipe.__dataclass_fields__
    given = {name: value for name, value in vars(options).items() if name in names}
    finetune(Recipe(**given, columns=Columns.of(options)), options.output)
    print(f"wrote {options.output}")


def distil_command(words: list[str]) -> None:
    parser = CommandParser(
        "sentiment-export distil",
        description="Make a faster model of your own one: a student with fewer layers learns its "
        "answers to texts without labels, of which a tenth is held out to compare the two. "
        f"{RESUMED}",
    )
    parser.add_argument("source", type=source, help=f"the teacher: a bundle, {SOURCE}")
    parser.add_argument(
        "--texts",
        type=local_path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="texts that `sentiment classify` reads; labels are not used",
    )
    parser.add_argument(
        "--layers",
        type=_layers,
        metavar="N|LIST",
        help="how many layers the student has, evenly chosen, or which, such as 1,3,5, counted "
        "from 0 (default: half of them)",
    )
    parser.add_argument(
        "--labelled", type=local_path, metavar="FILE", help=f"compare the two on {LABELLED}"
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--minutes", type=POSITIVE, help="train for about so long instead, as measured at the start"
    )
    _add_training(parser, length, "bundle", learning_rate=2e-4)
    parser.add_argument("--seed", type=int, default=0, help="of the order (default: %(default)s)")
    parser.add_argument(
        "--least-agreement",
        type=SHARE,
        default=0.0,
        metavar="SHARE",
        help="write nothing if the student gives fewer of the held-out texts the teacher's label",
    )
    parser.add_argument(
        "--most-loss",
        type=SHARE,
        metavar="LOSS",
        help="write nothing if its accuracy or macro recall on --labelled is lower by more",
    )
    parser.add_argument("--revision", help="branch, tag or commit on the hub (default: main)")
    add_settings(parser, CheckpointOptions.model_fields)
    Columns.add_arguments(parser)
    options, reading = parsed(parser, words)
    if options.most_loss is not None and options.labelled is None:
        parser.error("argument --most-loss: it needs --labelled FILE")
    # Imported here because it loads torch and transformers, which --help does not need.
    from sentiment_export.distil import Distillation, distil

    names = Distillation.__dataclass_fields__
    given: dict[str, Any] = {name: value for name, value in vars(options).items() if name in names}
    distil(Distillation(**given, columns=Columns.of(options), options=reading), options.output)
    print(f"wrote {options.output}")


def parsed(parser: CommandParser, words: list[str]) -> tuple[argparse.Namespace, CheckpointOptions]:
    """The arguments, and what they say of a checkpoint. Wrong usage exits with code 2.

    The source may be ORG/NAME@REVISION, as for ``sentiment serve``, unless there is such a path.
    """
    options = parser.parse_args(words)
    hub_id = None if Path(options.source).exists() else HUB_ID.fullmatch(options.source)
    if hub_id and hub_id[2]:
        if options.revision is not None:
            parser.error(f"argument --revision: {options.source} names one already")
        options.source, options.revision = hub_id.groups()
    try:
        return options, read_options(options)
    except ValueError as error:
        parser.error(str(error))


def _export_checkpoint(options: argparse.Namespace, reading: CheckpointOptions) -> None:
    from sentiment_export.checkpoint.checkpoint import find_checkpoint, load_checkpoint
    from sentiment_export.export import calibrated, export

    path = find_checkpoint(options.source, options.revision, reading.onnx)
    checkpoint = load_checkpoint(path, reading)
    print(
        f"{checkpoint.architecture}; labels {', '.join(checkpoint.labels)}; at most "
        f"{checkpoint.max_tokens} tokens; preprocessing {checkpoint.preprocessing}"
    )
    for note in checkpoint.notes:
        print(note)
    read = partial(
        read_examples,
        labels=checkpoint.labels,
        columns=Columns.of(options),
        multi_label=checkpoint.multi_label,
    )
    examples, judge = read(options.evaluate) if options.evaluate else [], None
    if file := options.calibrate:
        texts = read(file, least=LEAST_TEXTS)
        judge = partial(calibrated, examples=texts, digest=sha256(file))
    export(
        checkpoint,
        options.output,
        precisions=options.precision,
        examples=examples,
        max_accuracy_loss=options.max_accuracy_loss,
        judge=judge,
        reference=options.reference,
        debug_parity=options.debug_parity,
    )


def source(value: str) -> str:
    """A hub id or a path."""
    return os.path.expanduser(value)  # noqa: PTH111 - a hub id stays as it is


def _listed(value: str) -> list[str]:
    return [name.strip() for name in value.split(",")]


def _precisions(value: str) -> tuple[Precision, ...]:
    wanted = _listed(value)
    unknown = [name for name in wanted if name not in EXPORTED]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"unknown precision {', '.join(unknown)}; choose from {', '.join(EXPORTED)}"
        )
    return tuple(precision for precision in EXPORTED if precision in wanted)


def _add_training(
    parser: CommandParser, length: argparse._ActionsContainer, made: str, learning_rate: float
) -> None:
    """The flags of every training; ``length`` is where the one of its length belongs."""
    length.add_argument(
        "--epochs", type=count, default=2, help="passes over the texts (default: %(default)s)"
    )
    parser.add_argument(
        "--learning-rate",
        type=POSITIVE,
        default=learning_rate,
        help="highest learning rate (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-size", type=count, default=32, help="texts per step (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=local_path, required=True, help=f"{made} directory to write"
    )


def _layers(value: str) -> int | tuple[int, ...]:
    """How many layers, or with a comma which."""
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(
            f"must be a number of layers, or which layers, such as 1,3,5, not {value!r}"
        )
    return tuple(map(int, parts)) if "," in value else int(value)
