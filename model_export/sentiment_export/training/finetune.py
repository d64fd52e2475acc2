"""Fine-tunes an encoder on labelled texts: ``sentiment-export finetune``.

Every seed trains a model from the same pretrained weights. The result is the average of
their weights (Wortsman et al. 2022, "Model soups"), which is as fast to serve as one model.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from sentiment_service.atomic_files import atomic_directory, full_disk_named
from sentiment_service.engine.text.options import Preprocessing
from sentiment_service.errors import UserError
from sentiment_service.settings.settings import CheckpointOptions
from transformers import AutoTokenizer, BertweetTokenizer

from sentiment_export.checkpoint.checkpoint import max_tokens
from sentiment_export.checkpoint.config import model_config, read_config
from sentiment_export.checkpoint.decisions import decide
from sentiment_export.checkpoint.labels import SENTIMENTS, SINGLE_LABEL
from sentiment_export.checkpoint.layout import choose_local_files
from sentiment_export.output import check_new_output
from sentiment_export.quality.labelled import Example, read_examples
from sentiment_export.quality.scores import Scores
from sentiment_export.training.recipe import MAX_TOKENS, Recipe, remove_saves, start_or_resume
from sentiment_export.training.seed_run import (
    Tokenised,
    evaluate,
    load_base,
    tokenise,
    train_seed,
    without_leaks,
)


def finetune(recipe: Recipe, output: Path, say: Callable[[str], None] = print) -> Scores:
    """Train with every seed, average the weights and write a checkpoint to ``output``.

    After an interruption, the same call resumes after the last whole epoch and gives the same
    weights as an uninterrupted run. The saves are in ``<output>.training`` until then.

    Returns:
        The averaged model's scores on the validation texts that are not in the training data.

    Raises:
        UserError: ``base`` is not a checkpoint that can be exported, a labelled file cannot be
            read, a label has no training text, no validation text is left, no token is to be
            trained, the saves are of another training, something is at ``output``, or the disk
            is full.
    """
    output = check_new_output(output)
    choose_local_files(recipe.base)
    # What is not exported is not trained either.
    entries = read_config(recipe.base, str(recipe.base))
    config = model_config(entries)
    if (recipe.tokens_from or 0) >= config.vocab_size:
        raise UserError(f"{recipe.base} has no token {recipe.tokens_from} or above to train")
    tokenizer = AutoTokenizer.from_pretrained(recipe.base, config=config, trust_remote_code=False)
    train, validation = _labelled_texts(recipe, say)
    preprocessing = training_preprocessing(recipe, entries, tokenizer, say)
    recipe = replace(recipe, preprocessing=preprocessing)
    limit = min(MAX_TOKENS, max_tokens(config.to_dict()))
    train_set = tokenise(train, SENTIMENTS, tokenizer, preprocessing, limit)
    validation_set = tokenise(validation, SENTIMENTS, tokenizer, preprocessing, limit)
    cut = sum(len(ids) >= limit for ids in train_set.ids)
    say(f"texts are cut to {limit} tokens; {cut} training texts are that long or longer")
    work = output.with_name(output.name + ".training")
    start_or_resume(work, recipe)

    with full_disk_named(work):
        averaged, runs = _train_every_seed(recipe, train_set, validation_set, work, say)
    model = load_base(recipe.base)
    model.load_state_dict(averaged)
    scores = evaluate(model, validation_set, recipe.batch_size)
    say(f"average of {len(recipe.seeds)} seeds\n{scores.table()}")

    model.config.preprocessing = preprocessing
    record = {
        "recipe": recipe.as_dict(),
        "train_texts": len(train),
        "validation_texts": len(validation),
        "runs": runs,
        "averaged": scores.as_dict(),
    }
    with atomic_directory(output) as directory:
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        text = json.dumps(record, indent=2) + "\n"
        (directory / "training.json").write_text(text, encoding="utf-8")
        check_new_output(output)  # something may have been put there meanwhile
    remove_saves(work)
    return scores


def training_preprocessing(
    recipe: Recipe, entries: Mapping[str, Any], tokenizer: Any, say: Callable[[str], None]
) -> Preprocessing:
    """The normalisation of texts: as an export of the base decides, or of any BERTweet.

    A base of which nothing is known learns texts without user names and links, in the form of
    TweetEval. ``say`` gets what was decided, and a guess.
    """
    chosen = recipe.preprocessing
    if isinstance(tokenizer, BertweetTokenizer):
        tokenizer.normalization = False  # the texts are normalised before, as in the service
        chosen = "bertweet" if chosen == "auto" else chosen
    head = {"id2label": dict(enumerate(SENTIMENTS)), "problem_type": SINGLE_LABEL}
    decided = decide(recipe.base, {**entries, **head}, CheckpointOptions(preprocessing=chosen))
    preprocessing = decided.preprocessing
    if (chosen, preprocessing) == ("auto", "none") and "preprocessing" not in entries:
        preprocessing = "tweet"
    for line in (f"preprocessing {preprocessing}", *decided.notes):
        say(line)
    return preprocessing


def _labelled_texts(
    recipe: Recipe, say: Callable[[str], None]
) -> tuple[list[Example], list[Example]]:
    """The training texts, and the validation texts that are not among them."""
    train = [example for path in recipe.train for example in read_examples(path, SENTIMENTS)]
    rows = read_examples(recipe.validation, SENTIMENTS)
    validation = without_leaks(rows, train)
    for label in SENTIMENTS:
        if not any(example.label == label for example in train):
            raise UserError(f"no training text has the label {label}")
    if not validation:
        raise UserError(f"every text of {recipe.validation} is also in the training data")
    say(
        f"{len(train)} training texts, {len(validation)} validation texts; left out "
        f"{len(rows) - len(validation)} validation texts that are also in the training data"
    )
    return train, validation


def _train_every_seed(
    recipe: Recipe,
    train_set: Tokenised,
    validation_set: Tokenised,
    work: Path,
    say: Callable[[str], None],
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """The weights averaged over the seeds, and the validation scores of every epoch."""
    averaged: dict[str, torch.Tensor] = {}
    runs = []
    for seed in recipe.seeds:
        saves = work / f"seed-{seed}.pt"
        model, epochs = train_seed(recipe, seed, train_set, validation_set, saves, say)
        runs.append({"seed": seed, "epochs": epochs})
        for name, tensor in model.state_dict().items():
            share = tensor.double() / len(recipe.seeds)
            averaged[name] = averaged[name] + share if name in averaged else share
    return {name: tensor.float() for name, tensor in averaged.items()}, runs
