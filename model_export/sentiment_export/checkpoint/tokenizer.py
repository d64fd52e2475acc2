"""Reads a checkpoint's tokenizer, by ``tokenizers`` alone.

A tokenizer.json is used as it is; without one, the tokenizer is made from older files, see
``tokenizer_files``. docs/models.md says where that differs from transformers.
"""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sentiment_service.engine.text.input_tokenizer import without_training
from sentiment_service.errors import UserError, first_line
from tokenizers import Tokenizer
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import ByteLevel

from sentiment_export.checkpoint import tokenizer_files
from sentiment_export.checkpoint.architectures import (
    ARCHITECTURES,
    BERTWEET_BPE,
    BYTE_LEVEL_BPE,
    WORD_PIECE,
    TokenizerFiles,
)
from sentiment_export.checkpoint.tokenizer_files import add, content, read, read_object, token

# The share of the embedding's rows that have a token, at least. Some checkpoints have a few rows
# more, because a multiple of 64 is faster.
LEAST_USED = 0.99
# The special tokens by their roles: entries of tokenizer_config.json.
ROLES = tuple(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
# What each role has where no file says it, by model_type; the others have what BERT has.
_BERT = (None, None, "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]")
_ROBERTA = ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>")
_DEFAULTS = {
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "data2vec-text"), _ROBERTA),
    "mpnet": ("<s>", "</s>", "[UNK]", "</s>", "<pad>", "<s>", "<mask>"),
    "albert": ("[CLS]", "[SEP]", "<unk>", "[SEP]", "<pad>", "[CLS]", "[MASK]"),
    "big_bird": ("<s>", "</s>", "<unk>", "[SEP]", "<pad>", "[CLS]", "[MASK]"),
}
# The classes of transformers, and the model type whose tokenizer each is.
_OF_CLASS = {f"{one.prefix}Tokenizer": model_type for model_type, one in ARCHITECTURES.items()}
_OF_CLASS |= dict.fromkeys(("BertweetTokenizer", "PhobertTokenizer"), "roberta")
# The classes of transformers, or without one the model types, whose tokenizers follow entries of
# tokenizer_config.json, too: case and accents, and a space before the text. Its others do what
# tokenizer.json says.
_FOLLOWS_CASE = re.compile(
    "bert|distilbert|electra|mpnet|(Bert|DistilBert|Electra|MPNet)Tokenizer.*"
)
_FOLLOWS_SPACE = re.compile("roberta|data2vec-text|deberta|(Roberta|Deberta)Tokenizer.*")
# Model types whose inputs have token types.
TYPED = ("albert", "bert", "deberta", "deberta-v2", "electra")
# Those that have types, of which their own tokenizers give the first alone.
UNTYPED = ("roberta", "xlm-roberta", "camembert", "data2vec-text", "big_bird")
# The classes of transformers 5, or without one the model types, whose tokenizers send token types
# if tokenizer_config.json does not say what they send. Without types, all tokens have the first.
_SENDS_TYPES = re.compile(
    "bert|electra|deberta|deberta-v2"
    "|(Bert|ConvBert|MobileBert|Electra|Deberta|DebertaV2)Tokenizer(Fast)?"
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointTokenizer:
    """A tokenizer, and what the bundle's tokenizer_config.json says of it.

    ``added_rows`` of its ids come after those of the vocabulary: the model gets a row of the
    embedding for each, which equals that of the unknown token. ``notes`` are sentences. ``files``
    are those that it could be made from, if they are there. ``loses_types`` says that transformers
    sends token types for a pair, which an export does not give to a model of this type.
    """

    tokenizer: Tokenizer
    settings: Mapping[str, Any]
    added_rows: int
    notes: list[str]
    files: TokenizerFiles | None
    loses_types: bool

    @property
    def kind(self) -> str:
        return self.files.kind if self.files else type(self.tokenizer.model).__name__

    @property
    def unknown_id(self) -> int:
        return cast(int, self.tokenizer.token_to_id(self.settings["unk_token"]))

    @property
    def types_pairs(self) -> bool:
        """Whether the model gets token types, of which the second text of a pair has another."""
        typed = "token_type_ids" in self.settings["model_input_names"]
        return typed and any(self.tokenizer.encode("a", "a").type_ids)

    @property
    def truncation_side(self) -> str:
        """Where longer texts are cut, as tokenizer_config.json says, or else tokenizer.json."""
        return str(self.settings.get("truncation_side", "right"))

    def cut_to(self, max_tokens: int) -> None:
        self.tokenizer.enable_truncation(max_tokens, direction=self.truncation_side)

    def write(self, directory: Path, max_tokens: int) -> None:
        """Write tokenizer.json and tokenizer_config.json, which cut texts to ``max_tokens``."""
        self.cut_to(max_tokens)
        self.tokenizer.save(str(directory / "tokenizer.json"))
        settings = {**self.settings, "model_max_length": max_tokens}
        text = json.dumps(settings, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
        (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


def load_tokenizer(
    path: Path, entries: Mapping[str, Any], rows: int | None = None
) -> CheckpointTokenizer:
    """Load a local checkpoint's tokenizer; the model has an embedding of so many ``rows``."""
    model_type = entries["model_type"]
    said = _said(path)
    class_name = str(said.get("tokenizer_class") or entries.get("tokenizer_class") or "")
    kind = class_name or model_type
    if class_name.startswith("BertJapanese"):
        raise UserError(
            f"{path}: its tokenizer has no fast form, so no tokenizer.json can be made: "
            f"{class_name} cuts words by a dictionary"
        )
    # Some models have the tokenizer of another architecture, or one that is not of transformers:
    # that may have files of the same names, and cut texts otherwise.
    bare = class_name.removesuffix("Fast")
    made_as, known = _OF_CLASS.get(bare, model_type), bare in {"", *_OF_CLASS}
    present = {file.name for file in path.iterdir()}
    files = ARCHITECTURES[made_as].tokenizer_files(present) if known else None
    if files is None and "tokenizer.json" not in present:
        sets = [("tokenizer.json",), *(t.names for t in ARCHITECTURES[made_as].tokenizers if known)]
        needed = ", or ".join(" with ".join(names) for names in sets)
        raise UserError(
            f"{path} lacks its tokenizer: {kind} needs {needed}; save it there with "
            "AutoTokenizer.from_pretrained(X).save_pretrained, where X is this checkpoint, or the "
            "one that was fine-tuned"
        )
    usual = zip(ROLES, _DEFAULTS.get(made_as, _BERT), strict=True)
    settings = {**{role: name for role, name in usual if name}, **said}
    added_rows = 0
    if files is BERTWEET_BPE:  # transformers does not read its tokenizer.json, either
        tokenizer, added_rows = tokenizer_files.bertweet(path, settings)
    elif "tokenizer.json" in present:
        tokenizer = read(
            path / "tokenizer.json",
            lambda file: Tokenizer.from_str(tokenizer_files.read_text(file)),
        )
        settings = said
        if (tokenizer.truncation or {}).get("direction") == "left":
            settings = {"truncation_side": "left", **said}  # transformers may save it here alone
        _follow(tokenizer, said, kind)
    elif files is BYTE_LEVEL_BPE:
        tokenizer = tokenizer_files.byte_level_bpe(path, settings, made_as)
    elif files is WORD_PIECE:
        tokenizer = tokenizer_files.word_piece(path, settings, made_as)
    elif files is not None:
        tokenizer = tokenizer_files.sentencepiece(path / files.names[0], settings, made_as)
    if files is not BERTWEET_BPE:
        _add_tokens(tokenizer, settings, path)
    _check(without_training(tokenizer), path)
    notes: list[str] = []
    if rows is not None:
        tokenizer, notes = _with_rows(tokenizer, rows + added_rows, str(path))
    # Whether transformers sends the model token types.
    inputs = said.get("model_input_names")
    sends = _SENDS_TYPES.fullmatch(kind) is not None
    if isinstance(inputs, list):
        sends = "token_type_ids" in inputs
    if model_type in TYPED and not sends:
        tokenizer = tokenizer_files.of_one_type(tokenizer)
    loses = sends and model_type in UNTYPED and any(tokenizer.encode("a", "a").type_ids)
    written = _written(tokenizer, settings, model_type)
    return CheckpointTokenizer(tokenizer, written, added_rows, notes, files, loses)


def _said(path: Path) -> dict[str, Any]:
    """What the files beside the tokenizer say; an entry that is null says nothing."""
    said: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (path / name).is_file():
            said |= read(path / name, read_object)
    return {name: value for name, value in said.items() if value is not None}


def _follow(tokenizer: Tokenizer, said: Mapping[str, Any], kind: str) -> None:
    """Set what a class of transformers sets in the tokenizer.json that it reads."""
    if isinstance(tokenizer.normalizer, BertNormalizer) and _FOLLOWS_CASE.fullmatch(kind):
        tokenizer.normalizer = tokenizer_files.bert_normalizer(said)
    if isinstance(tokenizer.pre_tokenizer, ByteLevel) and _FOLLOWS_SPACE.fullmatch(kind):
        prefix = bool(said.get("add_prefix_space"))
        whole = tokenizer.pre_tokenizer.use_regex
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=prefix, use_regex=whole)


def _add_tokens(tokenizer: Tokenizer, settings: Mapping[str, Any], path: Path) -> None:
    """Add the tokens that only the files beside the tokenizer name.

    Special tokens without an id of their own stay out: no model can have a row for them.
    """
    listed = settings.get("added_tokens_decoder") or {}
    if (path / "added_tokens.json").is_file() and not listed:
        ids = read(path / "added_tokens.json", read_object)
        listed = {index: {"content": piece} for piece, index in ids.items()}
    others = [settings[role] for role in ROLES if role in settings]
    special = {*map(content, others)}
    for index, one in sorted(listed.items(), key=lambda item: int(item[0])):
        known = content(one) in special
        if add(tokenizer, [token(one, special=known, normalized=not known)]):
            given = tokenizer.token_to_id(content(one))
            if given != int(index):
                raise UserError(
                    f"{path}: {content(one)} has the id {index}, but {given} is the next one after "
                    "the vocabulary, so a file of the tokenizer is missing or was cut"
                )
    for name in ("additional_special_tokens", "extra_special_tokens"):
        more = settings.get(name) or ()
        others += more.values() if isinstance(more, Mapping) else more
    add(tokenizer, [token(o) for o in others if tokenizer.token_to_id(content(o)) is not None])


def _check(tokenizer: Tokenizer, path: Path) -> None:
    if tokenizer.num_special_tokens_to_add(is_pair=False) == 0:
        raise UserError(
            f"{path / 'tokenizer.json'} has no post-processor, so it does not add the special "
            "tokens that the classifier reads; save it again with transformers"
        )
    try:
        tokenizer.encode("\U00013080")  # a hieroglyph, which hardly any vocabulary has
    except Exception as error:  # tokenizers raises plain Exceptions
        raise UserError(
            f"{path}: its tokenizer fails on a character that its vocabulary lacks "
            f"({first_line(error)}); it needs an unknown token"
        ) from error


def _with_rows(tokenizer: Tokenizer, rows: int, where: str) -> tuple[Tokenizer, list[str]]:
    """The tokenizer without the tokens that were added to it and have no row of the embedding.

    Such a token has never been read by the model: transformers fails on a text with it. Without it,
    the text is cut as before it was added.
    """
    added = tokenizer.get_added_tokens_decoder()
    lacking = {index: one.content for index, one in added.items() if index >= rows}
    begin = tokenizer.encode("")
    largest = max(tokenizer.get_vocab(with_added_tokens=False).values(), default=-1)
    largest = max(largest, *(index for index in added if index not in lacking), *begin.ids)
    if largest >= rows:
        raise UserError(
            f"{where}: the tokenizer's largest id is {largest}, but the model's embedding has "
            f"{rows} rows: they belong to different checkpoints"
        )
    if largest + 1 < LEAST_USED * rows:
        logger.warning(
            "%s: the tokenizer knows %d tokens, but the model has an embedding for %d: perhaps a "
            "file of the vocabulary was cut",
            *(where, largest + 1, rows),
        )
    if not lacking:
        return tokenizer, []
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [one for one in spec["added_tokens"] if one["id"] not in lacking]
    shown = ", ".join([*lacking.values()][:3]) + (" and others" if len(lacking) > 3 else "")
    note = (
        f"warning: {shown} of the tokenizer {'has' if len(lacking) == 1 else 'have'} no row in the "
        "model's embedding, so texts are cut as without: to use added tokens, call "
        "resize_token_embeddings and train the model"
    )
    return Tokenizer.from_str(json.dumps(spec)), [note]


def _written(tokenizer: Tokenizer, settings: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """The entries of the bundle's tokenizer_config.json, which every version of transformers reads.

    Its class takes tokenizer.json as it is.
    """
    roles = {role: content(settings[role]) for role in ROLES if role in settings}
    known = {role: name for role, name in roles.items() if tokenizer.token_to_id(name) is not None}
    typed = ["token_type_ids"] if model_type in TYPED else []
    kept = {
        name: settings[name] for name in ("truncation_side", "padding_side") if name in settings
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", *typed, "attention_mask"],
        **known,
        **kept,
    }
