"""What a model sees of a text: its tokens, their ids, and where they stand in the text."""

from collections.abc import Sequence
from typing import Annotated, NotRequired, cast

from pydantic import Field, WithJsonSchema
from typing_extensions import TypedDict

from app.engine.step_thread import Steps
from app.engine.text.input_tokenizer import InputTokenizer
from app.engine.text.pairs import Input, Offset, PairTokenizer, TextPair
from app.errors import ServiceError, TooManyTexts

_TWO = {"minItems": 2, "maxItems": 2}


class Tokens(TypedDict):
    """The tokens of one text. The lists have one item for each token that the model sees."""

    text: Annotated[str, Field(description="the text after the model's preprocessing")]
    text_pair: NotRequired[
        Annotated[str, Field(description="the second text of a pair after the preprocessing")]
    ]
    tokens: Annotated[list[str], Field(description="as the model's vocabulary spells them")]
    ids: Annotated[list[int], Field(description="their numbers in the vocabulary")]
    offsets: Annotated[
        list[Offset],
        # Generators of clients do not know the schema of tuples.
        WithJsonSchema(
            {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, **_TWO}}
        ),
        Field(
            description="first character, and the character after the last; they count the "
            "characters (Unicode code points) of `text` or `text_pair`; [0, 0] for special tokens"
        ),
    ]
    sequence_ids: Annotated[
        list[int | None],
        Field(description="0: in `text`; 1: in `text_pair`; null: a special token"),
    ]
    count: Annotated[int, Field(description="tokens before truncation")]
    truncated: Annotated[bool, Field(description="whether the end of the text was cut off")]


def tokens_steps(
    tokenizer: InputTokenizer,
    texts: Sequence[Input],
    *,
    special: bool,
    max_chars: int,
    max_tokens: int,
) -> Steps[list[Tokens | ServiceError]]:
    """The tokens of each text, or the error that says why it cannot be classified.

    Each text is one step. Special tokens are left out unless ``special`` is true.

    Raises:
        TooManyTexts: all texts together have more than ``max_tokens`` tokens that the model sees.
    """
    results: list[Tokens | ServiceError] = []
    left = max_tokens
    for text in texts:
        result = _tokens(tokenizer, text, special=special, max_chars=max_chars)
        results.append(result)
        if not isinstance(result, ServiceError):
            left -= len(result["ids"])
        if left < 0:
            raise TooManyTexts(
                f"the texts have more than the {max_tokens} tokens that are accepted in one request"
            )
        yield
    return results


def _tokens(
    tokenizer: InputTokenizer, text: Input, *, special: bool, max_chars: int
) -> Tokens | ServiceError:
    (encoding,) = tokenizer.encode_batch([text], max_chars=max_chars)
    if isinstance(encoding, ServiceError):
        return encoding
    if isinstance(text, TextPair):
        pair = text.map(tokenizer.normalise)
        texts = {"text": pair.text, "text_pair": pair.text_pair}
        # Without it, encode_batch would have refused the pair.
        offsets, sequence_ids = cast(PairTokenizer, tokenizer.pairs).offsets(pair)
    else:
        texts = {"text": tokenizer.normalise(text)}
        # Not ``encode``, which would hold Python's global lock.
        (whole,) = tokenizer.library.encode_batch([texts["text"]])
        offsets, sequence_ids = whole.offsets, whole.sequence_ids
        if len(offsets) < len(encoding):  # the model gets one unknown token for the whole text
            offsets.insert(1, (0, len(texts["text"])))
            sequence_ids.insert(1, 0)
    ids = encoding.ids
    shown = [n for n, sequence in enumerate(sequence_ids) if special or sequence is not None]
    lists = {
        "tokens": [tokenizer.library.id_to_token(ids[n]) for n in shown],
        "ids": [ids[n] for n in shown],
        "offsets": [offsets[n] for n in shown],
        "sequence_ids": [sequence_ids[n] for n in shown],
    }
    count = encoding.tokens - (len(ids) - len(shown))
    return cast(Tokens, {**texts, **lists, "count": count, "truncated": encoding.truncated})
