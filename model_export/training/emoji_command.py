"""The command ``sentiment-export add-emoji``."""

from pathlib import Path

from app.cli.command_parser import CommandParser, local_path
from model_export.training.command import count


def add_emoji_command(words: list[str]) -> None:
    """Run the command with these arguments. Wrong usage exits with code 2.

    Raises:
        UserError: a file cannot be read, the tokenizer is not of BERT's kind, or something is at
            an output.
    """
    parser = CommandParser(
        "sentiment-export add-emoji",
        description=(
            "Prepare a training that teaches a model emoji: write a checkpoint whose tokenizer "
            "has a token for each, with the mean embedding of its name's tokens, and a labelled "
            "file in which some texts have emoji. finetune takes both."
        ),
    )
    parser.add_argument("base", type=local_path, help="local checkpoint directory of BERT's kind")
    parser.add_argument(
        "--ranking",
        type=local_path,
        required=True,
        help="Emoji_Sentiment_Data_v1.0.csv: how often an emoji occurred in texts of each label",
    )
    parser.add_argument(
        "--train", type=local_path, required=True, help="a labelled file without emoji"
    )
    parser.add_argument("--texts", type=count, required=True, help="how many of its texts to use")
    parser.add_argument(
        "--turned",
        type=float,
        default=0.15,
        help="share of the neutral texts that are repeated with a plainly positive or negative "
        "emoji and its label (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=0, help="what is drawn (default: %(default)s)")
    parser.add_argument(
        "--output", type=local_path, required=True, help="checkpoint directory to write"
    )
    parser.add_argument("--composed", type=local_path, required=True, help="labelled file to write")
    options = parser.parse_args(words)
    if not 0 <= options.turned <= 1:
        parser.error("argument --turned: must be a number from 0 to 1")
    _add_emoji(**vars(options))
    print(f"wrote {options.output} and {options.composed}")


def _add_emoji(
    base: Path,
    ranking: Path,
    train: Path,
    texts: int,
    turned: float,
    seed: int,
    output: Path,
    composed: Path,
) -> None:
    # Imported here because --help does not need torch and transformers.
    from transformers import AutoModelForSequenceClassification

    from app.atomic_files import atomic_directory, write_text_atomically
    from model_export.checkpoint.fast_tokenizer.tokenizer import load_tokenizer
    from model_export.checkpoint.labels import SENTIMENTS
    from model_export.checkpoint.layout import check_directory, choose_local_files
    from model_export.output import check_new_output
    from model_export.quality.labelled import read_examples
    from model_export.training.emoji_texts import compose
    from model_export.training.emoji_tokens import add_emoji, emoji_names, read_counts

    output, composed = check_new_output(output), check_new_output(composed)
    check_directory(base)
    choose_local_files(base)
    counts = read_counts(ranking)
    examples = compose(
        read_examples(train, SENTIMENTS), counts, texts=texts, turned=turned, seed=seed
    )
    model = AutoModelForSequenceClassification.from_pretrained(base, trust_remote_code=False)
    tokenizer = add_emoji(model, load_tokenizer(base), emoji_names(counts))
    rows = [f"{example.group}\t{example.label}\t{example.text}\n" for example in examples]
    with atomic_directory(output) as directory:
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    write_text_atomically(composed, "".join(rows))
