"""Loads a checkpoint's tokenizer in its fast form and corrects it to match the slow form.

The slow tokenizers of transformers are the reference. The fast forms of byte-level BPE (RoBERTa,
DeBERTa, data2vec-text) match without changes; those of WordPiece are corrected here, those of
sentencepiece in ``sentencepiece_form``, and BERTweet's is made in ``bertweet``. These differences
remain:

- sentencepiece: a repeated character or syllable, "zzz" or "......", is cut into the same pieces
  in another order. All orders have the same score: sentencepiece picks one by the rounding of
  its float32 sums, while tokenizers sums exactly.
- sentencepiece: a combining accent after a compatibility form (full-width "A", U+00A0), several
  accents on one letter, and decomposed Greek, Japanese or Korean.
- ALBERT: a number before a comma, such as "9,000". The slow form cuts it a second time, which no
  fast form can; transformers' own fast form differs in the same way.
- DeBERTa-v2 with ``split_by_punct``: a punctuation mark after a space.
- WordPiece: characters from a newer Unicode version; Python, tokenizers and its regular
  expressions each use their own version.
- MPNet: "<S>" and other special tokens in capitals. The slow form takes them for special tokens.
"""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor
from sentiment_service.errors import UserError, first_line
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import NFC, BertNormalizer, Replace
from tokenizers.normalizers import Sequence as Normalizers
from transformers import AutoTokenizer, BertweetTokenizer, PreTrainedTokenizerFast

from sentiment_export.checkpoint.architectures import ARCHITECTURES, SENTENCEPIECE
from sentiment_export.checkpoint.config import model_config, read_config
from sentiment_export.checkpoint.fast_tokenizer.bertweet_form import fast_tokenizer, unknown_pieces
from sentiment_export.checkpoint.fast_tokenizer.sentencepiece_form import follow_sentencepiece

# The share of the embedding's rows that have a token, at least. Some checkpoints have a few rows
# more, because a multiple of 64 is faster.
LEAST_USED = 0.99

logger = logging.getLogger(__name__)


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Load the fast tokenizer of a local checkpoint.

    A ``tokenizer.json`` is used unchanged. Without one, the files of the slow form are converted.
    For BERTweet that is always done, as transformers does not read its ``tokenizer.json``.

    Raises:
        UserError: the files are missing or damaged, or the tokenizer has no fast form.
    """
    present = {file.name for file in path.iterdir()}
    entries = read_config(path, str(path))
    model_type = entries["model_type"]
    source = ARCHITECTURES[model_type].tokenizer_files(present)
    if source is None and "tokenizer.json" not in present:
        sets = [("tokenizer.json",), *(t.names for t in ARCHITECTURES[model_type].tokenizers)]
        needed = ", or ".join(" with ".join(names) for names in sets)
        raise UserError(f"{path} lacks its tokenizer: {model_type} needs {needed}")
    slow_only = f"{path}: its tokenizer has no fast form, so no tokenizer.json can be made"
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path,
            config=model_config(entries),
            local_files_only=True,
            trust_remote_code=False,
            use_fast=True,
        )
    except ImportError as error:  # of a Japanese dictionary, for example
        raise UserError(slow_only) from error
    except Exception as error:  # damaged files can raise anything
        other = f"cannot load the tokenizer of {path}: {first_line(error)}"
        raise UserError(_damaged(path) or other) from error
    if isinstance(tokenizer, BertweetTokenizer):
        if damage := _damaged(path):
            raise UserError(damage)
        return fast_tokenizer(tokenizer)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(slow_only)
    if tokenizer.num_special_tokens_to_add(pair=False) == 0:
        raise UserError(
            f"{path / 'tokenizer.json'} has no post-processor, so it does not add the special "
            "tokens that the classifier reads; save it again with transformers"
        )
    try:
        tokenizer("\U00013080")  # a hieroglyph, which hardly any vocabulary has
    except Exception as error:  # tokenizers raises plain Exceptions
        lacking = f"{path}: its tokenizer fails on a character that its vocabulary lacks"
        other = f"{lacking} ({first_line(error)}); it needs an unknown token"
        raise UserError(_damaged(path) or other) from error
    if source is None or "tokenizer.json" in present:
        return tokenizer
    if damage := _damaged(path):  # the slow forms accept empty vocabularies and web pages
        raise UserError(damage)
    if source.kind == SENTENCEPIECE:
        follow_sentencepiece(tokenizer, path / source.names[0])
    elif isinstance(tokenizer.backend_tokenizer.normalizer, BertNormalizer):
        _follow_bert(tokenizer.backend_tokenizer)
    return tokenizer


def check_vocabulary(tokenizer: PreTrainedTokenizerFast, rows: int, where: str) -> None:
    """Check that the model's embedding, which has ``rows``, has one for every token.

    A warning is logged if many rows are of no token.

    Raises:
        UserError: it has too few; the message begins with ``where``.
    """
    largest = max(tokenizer.get_vocab().values()) - unknown_pieces(tokenizer)
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


def _follow_bert(tokenizer: Tokenizer) -> None:
    """Add the steps that the conversion of a BERT tokenizer leaves out."""
    normalizer = tokenizer.normalizer
    accents = normalizer.strip_accents
    keeps_accents = not (normalizer.lowercase if accents is None else accents)
    # The slow form removes unassigned code points and composes letters with their accents.
    # Stripping accents decomposes them again, so composing is left out then.
    steps = [Replace(Regex(r"\p{Cn}"), ""), normalizer, *([NFC()] if keeps_accents else [])]
    tokenizer.normalizer = Normalizers(steps)


def _damaged(path: Path) -> str | None:
    """An error that names the first file that cannot be read, if there is one."""
    checks: dict[str, Callable[[Path], Any]] = {
        "tokenizer.json": lambda file: Tokenizer.from_str(_text(file)),
        "tokenizer_config.json": _read_object,
        "special_tokens_map.json": _read_object,
        "added_tokens.json": _read_object,
        "vocab.json": _read_object,
        "merges.txt": _read_merges,
        "vocab.txt": _read_lines,
        "sentencepiece.bpe.model": _read_sentencepiece,
        "spm.model": _read_sentencepiece,
        "spiece.model": _read_sentencepiece,
        "bpe.codes": _read_codes,
    }
    for name, check in checks.items():
        if (path / name).is_file():
            try:
                check(path / name)
            except Exception as error:  # tokenizers and sentencepiece raise plain Exceptions
                return f"{path / name} is damaged: {first_line(error)}"
    return None


def _text(file: Path) -> str:
    """The text of a file of the tokenizer. A byte order mark would become a part of a token."""
    text = file.read_text(encoding="utf-8")
    if text.startswith("\ufeff"):
        raise ValueError("it begins with a byte order mark; save it as UTF-8 without one")
    return text


def _read_object(file: Path) -> None:
    if not isinstance(json.loads(_text(file)), dict):
        raise TypeError("not a JSON object")


def _read_lines(file: Path) -> None:
    if not _text(file).strip():
        raise ValueError("it is empty")


def _read_sentencepiece(file: Path) -> None:
    SentencePieceProcessor(model_file=str(file))


def _read_codes(file: Path) -> None:
    _read_lines(file)
    # Only at line feeds and spaces: the parts can hold any other separator.
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
        if line and len(line.split(" ")) != 3:
            raise ValueError(f"line {number} is not two parts and a count")


def _read_merges(file: Path) -> None:
    _read_lines(file)
    BPE.from_file(str(file.with_name("vocab.json")), str(file))
