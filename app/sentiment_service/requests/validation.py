"""Parses JSON and validates bodies, and the texts in them, with errors that say what was wrong."""

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, LiteralString, NotRequired, Protocol, TypeGuard, TypeVar

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError
from typing_extensions import TypedDict

from sentiment_service.engine.options import DEFAULTS, LANGUAGE_TAG, Overflow, Split, TextOptions
from sentiment_service.engine.text.input_tokenizer import VISIBLE
from sentiment_service.engine.text.text_tokenizer import Text, TextPair
from sentiment_service.errors import InvalidRequest, UnknownField, UnsupportedMediaType, plain_words

Body = TypeVar("Body", bound=BaseModel)
Validated = TypeVar("Validated", bound=BaseModel, covariant=True)

# Documents of up to this size are parsed on the event loop, in a few milliseconds at most.
INLINE_BYTES = 65_536
# How many brackets, commas and colons a document may have outside its texts. No other thread runs
# while it is parsed: two megabytes of texts take 2 ms, of brackets 0.2 s, and these at most 0.03 s.
MOST_SIGNS, SIGNS_PER_TEXT = 100_000, 16

FAST_DECODER = msgspec.json.Decoder()


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        raise ValueError(digits)
    return value


# Like json.loads, but it refuses NaN and Infinity, which are not JSON, and numbers such as 1e999,
# which would become Infinity.
STRICT_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)

EMPTY_BODY = "the body is empty; send a JSON object"
NO_OBJECT = "the body must be a JSON object"
NO_INPUTS: LiteralString = 'the body must be a JSON object, such as {"inputs": "I love this!"}'
# By pydantic's types of faults.
FAULTS = {
    "missing": "is required",
    "none_required": "must be left out",
    "model_type": "must be an object",
    "too_short": "must not have fewer items than {min_length}",
    "too_long": "must not have more items than {max_length}",
}


def parse(content: bytes, what: str, most_signs: int = MOST_SIGNS) -> Any:
    """The value of a JSON document, of any type. ``what`` names the document in errors."""
    if len(content) > most_signs and _has_more_signs(content, most_signs):
        raise InvalidRequest(
            f"{what} has more than {most_signs} brackets, commas and colons outside its texts"
        )
    try:
        return FAST_DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _parse_slowly(content, what)


def _signs(content: bytes) -> int:
    return sum(map(content.count, (b"[", b"{", b",", b":")))


def _has_more_signs(content: bytes, most: int) -> bool:
    """Whether more than ``most`` signs stand between its values, or it has more texts than that."""
    if _signs(content) <= most:
        return False
    if (encoding := json.detect_encoding(content)) != "utf-8":
        content = content.decode(encoding, "replace").encode("utf-8", "replace")
    content = content.replace(rb"\\", b"").replace(rb"\"", b"")
    if content.count(b'"') > 2 * most:
        return True
    return _signs(b"".join(content.split(b'"')[::2])) > most


def _parse_slowly(content: bytes, what: str) -> Any:
    """The value of a document that msgspec refuses, or what is wrong with it.

    A surrogate pair may be halved in one of the texts. Then only this text should fail.
    """
    try:
        return STRICT_DECODER.decode(content.decode(json.detect_encoding(content), "surrogatepass"))
    except json.JSONDecodeError as error:
        fault = error.msg.removesuffix(" at")
        raise InvalidRequest(
            f"{what} is not valid JSON: {fault} at character {error.pos}"
        ) from None
    except (ValueError, RecursionError):  # invalid UTF-8 raises a ValueError, too
        raise InvalidRequest(
            f"{what} is not JSON in UTF-8, or too deeply nested, or has a huge number or NaN"
        ) from None


class Schema(Protocol[Validated]):
    """What validates a parsed body: a pydantic model, or what chooses among several."""

    def model_validate(self, obj: Any, /) -> Validated:
        """The body as a model."""


class RequestBody(BaseModel):
    """A JSON object without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, body: Any) -> Any:
        # Pydantic's own check would report all of a million unknown fields, which takes seconds.
        known = cls.__pydantic_fields__
        if not isinstance(body, dict):
            raise PydanticCustomError("no_object", NO_INPUTS)
        if not known.keys() >= body.keys():
            unknown = next(name for name in body if name not in known)
            texts = "" if "inputs" in body else " texts belong in 'inputs', and"
            raise PydanticCustomError(
                "unknown_field",
                "unknown field {name};{texts} the accepted fields are {accepted}",
                {"name": ascii(unknown[:40]), "texts": texts, "accepted": ", ".join(known)},
            )
        return body


def is_own_form(schema: Schema[Any]) -> TypeGuard[type[RequestBody]]:
    """Whether it is one of our own forms, which may also be a text."""
    return isinstance(schema, type) and issubclass(schema, RequestBody)


UNICODE = re.compile(r'charset *= *"?(utf-?8|us-ascii)\b')


def text_body(content_type: str, body: bytes, schema: Schema[Any]) -> dict[str, str]:
    """What one of our own forms reads in a body that is not JSON: a text."""
    kind, _, parameters = content_type.lower().partition(";")
    has_texts = is_own_form(schema)
    if not has_texts or kind.strip() != "text/plain":
        or_text = ", or one text, with content-type: text/plain" if has_texts else ""
        raise UnsupportedMediaType(f"send JSON, with content-type: application/json{or_text}")
    if "charset" in parameters and not UNICODE.search(parameters):
        raise UnsupportedMediaType("text/plain is read in UTF-8 only")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequest("the body is not a text in UTF-8") from None
    if len(body) <= INLINE_BYTES and text.lstrip()[:1] in ("{", "["):
        with suppress(InvalidRequest):
            parse(text.encode(), "the body")
            raise UnsupportedMediaType("the body is JSON: send it as application/json")
    return {"inputs": text.removesuffix("\n").removesuffix("\r")}


def checked(value: Any, schema: Schema[Body]) -> Body:
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        fault = error.errors()[0]
    if fault["type"] == "unknown_field":
        raise UnknownField(fault["msg"], value)
    raise InvalidRequest(_explained(fault))


def _explained(fault: ErrorDetails) -> str:
    """Which field is wrong, and what is accepted."""
    place = ".".join(str(part) for part in fault["loc"])
    if not place:
        return NO_INPUTS if fault["type"] == "no_object" else NO_OBJECT
    if fault["type"] in FAULTS:
        return f"{place} {FAULTS[fault['type']].format_map(fault.get('ctx', {}))}"
    return f"{place} {plain_words(fault['msg'])}"


def whole(value: Any) -> Any:
    """``value``, as an int if it is a whole float: in JSON, 2.0 and 2 are the same number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


