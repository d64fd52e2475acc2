"""Hooks for Schemathesis, which makes up requests from the OpenAPI document."""

from typing import Any

import schemathesis

LINES = "application/x-ndjson"


@schemathesis.hook
def filter_case(context: schemathesis.HookContext, case: schemathesis.Case[Any]) -> bool:
    """Leave out streams whose body is no text: whatever is sent is text.

    And lists with null as a text, which are accepted, although the document says nothing of it:
    generators of clients would make every text optional.
    """
    body: Any = case.body
    for texts in body.values() if isinstance(body, dict) else ():
        for item in texts if isinstance(texts, list) else ():
            if item is None or (isinstance(item, dict) and item.get("text", item) is None):
                return False
    values = (dict, list, int, float, type(None))
    return case.media_type != LINES or not isinstance(body, values)


@schemathesis.hook
def map_case(context: schemathesis.HookContext, case: schemathesis.Case[Any]) -> Any:
    """Ask as browsers do, make pairs of texts acceptable, and leave out a threshold: the model is
    not multi-label.

    The service refuses a pair with a blank text or a NUL character, and a pair with ``split``. The
    document says so in words only, because the same objects may have such texts in other places.
    """
    case.headers["accept"] = "text/html, */*"  # the document has no other answer for the page
    body: Any = case.body
    parameters = body.get("parameters") if isinstance(body, dict) else None
    for options in (body, parameters, case.query):
        if isinstance(options, dict) and _in_range(options.get("threshold"), options is case.query):
            del options["threshold"]
    for texts in body.values() if isinstance(body, dict) else ():
        for pair in texts if isinstance(texts, list) else ():
            if isinstance(pair, dict):
                pair.update({name: _visible(text) for name, text in pair.items()})
                if body.get("split") == "sentences":
                    body["split"] = None
    return case


def _in_range(threshold: Any, in_query: bool) -> bool:
    if in_query and isinstance(threshold, str):  # as some phases write it
        threshold = float(threshold) if threshold.replace(".", "", 1).isdecimal() else None
    return type(threshold) in (int, float) and 0 <= threshold <= 1


def _visible(text: Any) -> Any:
    return text.replace("\0", "") + "x" if isinstance(text, str) else text


@schemathesis.serializer(LINES)
def lines(context: schemathesis.SerializationContext, value: str) -> bytes:
    """The body of a stream."""
    return value.encode("utf-8", "replace")
