"""The command ``sentiment-export finetune``."""

import argparse
from collections import Counter
from typing import get_args

from sentiment_service.engine.text.options import Preprocessing
from sentiment_service.settings.formats import POSITIVE
from sentiment_service.settings.sources import CommandParser, local_path

from sentiment_export.quality.labelled import LABELLED
from sentiment_export.training.recipe import MAX_TOKENS, Recipe


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
            f"A text is cut to {MAX_TOKENS} tokens. Run the same command again to resume after the "
            "last whole epoch: until the end, OUTPUT.training has a file for each seed, three "
            "times as large as the weights."
        ),
    )
    parser.add_argument("base", type=local_path, help="local checkpoint directory of the encoder")
    parser.add_argument(
        "--train", type=local_path, nargs="+", required=True, help="one or more labelled files"
    )
    parser.add_argument("--validation", type=local_path, required=True, help="a labelled file")
    parser.add_argument(
        "--output", type=local_path, required=True, help="checkpoint directory to write"
    )
    parser.add_argument(
        "--epochs", type=_count, default=2, help="passes over the texts (default: %(default)s)"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=[0, 1],
        help="random seeds; each trains one model (default: 0 1)",
    )
    parser.add_argument(
        "--learning-rate",
        type=POSITIVE,
        default=1e-4,
        help="highest learning rate (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-size", type=_count, default=32, help="texts per step (default: %(default)s)"
    )
    parser.add_argument(
        "--tokens-from",
        type=_count,
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
    from sentiment_export.training.finetune import finetune

    finetune(Recipe(**settings), output)
    print(f"wrote {output}")


def _count(value: str) -> int:
    """A whole number of at least 1, for argparse."""
    if not value.isdecimal() or int(value) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {value!r}")
    return int(value)
