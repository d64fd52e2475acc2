"""Makes tokenizers from the files that there were before tokenizer.json.

Each function makes one kind of tokenizer, in the form that transformers 5 gives it: byte-level
BPE, WordPiece, sentencepiece, and BERTweet's fastBPE, which has no such form there.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sentiment_service.engine.text.text_tokenizer import BERTWEET_WORD
from sentiment_service.errors import UserError, first_line
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.normalizers import BertNormalizer, Lowercase, Precompiled, Replace, Strip
from tokenizers.processors import BertProcessing, RobertaProcessing, TemplateProcessing

from sentiment_export.checkpoint.layout import cure

SPACES = Replace(Regex(" {2,}"), " ")
CONTROL, USER_DEFINED = 3, 4  # types of sentencepiece's pieces: no text has the one, all the other
UNIGRAM = 1  # the model_type of sentencepiece's trainer; the other one here is byte pair encoding
WORD_END = "</w>"  # stands in fastBPE's codes; the vocabulary marks the other pieces, by "@@"


def byte_level_bpe(directory: Path, settings: Mapping[str, Any], model_type: str) -> Tokenizer:
    """From vocab.json and merges.txt: RoBERTa, DeBERTa."""
    vocabulary, merges = directory / "vocab.json", directory / "merges.txt"
    read(vocabulary, read_object)
    read(merges, read_lines)
    model = read(merges, lambda file: BPE.from_file(str(vocabulary), str(file)))
    tokenizer = Tokenizer(model)
    prefix = bool(settings.get("add_prefix_space"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    cls, sep = special_ids(tokenizer, settings, vocabulary)
    if model_type == "deberta":
        tokenizer.post_processor = pairs(cls, sep)
    else:
        tokenizer.post_processor = RobertaProcessing(sep, cls, add_prefix_space=prefix)
    return tokenizer


def word_piece(directory: Path, settings: Mapping[str, Any], model_type: str) -> Tokenizer:
    """From vocab.txt: BERT, DistilBERT, ELECTRA, MPNet."""
    file = directory / "vocab.txt"
    lines = read(file, read_lines)
    vocabulary = {piece: index for index, piece in enumerate(lines)}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=content(settings["unk_token"])))
    tokenizer.normalizer = bert_normalizer(settings)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    cls, sep = special_ids(tokenizer, settings, file)
    if model_type == "mpnet":
        tokenizer.post_processor = RobertaProcessing(sep, cls, add_prefix_space=False)
    else:
        tokenizer.post_processor = pairs(cls, sep)
    return tokenizer


def bert_normalizer(settings: Mapping[str, Any]) -> BertNormalizer:
    """How BERT's tokenizers treat case, accents and Chinese, as tokenizer_config.json says."""
    return BertNormalizer(
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )


def sentencepiece(file: Path, settings: Mapping[str, Any], model_type: str) -> Tokenizer:
    """From a model file of sentencepiece: XLM-RoBERTa, CamemBERT, ALBERT, DeBERTa-v2, BigBird."""
    from sentencepiece import sentencepiece_model_pb2

    protobuf: Any = sentencepiece_model_pb2  # its class is made at import
    proto = read(file, lambda held: protobuf.ModelProto.FromString(held.read_bytes()))
    if not proto.pieces:
        raise UserError(f"{file} is damaged: it holds no pieces")
    scored = [(piece.piece, piece.score) for piece in proto.pieces]
    unknown = proto.trainer_spec.unk_id
    of_fairseq = model_type in ("xlm-roberta", "camembert")
    if of_fairseq:
        # The pieces of fairseq's dictionary come first, in place of sentencepiece's own.
        first = ["<s>", "<pad>", "</s>", "<unk>"]
        if model_type == "camembert":
            first = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"]
        own = 1 if model_type == "camembert" else 3
        scored = [*((piece, 0.0) for piece in first), *scored[own:], ("<mask>", 0.0)]
        unknown = 3
    if proto.trainer_spec.model_type == UNIGRAM:
        tokenizer = Tokenizer(Unigram(scored, unk_id=unknown, byte_fallback=False))
    else:
        merges = _merges([piece for piece, _ in scored])
        vocabulary = {piece: index for index, (piece, _) in enumerate(scored)}
        unk = scored[unknown][0]
        tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token=unk, fuse_unk=True))
    charsmap = proto.normalizer_spec.precompiled_charsmap
    steps: list[Any] = [Precompiled(charsmap)] if charsmap else []
    lower = [Lowercase()] if settings.get("do_lower_case", model_type == "albert") else []
    if model_type == "albert":
        stripped = [normalizers.NFKD(), normalizers.StripAccents()]
        accents = [] if settings.get("keep_accents") else stripped
        steps = [Replace("``", '"'), Replace("''", '"'), *accents, *lower, *steps]
    elif model_type == "deberta-v2":
        steps = [*lower, Strip(), *steps, SPACES]
    elif model_type == "big_bird":
        steps = [*steps, Strip(left=False), SPACES]
    tokenizer.normalizer = normalizers.Sequence(steps)
    words: list[Any] = [pre_tokenizers.WhitespaceSplit()]
    if model_type in ("deberta-v2", "big_bird"):
        words = [pre_tokenizers.Punctuation()] if settings.get("split_by_punct") else []
    without = "first" if model_type == "deberta-v2" else "never"
    prefix = "always" if settings.get("add_prefix_space", True) else without
    words.append(pre_tokenizers.Metaspace(prepend_scheme=prefix))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prefix)
    pieces = [p for p in proto.pieces if p.type in (CONTROL, USER_DEFINED)]
    add(tokenizer, [token(p.piece, special=p.type == CONTROL) for p in pieces])
    cls, sep = special_ids(tokenizer, settings, file)
    tokenizer.post_processor = pairs(cls, sep, typed=not of_fairseq)
    return tokenizer