PAIR = '{"text": ..., "text_pair": ...}'

Item = TypeVar("Item")
# An object alone and a list of both are accepted, too: no client's generator could express them.
NonEmpty = Annotated[list[Item], Field(min_length=1)]

# A text that is accepted as the only text of a request. The pattern is only for OpenAPI: the model
# checks each text, so that each bad text gets its own error.
SingleText = Annotated[
    str, WithJsonSchema({"type": "string", "pattern": rf"^[^\x00]*{VISIBLE.pattern}[^\x00]*$"})
]


class PairObject(TypedDict):
    """A text, and a second text that the model judges together with it.

    Only models with `text_pairs` (see `GET /models`) take a second text.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    text: Annotated[str, Field(description="the text")]
    text_pair: NotRequired[Annotated[str | None, Field(description="the second text")]]


def parse_texts(value: Any) -> Text | list[Text]:
    """One text or pair, or a list of at least one. In a list, null is an empty text: it has an
    error, and the others a result.
    """
    if not isinstance(value, list):
        return _text(value)
    if not value:
        raise PydanticCustomError("texts", "must hold at least one text")
    if all(isinstance(text, str) for text in value):
        return value
    return ["" if item is None else _text(item, place) for place, item in enumerate(value)]


def text_or_pair(text: Any, text_pair: Any = None) -> Text | None:
    """The text, or the pair if there is a second one. None if one of them is not a string."""
    if not isinstance(text, str):
        return None
    if text_pair is None:
        return text
    return TextPair(text, text_pair) if isinstance(text_pair, str) else None


def as_list(inputs: Text | list[Text]) -> list[Text]:
    """The texts of a request, of which there may be only one."""
    return inputs if isinstance(inputs, list) else [inputs]


def text_of(value: Any) -> Text | None:
    """The text or pair that a string or an object is; None if it is neither. Null is empty."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and value.keys() <= PairObject.__annotations__.keys():
        text = value.get("text", value)
        return text_or_pair("" if text is None else text, value.get("text_pair"))
    return None


def _text(value: Any, place: int | None = None) -> Text:
    if (text := text_of(value)) is not None:
        return text
    if place is not None:
        raise PydanticCustomError(
            "texts",
            "must hold strings or objects {accepted}; "
            "the item at place {place}, from 0, is neither",
            {"accepted": PAIR, "place": place},
        )
    raise PydanticCustomError(
        "texts", "must be a string, an object {accepted}, or a list of these", {"accepted": PAIR}
    )


Texts = Annotated[
    Text | list[Text],
    PlainValidator(
        parse_texts, json_schema_input_type=SingleText | NonEmpty[str] | NonEmpty[PairObject]
    ),
]

# How a text that is too long is processed. Null is the default, as it is for the other options.
OverflowOption = Annotated[
    Overflow,
    BeforeValidator(
        lambda value: DEFAULTS.overflow if value is None else value,
        json_schema_input_type=Overflow | None,
    ),
]

# From which score on a multi-label model gives a label.
Threshold = Annotated[float, Field(strict=True, ge=0, le=1)]


def _language_tag(value: str) -> str:
    if not LANGUAGE_TAG.fullmatch(value):
        raise PydanticCustomError(
            "language",
            "must be a language tag, whose first part has two or three letters, such as 'en' or "
            "'pt-BR'",
        )
    return value


LanguageTag = Annotated[
    str,
    AfterValidator(_language_tag),
    Field(json_schema_extra={"pattern": f"^{LANGUAGE_TAG.pattern}$"}),
]


class ClassifyRequest(RequestBody):
    """One text, or a list of texts."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": ["I love this!", ""]}]})

    inputs: Texts = Field(
        description="one text, or a list of texts; a list of two strings is two separate texts"
    )
    model: str | None = Field(default=None, description="name of a served model")
    overflow: OverflowOption = Field(
        default="truncate",
        description="what to do with a text of more tokens than the model takes: cut off its end, "
        "refuse it, or average the logits of overlapping windows, weighted by tokens",
    )
    split: Split | None = Field(
        default=None, description="sentences: classify each sentence as well, by itself"
    )
    language: LanguageTag | None = Field(
        default=None,
        description="language of the texts, as a BCP 47 tag such as pt-BR: if no model is named, "
        "the first one that names this language answers, else the default one; its abbreviations "
        "end no sentence",
    )
    threshold: Threshold | None = Field(
        default=None,
        description="for multi-label models: the score from which on a label is one of `labels`; "
        "by default the bundle's, mostly 0.5",
    )

    @property
    def options(self) -> TextOptions:
        return TextOptions(self.overflow, self.split, self.language, self.threshold)
