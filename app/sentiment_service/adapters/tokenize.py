"""POST /tokenize: what a model sees of a text: tokens, their ids, and where they stand in it."""

from collections.abc import Sequence
from typing import Annotated, NotRequired, cast

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field, StrictBool, WithJsonSchema
from typing_extensions import TypedDict

from sentiment_service.engine.step_thread import Kind, Steps
from sentiment_service.engine.text.input_tokenizer import InputTokenizer
from sentiment_service.engine.text.steps import CHARS_PER_TEXT
from sentiment_service.engine.text.text_tokenizer import Offset, PairTokenizer, Text, TextPair
from sentiment_service.errors import CLASSIFY_ERRORS, ServiceError, TooManyTexts
from sentiment_service.http.openapi import EMPTY, VERSION, documented, documented_body, example
from sentiment_service.http.routes import Answered, HttpRequest, JsonAnswer, TextRoute, read_body
from sentiment_service.requests.service import Adapter
from sentiment_service.requests.validation import RequestBody, Texts, as_list
from sentiment_service.results import FailedItem, item


class TokenizeRoute(TextRoute):
    operation = "tokenize"


# The time of a character, first guessed, then measured. Lists of tokens take long to build.
SHOWING = Kind(5e-6)

router = APIRouter(tags=["classification"], route_class=TokenizeRoute)

_TWO = {"minItems": 2, "maxItems": 2}
TOKENS = {
    "model": VERSION,
    "results": [
        {
            "text": "@user I love this!",
            "tokens": ["[CLS]", "@", "user", "i", "love", "this", "!", "[SEP]"],
            "ids": [101, 1030, 5310, 1045, 2293, 2023, 999, 102],
            "offsets": [[0, 0], [0, 1], [1, 5], [6, 7], [8, 12], [13, 17], [17, 18], [0, 0]],
            "sequence_ids": [None, 0, 0, 0, 0, 0, 0, None],
            "count": 8,
            "truncated": False,
        },
        EMPTY,
    ],
}


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


class TokenizeRequest(RequestBody):
    """One text, or a list of texts."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"inputs": ["@bob I love this!", ""]}]}
    )

    inputs: Texts = Field(description="one text, or a list of texts")
    model: str | None = Field(default=None, description="name of a served model")
    add_special_tokens: StrictBool = Field(
        default=True, description="false: leave out the special tokens, which the model also gets"
    )


class TokenizeResponse(TypedDict):
    """The tokens of the texts, and the model that they are for."""

    model: Answered
    results: Annotated[
        list[Tokens | FailedItem],
        Field(description="one item for each text, in the order of the texts"),
    ]


@router.post(
    "/tokenize",
    operation_id="tokenize",
    response_model=TokenizeResponse,
    responses={**example(TOKENS), **documented(*CLASSIFY_ERRORS)},
    openapi_extra=documented_body(TokenizeRequest),
)
async def tokenize(request: HttpRequest) -> Response:
    """Show the tokens of one text or several, as the model sees them. Nothing is classified.

    The model's preprocessing and truncation are applied first. `results` is always a list, in the
    order of the texts. A bad text of a list has its error in its place. If you send a single text
    and it is bad, the request fails with its error. All texts together may have at most half of
    `max_queue_tokens`.
    """
    body = await read_body(request, TokenizeRequest)
    texts = as_list(body.inputs)
    exchange, service = request.exchange, request.exchange.service
    exchange.check_number(len(texts))
    classifier = service.models.classifiers.of(body.model)
    model = classifier.model
    exchange.asks(model.name, len(texts))
    steps = tokens_steps(
        model.tokenizer,
        texts,
        special=body.add_special_tokens,
        max_chars=service.settings.max_text_chars,
        max_tokens=classifier.request_tokens,
    )
    size = sum(map(len, texts)) + CHARS_PER_TEXT * len(texts)
    work = service.step_thread.run(steps, deadline=exchange.deadline, kind=SHOWING, size=size)
    results = await exchange.while_connected(work)
    if not isinstance(body.inputs, list) and isinstance(results[0], ServiceError):
        raise results[0]
    counts = (r["count"] for r in results if not isinstance(r, ServiceError))
    exchange.tokens = sum(counts)
    response: TokenizeResponse = {
        "model": model.version,
        "results": [item(result) for result in results],
    }
    return JsonAnswer(response)


def tokens_steps(
    tokenizer: InputTokenizer,
    texts: Sequence[Text],
    *,
    special: bool,
    max_chars: int,
    max_tokens: int,
) -> Steps[list[Tokens | ServiceError]]:
    """The tokens of each text, which is one step, or the error that says why there are none."""
    results: list[Tokens | ServiceError] = []
    remaining = max_tokens
    for text in texts:
        result = _tokens(tokenizer, text, special=special, max_chars=max_chars)
        results.append(result)
        if not isinstance(result, ServiceError):
            remaining -= len(result["ids"])
        if remaining < 0:
            raise TooManyTexts(
                f"the texts have more than the {max_tokens} tokens that are accepted in one "
                "request, half of --max-queue-tokens"
            )
        yield
    return results


def _tokens(
    tokenizer: InputTokenizer, text: Text, *, special: bool, max_chars: int
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


ADAPTER = Adapter(router.routes)
