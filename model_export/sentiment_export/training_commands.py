"""The commands that train: ``sentiment-export finetune`` and ``sentiment-export distil``."""

import argparse
from collections import Counter
from typing import Any, get_args

from sentiment_service.engine.options import Preprocessing
from sentiment_service.files.text_files import FileOptions
from sentiment_service.settings.formats import POSITIVE, SHARE, count
from sentiment_service.settings.settings import CheckpointOptions
from sentiment_service.settings.sources import CommandParser, add_settings, local_path

from sentiment_export.export_command import SOURCE, parsed, source
from sentiment_export.quality.labelled import LABELLED, MAX_TRAINED_TOKENS, Columns


def finetune_command(words: list[str]) -> None:
    """Run the command with these arguments. Wrong usage exits with code 2.

    Raises:
        UserError: the training cannot be done; see ``finetune``.
    """
    parser = CommandParser(
        "sentiment-export finetune",
        description=(
            "Fine-tune an encoder for the labels negative, neutral and positive. The seeds are "
            f"trained one after another, and their weights are averaged. Files have {LABELLED}. "
            f"A text is cut to {MAX_TRAINED_TOKENS} tokens. {RESUMED}"
        ),
    )
    parser.add_argument("base", type=local_path, help="local checkpoint directory of the encoder")
    parser.add_argument(
        "--train", type=local_path, nargs="+", required=True, help="one or more labelled files"
    )
    parser.add_argument("--validation", type=local_path, required=True, help="a labelled file")
    FileOptions.add_arguments(parser)
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
    settings = vars(options)
    output = settings.pop("output")
    # Imported here because it loads torch and transformers, which --help does not need.
    from sentiment_export.finetune import Recipe, finetune

    finetune(Recipe(**settings), output)
    print(f"wrote {output}")


def distil_command(words: list[str]) -> None:
    """Run the command with these arguments. Wrong usage exits with code 2.

    Raises:
        UserError: the student cannot be made, or is too bad; see ``distil``.
    """
    parser = CommandParser(
        "sentiment-export distil",
        description=(
            "Make a faster model of your own one: a student with fewer layers learns its answers "
            "to texts without labels, of which a tenth is held out to compare the two. "
            f"{RESUMED}"
        ),
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
    given |= {"columns": Columns.of(options), "file_options": FileOptions.of(options)}
    distil(Distillation(**given, options=reading), options.output)
    print(f"wrote {options.output}")


RESUMED = (
    "Run the same command again to continue an interrupted run: until the end, OUTPUT.training has "
    "what it needs, some three times the size of the weights for each seed."
)


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
