"""Converts BERTweet's tokenizer, fastBPE codes with a vocabulary, to a fast one.

fastBPE can merge characters to a piece that the vocabulary lacks; the slow tokenizer of
transformers then gives ``<unk>``. A fast tokenizer needs an id for the result of each merge. So
such pieces get ids after all others, and rows of the embedding that equal the row of ``<unk>``.

Apart from these ids, the fast tokenizer gives what the slow one gives without normalisation (the
service normalises, see app/sentiment_service/engine/text/bertweet.py). Where it does not:

- Words that contain ``</w>``, or end with ``@@``, marks that fastBPE itself uses.
- Codes in which a merge comes before the merges that make its parts; fastBPE never writes such.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sentiment_service.engine.text.text_tokenizer import BERTWEET_WORD
from sentiment_service.errors import UserError
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import BPEDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing
from transformers import BertweetTokenizer, PreTrainedTokenizerFast

from sentiment_export.checkpoint.layout import read_json

_WORD_END = "</w>"  # stands in the codes; the vocabulary marks the other pieces, by "@@"
# How many pieces there are that only the codes have: an entry of tokenizer_config.json.
_UNKNOWN_PIECES = "unknown_pieces"


def fast_tokenizer(slow: BertweetTokenizer) -> PreTrainedTokenizerFast:
    """The fast form of a slow tokenizer, whatever its ``normalization`` is.

    Raises:
        UserError: the vocabulary holds a piece twice.
    """
    added = slow.added_tokens_decoder
    special = {token.content for token in added.values()}
    vocabulary = {
        piece if piece in special else _as_in_codes(piece): index
        for piece, index in slow.get_vocab().items()
    }
    if len(set(vocabulary.values())) < len(slow.get_vocab()):
        raise UserError(f"{slow.vocab_file} is damaged: it holds a piece twice")
    merges: list[Any] = [merge for merge in slow.bpe_ranks if len(merge) == 2]
    symbols = dict.fromkeys(s for left, right in merges for s in (left, right, left + right))
    unknown = [symbol for symbol in symbols if symbol not in vocabulary]
    first = max(vocabulary.values()) + 1
    vocabulary |= {symbol: first + place for place, symbol in enumerate(unknown)}
    tokenizer = Tokenizer(
        BPE(vocabulary, merges, unk_token=slow.unk_token, end_of_word_suffix=_WORD_END)
    )
    tokenizer.pre_tokenizer = Split(Regex(BERTWEET_WORD), "removed", invert=True)
    cls, sep = slow.cls_token, slow.sep_token
    tokenizer.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} {sep} $B {sep}",
        special_tokens=[(cls, slow.cls_token_id), (sep, slow.sep_token_id)],
    )
    tokenizer.decoder = BPEDecoder(_WORD_END)
    tokenizer.add_tokens(list(added.values()))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=slow.model_max_length,
        truncation_side=slow.truncation_side,
        **slow.special_tokens_map,
        **{_UNKNOWN_PIECES: len(unknown)},
    )


def normalises(path: Path, config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint has BERTweet's tokenizer and its ``normalization`` is true.

    Raises:
        UserError: tokenizer_config.json cannot be read.
    """
    held = path / "tokenizer_config.json"
    settings = read_json(held) if held.is_file() else {}
    name = settings.get("tokenizer_class") or config.get("tokenizer_class")
    return name == BertweetTokenizer.__name__ and bool(settings.get("normalization"))


def unknown_pieces(tokenizer: PreTrainedTokenizerFast) -> int:
    """How many ids were added after those of the vocabulary, for which the model has no row."""
    return int(tokenizer.init_kwargs.get(_UNKNOWN_PIECES, 0))


def embed_unknown_pieces(model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    """Give the model a row of the embedding for each unknown piece: that of ``<unk>``, copied."""
    pieces = unknown_pieces(tokenizer)
    if not pieces:
        return
    known = len(tokenizer) - pieces
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    rows = model.get_input_embeddings().weight
    with torch.no_grad():
        rows[known:] = rows[tokenizer.unk_token_id].clone()


def _as_in_codes(piece: str) -> str:
    """A piece of the vocabulary as it is written in the codes."""
    return piece[:-2] if piece.endswith("@@") and piece != "@@" else piece + _WORD_END
