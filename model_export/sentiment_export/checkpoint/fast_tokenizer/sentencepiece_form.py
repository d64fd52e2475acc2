"""Makes the fast form of a sentencepiece tokenizer cut texts as its model file does.

transformers converts the files; these steps replace what the conversion does differently.
"""

import json
import re
import unicodedata
from decimal import Decimal
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.models import Unigram
from tokenizers.normalizers import NFKD, Lowercase, Precompiled, Prepend, Replace
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.pre_tokenizers import Split
from transformers import AlbertTokenizerFast, DebertaV2TokenizerFast, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import import_protobuf

_SPACE = "\u2581"  # how sentencepiece writes a space
# A capital sigma that Python lowers to the final form: a letter before it and none after it, where
# signs within words, such as an apostrophe, do not count.
_LETTER = r"[\p{Lu}\p{Ll}\p{Lt}]"
_WITHIN = r"['’.:·\p{Mn}\p{Me}\p{Cf}\p{Lm}\p{Sk}]"
_FINAL_SIGMA = rf"(?<={_LETTER}|{_LETTER}{_WITHIN})Σ(?!{_WITHIN}*{_LETTER})"
_USER_DEFINED = 4  # the type of a piece that is cut out of every text
# A control character that the usual normalisation removes.
_BREAK = "\x01"
# Arabic vowel signs (they can follow presentation forms), joiners and variation selectors.
_NEVER_COMPOSING = "".join(
    map(chr, [*range(0x064B, 0x0653), 0x0670, 0x200C, 0x200D, 0xFE0E, 0xFE0F])
)


def follow_sentencepiece(tokenizer: PreTrainedTokenizerFast, file: Path) -> None:
    """Correct where the conversion of a sentencepiece model differs from the model itself."""
    proto = import_protobuf().ModelProto.FromString(file.read_bytes())
    symbols = {piece.piece for piece in proto.pieces if piece.type == _USER_DEFINED}
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    # Special tokens are found in the text as it was given. Symbols are found after its
    # normalisation, and no new start of a text follows them.
    added = [t for t in parts["added_tokens"] if t["content"] not in symbols]
    parts["added_tokens"] = [token | {"normalized": False} for token in added]
    backend = Tokenizer.from_str(json.dumps(parts))
    if parts["model"]["type"] == "Unigram":
        pieces = [(piece, _readable(score)) for piece, score in parts["model"]["vocab"]]
        backend.model = Unigram(pieces, unk_id=parts["model"]["unk_id"], byte_fallback=False)
    backend.normalizer = Normalizers(
        [
            *_own_steps(tokenizer),
            *_charsmap(backend.normalizer),
            *_spaces(proto.normalizer_spec),
        ]
    )
    # Normalisation can turn text into "<s>" (from "<\x01s>", or full-width). It is still text,
    # but the vocabulary holds "<s>" as a piece, so it is split after its first character.
    reserved = sorted(token["content"] for token in added)
    starts = "|".join(f"{re.escape(t[0])}(?={re.escape(t[1:])})" for t in reserved if len(t) > 1)
    cuts = [Split(Regex(starts), "merged_with_previous")]
    if symbols:
        cuts.append(Split(Regex("|".join(map(re.escape, sorted(symbols)))), "isolated"))
    backend.pre_tokenizer = PreTokenizers([backend.pre_tokenizer, *cuts])
    tokenizer._tokenizer = backend  # noqa: SLF001 - there is no public way to replace it


def _own_steps(tokenizer: PreTrainedTokenizerFast) -> list[Any]:
    """What ALBERT and DeBERTa do to a text before the model file normalises it."""
    lower = [Replace(Regex(_FINAL_SIGMA), "ς"), Lowercase()]
    if isinstance(tokenizer, DebertaV2TokenizerFast):
        return lower if tokenizer.do_lower_case else []
    if not isinstance(tokenizer, AlbertTokenizerFast):
        return []
    steps: list[Any] = []
    if tokenizer.remove_space:
        blank = _class_of(str.isspace)
        steps += [Replace(Regex(rf"\A{blank}+|{blank}+\z"), ""), Replace(Regex(f"{blank}+"), " ")]
    steps += [Replace("``", '"'), Replace("''", '"')]
    if not tokenizer.keep_accents:
        steps += [NFKD(), Replace(Regex(_class_of(unicodedata.combining)), "")]
    return [*steps, *(lower if tokenizer.do_lower_case else [])]


def _class_of(holds: Any) -> str:
    """A regular expression's class of the characters for which Python's ``holds`` is true."""
    held = [code for code in range(0x110000) if holds(chr(code))]
    starts = [code for code in held if not holds(chr(code - 1))]
    ends = [code for code in held if not holds(chr(code + 1))]
    ranges = (f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in zip(starts, ends, strict=True))
    return f"[{''.join(ranges)}]"


def _charsmap(normalizer: Any) -> list[Any]:
    """The model file's own normalisation, if it has one."""
    steps = list(normalizer) if isinstance(normalizer, Normalizers) else [normalizer]
    charsmap = [step for step in steps if isinstance(step, Precompiled)]
    graphemes = charsmap and charsmap[0].normalize_str(_BREAK) == ""
    return [*(_whole_graphemes() if graphemes else []), *charsmap]


def _spaces(spec: Any) -> list[Any]:
    """What sentencepiece does with spaces, after its normalisation.

    It merges spaces, strips spaces at both ends (but no other whitespace, such as U+0085) and
    U+2581 at the end, then puts U+2581 in front. A U+2581 that begins the text does not replace
    the one that is put in front.
    """
    steps: list[Any] = []
    if spec.remove_extra_whitespaces:
        ends = Regex(rf"\A +|[ {_SPACE}]+\z")
        steps += [Replace(Regex(" {2,}"), " "), Replace(ends, "")]
    return [*steps, *([Prepend(_SPACE)] if spec.add_dummy_prefix else [])]


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
