"""The texts of a request: how its JSON is read, and how OpenAPI describes it."""

from typing import Annotated, Any, NotRequired, TypeVar

from pydantic import ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from app.engine.text.pairs import Input, TextPair
from app.engine.text.preprocessing import VISIBLE

PAIR = '{"text": ..., "text_pair": ...}'

Item = TypeVar("Item")
# OpenAPI has a list of strings or one of objects. An object alone and a list of both are accepted,
# too, but generators of clients would write code for them that does not compile.
NonEmpty = Annotated[list[Item], Field(min_length=1)]

# A text that is accepted as the only text of a request. The pattern is only for OpenAPI: the model
# checks each text, so that each bad text gets its own error.
Text = Annotated[str, Field(pattern=rf"^[^\x00]*{VISIBLE.pattern}[^\x00]*$")]


class PairObject(TypedDict):
    """A text, and a second text that the model judges together with it.

    Only models with `text_pairs` (see `GET /models`) take a second text.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    text: Annotated[str, Field(description="the text")]
    text_pair: NotRequired[Annotated[str | None, Field(description="the second text")]]


def parse_texts(value: Any) -> Input | list[Input]:
    """One text or pair, or a list of at least one.

    Raises:
        PydanticCustomError: it is something else.
    """
    if not isinstance(value, list):
        return _text(value)
    if not value:
        raise PydanticCustomError("texts", "must hold at least one text")
    if all(isinstance(text, str) for text in value):
        return value
    return [_text(item) for item in value]


def text_or_pair(text: Any, text_pair: Any = None) -> Input | None:
    """The text, or the pair if there is a second one. None if one of them is not a string."""
    if not isinstance(text, str):
        return None
    if text_pair is None:
        return text
    return TextPair(text, text_pair) if isinstance(text_pair, str) else None


def as_list(inputs: Input | list[Input]) -> list[Input]:
    """The texts of a request, of which there may be only one."""
    return inputs if isinstance(inputs, list) else [inputs]


def _text(value: Any) -> Input:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value.keys() <= PairObject.__annotations__.keys():
        text = text_or_pair(value.get("text"), value.get("text_pair"))
        if text is not None:
            return text
    raise PydanticCustomError(
        "texts", "must be a string, an object {accepted}, or a list of these", {"accepted": PAIR}
    )


Texts = Annotated[
    Input | list[Input],
    PlainValidator(
        parse_texts,
        json_schema_input_type=Text | NonEmpty[str] | NonEmpty[PairObject],
    ),
]
