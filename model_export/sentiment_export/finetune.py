"""Fine-tunes an encoder on labelled texts: ``sentiment-export finetune``.

Every seed trains a model from the same pretrained weights. The result is the average of
their weights (Wortsman et al. 2022, "Model soups"), which is as fast to serve as one model.
"""

import html
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from sentiment_service.atomic_files import atomic_directory
from sentiment_service.engine.options import Preprocessing
from sentiment_service.engine.text.input_tokenizer import normaliser
from sentiment_service.errors import UserError
from sentiment_service.settings.settings import CheckpointOptions

from sentiment_export.checkpoint.architectures import ARCHITECTURES, BERTWEET_BPE
from sentiment_export.checkpoint.checkpoint import max_tokens, pretrained_weights
from sentiment_export.checkpoint.config import SENTIMENTS, SINGLE_LABEL, model_config, read_config
from sentiment_export.checkpoint.decisions import decide
from sentiment_export.checkpoint.layout import CONFIG_FILE, choose_local_files
from sentiment_export.checkpoint.tokenizer import CheckpointTokenizer, load_tokenizer
from sentiment_export.output import check_new_output
from sentiment_export.quality.evaluation import batches
from sentiment_export.quality.labelled import (
    BY_DEFAULT,
    MAX_TRAINED_TOKENS,
    Columns,
    Example,
    read_examples,
)
from sentiment_export.quality.scores import Scores, score
from sentiment_export.training import (
    WARMUP_SHARE,
    Plan,
    Tokenised,
    collate,
    decayed,
    digest,
    resumable,
    train,
)

