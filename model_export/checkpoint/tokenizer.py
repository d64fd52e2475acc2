"""Loads a checkpoint's tokenizer in its fast form and corrects it to match the slow form.

The slow tokenizers of transformers are the reference. RoBERTa's fast form matches without
changes; those of XLM-RoBERTa, BERT and DistilBERT are corrected here. These differences remain:

- XLM-RoBERTa: a repeated character or syllable, "zzz" or "......", is cut into the same pieces
  in another order. All orders have the same score: sentencepiece picks one by the rounding of
  its float32 sums, while tokenizers sums exactly.
- XLM-RoBERTa: a combining accent after a compatibility form (full-width "A", U+00A0), several
  accents on one letter, and decomposed Greek, Japanese or Korean.
- BERT, DistilBERT: characters from a newer Unicode version; Python, tokenizers and its regular
  expressions each use their own version.
"""

import json
import unicodedata
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE, Unigram
from tokenizers.normalizers import NFC, BertNormalizer, Precompiled, Prepend, Replace
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.pre_tokenizers import Split
from transformers import (
    AutoTokenizer,
    BertweetTokenizer,
    PreTrainedTokenizerFast,
    XLMRobertaTokenizerFast,
)

from app.errors import UserError, first_line
from model_export.checkpoint.bertweet import fast_tokenizer