def _merges(pieces: Sequence[str]) -> list[tuple[str, str]]:
    """The merges of a sentencepiece model: all pairs of pieces that make a piece, in its order."""
    ids = {piece: index for index, piece in enumerate(pieces)}
    found = [
        (ids[piece], ids[left], ids[right], left, right)
        for piece in pieces
        for cut in range(1, len(piece))
        if (left := piece[:cut]) in ids and (right := piece[cut:]) in ids
    ]
    return [(left, right) for *_, left, right in sorted(found)]


def bertweet(directory: Path, settings: Mapping[str, Any]) -> tuple[Tokenizer, int]:
    """From BERTweet's vocab.txt and bpe.codes, fastBPE; the second value is a number of ids.

    fastBPE can merge characters to a piece that the vocabulary lacks; the tokenizer of transformers
    then gives ``<unk>``. ``tokenizers`` needs an id for the result of each merge, so such pieces
    get ids after all others, and as many rows of the embedding equal that of ``<unk>``.

    Apart from these ids, and from words with fastBPE's own marks, the result gives what that of
    transformers gives without normalisation, which is the service's.
    """
    file, codes = directory / "vocab.txt", directory / "bpe.codes"
    roles = ("bos_token", "pad_token", "eos_token", "unk_token")
    special = [content(settings[role]) for role in roles]
    listed = [line.rstrip().rpartition(" ")[0] for line in read(file, read_lines)]
    if not all(listed):
        raise UserError(
            f"{file} is damaged: line {listed.index('') + 1} is not a piece and a count"
        )
    pieces = [*special, *map(_as_in_codes, listed)]
    held = directory / "added_tokens.json"
    added = read(held, read_object) if held.is_file() else {}
    pieces += sorted(added, key=lambda piece: int(added[piece]))
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    if len(vocabulary) < len(pieces):
        raise UserError(f"{file} is damaged: it holds a piece twice")
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(read(codes, read_lines), start=1):
        parts = line.split(" ")  # only there: the parts can hold any other separator
        if len(parts) == 2:
            raise UserError(
                f"{codes} has no counts, as transformers 5 saves it, which reads no merge from it "
                "then: copy the file from the checkpoint that was fine-tuned"
            )
        if len(parts) != 3:
            raise UserError(f"{codes} is damaged: line {number} is not two parts and a count")
        merges.append((parts[0], parts[1]))
    merges = list(dict.fromkeys(merges))
    symbols = dict.fromkeys(s for left, right in merges for s in (left, right, left + right))
    unknown = [symbol for symbol in symbols if symbol not in vocabulary]
    vocabulary |= {symbol: len(pieces) + place for place, symbol in enumerate(unknown)}
    tokenizer = Tokenizer(
        BPE(vocabulary, merges, unk_token=special[3], end_of_word_suffix=WORD_END)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(BERTWEET_WORD), "removed", invert=True)
    tokenizer.decoder = decoders.BPEDecoder(WORD_END)
    add(tokenizer, [token(piece) for piece in (*special, *added)])
    tokenizer.post_processor = pairs(*special_ids(tokenizer, settings, file), typed=False)
    return tokenizer, len(unknown)