LABEL_SMOOTHING = 0.05
HEAD = {  # what config.json says of the classifier that is trained, whatever the base's says
    "problem_type": SINGLE_LABEL,
    "num_labels": len(SENTIMENTS),
    "id2label": dict(enumerate(SENTIMENTS)),
    "label2id": {label: index for index, label in enumerate(SENTIMENTS)},
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that the trained weights depend on."""

    base: Path
    train: Sequence[Path]
    validation: Path
    epochs: int
    seeds: Sequence[int]
    learning_rate: float
    batch_size: int
    preprocessing: Literal["auto", Preprocessing] = "auto"
    tokens_from: int | None = None  # only the word embeddings from this token id on are trained
    columns: Columns = BY_DEFAULT  # of the labelled files

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready copy. It is published with the model, so paths become file names."""
        settings = asdict(self)
        columns = settings.pop("columns")
        return settings | {
            **columns.pop("file"),
            "columns": columns,
            "base": self.base.name,
            "train": [path.name for path in self.train],
            "validation": self.validation.name,
            "seeds": list(self.seeds),
            "warmup_share": WARMUP_SHARE,
            "label_smoothing": LABEL_SMOOTHING,
            "max_tokens": MAX_TRAINED_TOKENS,
            "class_weights": "balanced",
        }

    def identity(self) -> dict[str, Any]:
        """What the weights of a seed depend on. Seeds can be added to an unfinished training."""
        settings = self.as_dict()
        for name in ("base", "train", "validation", "seeds"):
            del settings[name]
        return {
            "the content of the base": digest(sorted(filter(Path.is_file, self.base.iterdir()))),
            "the content of --train": digest(self.train),
            "the content of --validation": digest([self.validation]),
            **settings,
        }


def finetune(recipe: Recipe, output: Path) -> Scores:
    """Train with every seed, average the weights and write a checkpoint to ``output``.

    After an interruption, the same call goes on, and gives the same weights; see ``resumable``. The
    scores are the averaged model's on the validation texts that are not in the training data.
    """
    output = check_new_output(output)
    side_files, _ = choose_local_files(recipe.base)
    # What is not exported is not trained either.
    entries = read_config(recipe.base, str(recipe.base))
    config = model_config(entries)
    if (recipe.tokens_from or 0) >= config.vocab_size:
        raise UserError(f"{recipe.base} has no token {recipe.tokens_from} or above to train")
    tokenizer = load_tokenizer(recipe.base, entries, config.vocab_size)
    load_base(recipe.base)  # one that is incomplete is refused before anything is written
    examples = _labelled_texts(recipe)
    preprocessing = training_preprocessing(recipe, entries, side_files)
    recipe = replace(recipe, preprocessing=preprocessing)
    limit = min(MAX_TRAINED_TOKENS, max_tokens(config.to_dict()))
    learnt, validation = (
        tokenise(texts, tokenizer, config, preprocessing, limit) for texts in examples
    )
    cut = sum(len(ids) >= limit for ids in learnt.ids)
    print(f"texts are cut to {limit} tokens; {cut} training texts are that long or longer")
    with resumable(output, recipe.identity()) as work:
        averaged, runs = _train_every_seed(recipe, learnt, validation, work)
        model = load_base(recipe.base)
        model.load_state_dict(averaged)
        scores = evaluate(model, validation, recipe.batch_size)
        print(f"average of {len(recipe.seeds)} seeds\n{scores.table()}")
        record = {
            "recipe": recipe.as_dict(),
            "train_texts": len(learnt.ids),
            "validation_texts": len(validation.ids),
            "runs": runs,
            "averaged": scores.as_dict(),
        }
        model.config.preprocessing = preprocessing
        with atomic_directory(output) as directory:
            model.save_pretrained(directory)
            for name in side_files:
                if name != CONFIG_FILE:
                    shutil.copyfile(recipe.base / name, directory / name)
            text = json.dumps(record, indent=2) + "\n"
            (directory / "training.json").write_text(text, encoding="utf-8")
            check_new_output(output)  # something may have been put there meanwhile
    return scores


def training_preprocessing(
    recipe: Recipe, entries: Mapping[str, Any], side_files: Sequence[str]
) -> Preprocessing:
    """The normalisation of texts: as an export of the base decides, or of any BERTweet.

    A base of which nothing is known learns texts without user names and links, in the form of
    TweetEval. What was decided is printed, and a guess.
    """
    chosen = recipe.preprocessing
    tokenizer = ARCHITECTURES[entries["model_type"]].tokenizer_files(side_files)
    if tokenizer is BERTWEET_BPE and chosen == "auto":
        chosen = "bertweet"
    decided = decide(recipe.base, {**entries, **HEAD}, CheckpointOptions(preprocessing=chosen))
    preprocessing = decided.preprocessing
    if (chosen, preprocessing) == ("auto", "none") and "preprocessing" not in entries:
        preprocessing = "tweet"
    print(f"preprocessing {preprocessing}", *decided.notes, sep="\n")
    return preprocessing


def _labelled_texts(recipe: Recipe) -> tuple[list[Example], list[Example]]:
    """The training texts, and the validation texts that are not among them."""
    read = partial(read_examples, labels=SENTIMENTS, columns=recipe.columns)
    train, rows = [*chain.from_iterable(map(read, recipe.train))], read(recipe.validation)
    validation = without_leaks(rows, train)
    for label in SENTIMENTS:
        if not any(example.label == label for example in train):
            raise UserError(f"no training text has the label {label}")
    if not validation:
        raise UserError(f"every text of {recipe.validation} is also in the training data")
    print(
        f"{len(train)} training texts, {len(validation)} validation texts; left out "
        f"{len(rows) - len(validation)} validation texts that are also in the training data"
    )
    return train, validation


def _train_every_seed(
    recipe: Recipe, learnt: Tokenised, validation: Tokenised, work: Path
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The weights averaged over the seeds, and the validation scores of every epoch."""
    steps = ceil(len(learnt.ids) / recipe.batch_size) * recipe.epochs
    # Every class has the same share of the loss, as macro recall weighs them.
    counts = torch.bincount(learnt.targets)
    weight = len(learnt.targets) / (len(counts) * counts)
    loss_of = torch.nn.CrossEntropyLoss(weight=weight, label_smoothing=LABEL_SMOOTHING)

    def judge(model: Any, title: str) -> dict[str, Any]:
        scores = evaluate(model, validation, recipe.batch_size)
        print(f"{title}\n{scores.table()}")
        return scores.as_dict()

    averaged: dict[str, torch.Tensor] = {}
    runs = []
    for seed in recipe.seeds:
        torch.manual_seed(seed)
        model = load_base(recipe.base)
        groups = _parameter_groups(model, recipe.tokens_from)
        plan = Plan(seed, steps, recipe.batch_size, recipe.learning_rate)
        epochs, _ = train(model, groups, learnt, plan, loss_of, judge, work)
        runs.append({"seed": seed, "epochs": epochs})
        for name, tensor in model.state_dict().items():
            share = tensor.double() / len(recipe.seeds)
            averaged[name] = averaged[name] + share if name in averaged else share
    return {name: tensor.float() for name, tensor in averaged.items()}, runs


def without_leaks(validation: list[Example], train: list[Example]) -> list[Example]:
    """The validation examples whose text is not in the training data.

    Published training and validation sets often share texts in different spellings. So the
    comparison ignores letter case, punctuation, HTML entities, ``\\u2019`` escapes, user names
    and links.
    """
    seen = {fingerprint(example.text) for example in train}
    return [example for example in validation if fingerprint(example.text) not in seen]


def fingerprint(text: str) -> str:
    """What is equal in the spellings of one text."""
    unescaped = re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), text)
    plain = html.unescape(html.unescape(unescaped)).lower()
    without_names = re.sub(r"@\w+|http\S*", "", plain)
    # A text without letters and digits, such as emoji, is compared unchanged.
    return "".join(filter(str.isalnum, without_names)) or text


def tokenise(
    examples: list[Example],
    tokenizer: CheckpointTokenizer,
    config: Any,
    preprocessing: Preprocessing,
    max_tokens: int,
) -> Tokenised:
    """Normalise and tokenise as the service does, with at most ``max_tokens`` per text.

    The encoder has this ``config`` of transformers. An id without a row of its embedding is that of
    the unknown token (BERTweet; an export adds such rows, which are equal).
    """
    normalise = normaliser(preprocessing)
    tokenizer.cut_to(max_tokens)
    encodings = tokenizer.tokenizer.encode_batch_fast([normalise(e.text) for e in examples])
    ids = [
        [one if one < config.vocab_size else tokenizer.unknown_id for one in encoding.ids]
        for encoding in encodings
    ]
    indices = [SENTIMENTS.index(example.label) for example in examples]
    return Tokenised(ids, torch.tensor(indices), config.pad_token_id)


def load_base(base: Path) -> Any:
    """The pretrained encoder with a classifier for ``SENTIMENTS``."""
    entries = read_config(base, str(base)) | HEAD
    held, config = pretrained_weights(base, entries), model_config(entries)
    classifier = getattr(transformers, ARCHITECTURES[config.model_type].class_name)
    return classifier.from_pretrained(
        None,
        config=config,
        state_dict={name: torch.from_numpy(np.array(values)) for name, values in held.items()},
        dtype=torch.float32,  # in half precision, small steps are lost
        ignore_mismatched_sizes=True,  # replaces a classifier for other labels
    )


def _parameter_groups(model: Any, tokens_from: int | None) -> list[dict[str, Any]]:
    """All parameters; with ``tokens_from``, only the word embeddings from there on change."""
    if tokens_from is not None:
        model.requires_grad_(False)
        embeddings = model.get_input_embeddings().weight.requires_grad_()
        trained = (torch.arange(len(embeddings)) >= tokens_from).unsqueeze(1)
        embeddings.register_hook(lambda gradient: gradient * trained)
        return [{"params": [embeddings], "weight_decay": 0.0}]
    return decayed(model)


@torch.inference_mode()
def evaluate(model: torch.nn.Module, data: Tokenised, batch_size: int) -> Scores:
    model.eval()
    rows = sorted(range(len(data.ids)), key=lambda row: len(data.ids[row]))
    predicted = [("",)] * len(rows)
    for batch in batches(rows, batch_size):
        logits = model(**collate(data, batch)).logits
        for row, index in zip(batch, logits.argmax(-1).tolist(), strict=True):
            predicted[row] = (SENTIMENTS[index],)
    gold = [(SENTIMENTS[label],) for label in data.targets.tolist()]
    return score(gold, predicted, SENTIMENTS)