# The sets of files from which a tokenizer can be made; one set is enough.
_NEEDED: dict[str, list[tuple[str, ...]]] = {
    "roberta": [("tokenizer.json",), ("vocab.json", "merges.txt"), ("vocab.txt", "bpe.codes")],
    "xlm-roberta": [("tokenizer.json",), ("sentencepiece.bpe.model",)],
    "bert": [("tokenizer.json",), ("vocab.txt",)],
    "distilbert": [("tokenizer.json",), ("vocab.txt",)],
}
# A control character that XLM-RoBERTa's normalisation removes.
_BREAK = "\x01"
# Arabic vowel signs (they can follow presentation forms), joiners and variation selectors.
_NEVER_COMPOSING = "".join(
    map(chr, [*range(0x064B, 0x0653), 0x0670, 0x200C, 0x200D, 0xFE0E, 0xFE0F])
)


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """Load the fast tokenizer of a local checkpoint.

    A ``tokenizer.json`` is used unchanged. Without one, the files of the slow form are converted.

    Raises:
        UserError: the files are missing or damaged, or the tokenizer has no fast form.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False, use_fast=True
        )
    except Exception as error:  # damaged files can raise anything
        other = f"cannot load the tokenizer of {path}: {first_line(error)}"
        raise UserError(_missing(path) or _damaged(path) or other) from error
    if isinstance(tokenizer, BertweetTokenizer):
        if damage := _damaged(path):
            raise UserError(damage)
        return fast_tokenizer(tokenizer)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UserError(f"{path}: its tokenizer has no fast form, so no tokenizer.json can be made")
    if (path / "tokenizer.json").is_file():
        return tokenizer
    if damage := _damaged(path):  # the slow forms accept empty vocabularies and web pages
        raise UserError(damage)
    backend = tokenizer.backend_tokenizer
    if isinstance(tokenizer, XLMRobertaTokenizerFast):
        _follow_sentencepiece(backend)
    elif isinstance(backend.normalizer, BertNormalizer):
        _follow_bert(backend)
    return tokenizer


def _follow_bert(tokenizer: Tokenizer) -> None:
    """Add the steps that the conversion of a BERT tokenizer leaves out."""
    normalizer = tokenizer.normalizer
    accents = normalizer.strip_accents
    keeps_accents = not (normalizer.lowercase if accents is None else accents)
    # The slow form removes unassigned code points and composes letters with their accents.
    # Stripping accents decomposes them again, so composing is left out then.
    steps = [Replace(Regex(r"\p{Cn}"), ""), normalizer, *([NFC()] if keeps_accents else [])]
    tokenizer.normalizer = Normalizers(steps)


def _follow_sentencepiece(tokenizer: Tokenizer) -> None:
    """Correct where the conversion differs from the sentencepiece model."""
    parts = json.loads(tokenizer.to_str())
    if parts["model"]["type"] != "Unigram":
        return
    pieces = [(piece, _readable(score)) for piece, score in parts["model"]["vocab"]]
    tokenizer.model = Unigram(pieces, unk_id=parts["model"]["unk_id"], byte_fallback=False)
    charsmap = [n for n in _steps(tokenizer.normalizer) if isinstance(n, Precompiled)]
    tokenizer.normalizer = Normalizers(
        [
            *(_whole_graphemes() if charsmap and charsmap[0].normalize_str(_BREAK) == "" else []),
            *charsmap,
            # Like sentencepiece: merge spaces, strip spaces at both ends (but no other
            # whitespace, such as U+0085) and U+2581 at the end, then put U+2581 in front. A
            # U+2581 that begins the text does not replace the one that is put in front.
            Replace(Regex(" {2,}"), " "),
            Replace(Regex(r"\A +|[ \u2581]+\z"), ""),
            Prepend("\u2581"),
        ]
    )
    # Normalisation can turn text into "<s>" (from "<\x01s>", or full-width). It is still text,
    # but the vocabulary holds "<s>" as a piece, so it is split.
    special = Regex("<(?=(?:/?s|pad|unk|mask)>)")
    tokenizer.pre_tokenizer = PreTokenizers(
        [tokenizer.pre_tokenizer, Split(special, "merged_with_previous")]
    )


def _readable(score: float) -> float:
    """The nearest score that survives a round trip through tokenizer.json and adds up exactly.

    The reader of tokenizer.json can be off by one in the last of 17 digits. Pieces such as those
    of "zzzz" have the same score in any order, so that error would change how a text is cut.
    """
    scale = 2.0**44  # sums of hundreds of scores are still multiples of 1 / scale
    near = round(score * scale)
    while True:
        _, digits, exponent = Decimal(repr(near / scale)).as_tuple()
        read = int("".join(map(str, digits))) / 10.0 ** -int(exponent)
        if read == abs(near / scale):
            return near / scale
        near += 1


def _steps(normalizer: Any) -> list[Any]:
    return list(normalizer) if isinstance(normalizer, Normalizers) else [normalizer]


def _whole_graphemes() -> list[Any]:
    """Steps that avoid a fault of Precompiled: it works on graphemes instead of characters.

    It replaces a grapheme of less than six bytes by the rule for its first character, which
    loses the marks after it. In a longer grapheme it composes nothing. So a control character,
    which Precompiled removes, separates the marks that never compose; half-width kana are
    composed here.
    """
    cut = [Replace(mark, f"{_BREAK}{mark}") for mark in _NEVER_COMPOSING]
    pairs = [chr(kana) + mark for kana in range(0xFF66, 0xFF9E) for mark in "\uff9e\uff9f"]
    composed = {pair: unicodedata.normalize("NFKC", pair) for pair in pairs}
    return [*(Replace(pair, kana) for pair, kana in composed.items() if len(kana) == 1), *cut]


def _missing(path: Path) -> str | None:
    """An error that names the needed files, if the architecture has no complete set of them."""
    try:
        model_type = json.loads((path / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    needed = _NEEDED.get(model_type, [])
    if not needed or any(all((path / name).is_file() for name in names) for names in needed):
        return None
    listed = ", or ".join(" with ".join(names) for names in needed)
    return f"{path} lacks its tokenizer: {model_type} needs {listed}"


def _damaged(path: Path) -> str | None:
    """An error that names the first file that cannot be read, if there is one."""
    checks: dict[str, Callable[[Path], Any]] = {
        "tokenizer.json": lambda file: Tokenizer.from_file(str(file)),
        "tokenizer_config.json": _read_object,
        "special_tokens_map.json": _read_object,
        "added_tokens.json": _read_object,
        "vocab.json": _read_object,
        "merges.txt": _read_merges,
        "sentencepiece.bpe.model": lambda file: SentencePieceProcessor(model_file=str(file)),
        "vocab.txt": _read_lines,
        "bpe.codes": _read_codes,
    }
    for name, check in checks.items():
        if (path / name).is_file():
            try:
                check(path / name)
            except Exception as error:  # tokenizers and sentencepiece raise plain Exceptions
                return f"{path / name} is damaged: {first_line(error)}"
    return None


def _read_object(file: Path) -> None:
    if not isinstance(json.loads(file.read_text(encoding="utf-8")), dict):
        raise TypeError("not a JSON object")


def _read_lines(file: Path) -> None:
    if not file.read_text(encoding="utf-8").strip():
        raise ValueError("it is empty")


def _read_codes(file: Path) -> None:
    with file.open(encoding="utf-8") as lines:
        if len(next(lines, "").split()) != 3:
            raise ValueError("its first line is not two parts and a count")


def _read_merges(file: Path) -> None:
    _read_lines(file)
    BPE.from_file(str(file.with_name("vocab.json")), str(file))