def _as_in_codes(piece: str) -> str:
    """A piece of the vocabulary as it is written in the codes."""
    return piece[:-2] if piece.endswith("@@") and piece != "@@" else piece + WORD_END


def pairs(cls: tuple[str, int], sep: tuple[str, int], *, typed: bool = True) -> TemplateProcessing:
    """``[CLS] A [SEP] B [SEP]``; B and what follows it are of the token type 1.

    Without types, it is ``<s> A </s> </s> B </s>``.
    """
    (c, _), (s, _) = cls, sep
    both = f"{c}:0 $A:0 {s}:0 $B:1 {s}:1" if typed else f"{c} $A {s} {s} $B {s}"
    return TemplateProcessing(single=f"{c} $A {s}", pair=both, special_tokens=[cls, sep])


def of_one_type(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer, which gives every token of a pair the type 0."""
    spec = json.loads(tokenizer.to_str())
    if isinstance(tokenizer.post_processor, BertProcessing):  # whose types cannot be written
        cls, sep = (tuple(spec["post_processor"][name]) for name in ("cls", "sep"))
        tokenizer.post_processor = pairs(cls, sep)
        spec = json.loads(tokenizer.to_str())

    def first_type(held: dict[str, Any]) -> dict[str, Any]:
        return {**held, "type_id": 0} if "type_id" in held else held

    written = json.dumps(spec["post_processor"])
    spec["post_processor"] = json.loads(written, object_hook=first_type)
    return Tokenizer.from_str(json.dumps(spec))


def special_ids(
    tokenizer: Tokenizer, settings: Mapping[str, Any], file: Path
) -> tuple[tuple[str, int], tuple[str, int]]:
    """The tokens that begin and end a text, each with its id."""
    names = [content(settings[role]) for role in ("cls_token", "sep_token")]
    ids: list[tuple[str, int]] = []
    for name in names:
        if (index := tokenizer.token_to_id(name)) is None:
            raise UserError(f"{file} is damaged: it lacks the special token {name}")
        ids.append((name, index))
    return ids[0], ids[1]


def token(written: Any, *, special: bool = True, **flags: Any) -> Any:
    """A token that is found before the text is cut, as tokenizer_config.json writes it."""
    flags = {"normalized": False, **flags}
    if isinstance(written, Mapping):
        names = ("lstrip", "rstrip", "normalized", "single_word")
        flags |= {name: written[name] for name in names if name in written}
        special = written.get("special", special)
    return AddedToken(content(written), special=special, **flags)


def content(written: Any) -> str:
    """A token's text; the files write it as a string, or as an object with it."""
    return str(written.get("content") if isinstance(written, Mapping) else written)


def add(tokenizer: Tokenizer, tokens: Sequence[Any]) -> bool:
    """Add tokens that are not there yet; returns whether there were any."""
    held = {known.content for known in tokenizer.get_added_tokens_decoder().values()}
    new = [one for one in tokens if one.content not in held]
    tokenizer.add_tokens(new)
    return bool(new)


def read(file: Path, how: Callable[[Path], Any]) -> Any:
    try:
        return how(file)
    except UserError:
        raise
    except Exception as error:  # tokenizers raises plain Exceptions
        raise UserError(f"{file} is damaged: {first_line(error)}{cure(file)}") from error


def read_text(file: Path) -> str:
    """The text of a file of the tokenizer. A byte order mark would become a part of a token."""
    text = file.read_text(encoding="utf-8")
    if text.startswith("\ufeff"):
        raise ValueError("it begins with a byte order mark; save it as UTF-8 without one")
    return text


def read_lines(file: Path) -> list[str]:
    """The lines of a file, which hold any separator but the line feed."""
    text = read_text(file).rstrip("\n")
    if not text.strip():
        raise ValueError("it is empty")
    return text.split("\n")


def read_object(file: Path) -> dict[str, Any]:
    held = json.loads(read_text(file))
    if not isinstance(held, dict):
        raise TypeError("not a JSON object")
    return held
