"""vLLM's classification and tokens. Its clients use paths of ours: the fields of a body tell."""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, PlainValidator, StrictBool
from pydantic_core import PydanticCustomError

from sentiment_service.adapters.forms import OpenAiRoute, Refused
from sentiment_service.engine.classifier import Classification, Classifier
from sentiment_service.engine.model.model import Model
from sentiment_service.engine.step_thread import Kind, Steps
from sentiment_service.engine.text.text_tokenizer import Encoding, Text, TextPair, packed
from sentiment_service.errors import InvalidRequest, ServiceError
from sentiment_service.http.routes import HttpRequest, JsonAnswer, TextRoute, read_body
from sentiment_service.requests.service import Adapter
from sentiment_service.requests.validation import as_list, parse_texts, whole
from sentiment_service.results import every_prediction

# The time of a character, first guessed, then measured.
TOKENISING = Kind(1e-6)

# Graphs fail with fewer. A text has more, because of its special tokens.
LEAST_TOKENS = 2

Prompt = Text | list[int]  # the latter are token ids


def _prompts(value: Any) -> list[Prompt]:
    """The texts or lists of token ids. A list of numbers is one of them."""
    lists = value if isinstance(value, list) else []
    if _are_ids(lists):
        return [lists]
    if not any(isinstance(one, list) for one in lists):
        return [*as_list(parse_texts(value))]
    for place, one in enumerate(lists):
        if not isinstance(one, list) or not _are_ids(one):
            raise PydanticCustomError(
                "prompts",
                "must hold texts, or lists of token ids; the item at place {place} is no such list",
                {"place": place},
            )
    return lists


def _are_ids(values: list[Any]) -> bool:
    return bool(values) and all(type(one) is int for one in values)


class ClassificationRequest(BaseModel):
    """Texts or their token ids; other fields are ignored. Texts are cut at their end only."""

    messages: Refused = None
    input: Annotated[list[Prompt], PlainValidator(_prompts)]
    inputs: Refused = None
    raw_scores: Refused = None
    overflow: Refused = None
    split: Refused = None
    threshold: Refused = None
    model: str | None = None
    add_special_tokens: StrictBool = True
    truncate_prompt_tokens: Annotated[int | None, Field(strict=True), BeforeValidator(whole)] = None
    truncation_side: Literal["right"] | None = None
    # Until vLLM 0.11 this parameter was called activation. False: logits, no probabilities.
    use_activation: StrictBool | None = Field(
        default=None, validation_alias=AliasChoices("use_activation", "activation")
    )

    @property
    def is_plain(self) -> bool:
        """Whether it asks for texts as everywhere else."""
        complete = self.add_special_tokens and self.truncate_prompt_tokens in (None, -1)
        return complete and not any(isinstance(prompt, list) for prompt in self.input)


class TokenizeRequest(BaseModel):
    """One text; other fields are ignored."""

    messages: Refused = None
    prompt: str
    inputs: Refused = None
    model: str | None = None
    add_special_tokens: StrictBool = True
    return_token_strs: StrictBool | None = None


class VllmRoute(OpenAiRoute, TextRoute):
    """A route of vLLM's that takes texts."""


router = APIRouter(tags=["compatibility"], route_class=VllmRoute)
tokenize_router = APIRouter(route_class=VllmRoute)  # for a path that has our own form, too


@router.post("/v1/classify", operation_id="classifyVllm")
async def classify(request: HttpRequest) -> Response:
    """vLLM's classification, with `probs` in the order of the labels in `GET /models`."""
    body = await read_body(request, ClassificationRequest)
    exchange, service = request.exchange, request.exchange.service
    exchange.check_number(len(body.input))
    classifier = service.models.classifiers.of(body.model)
    work = exchange.while_connected(_classified(request, classifier, body))
    # With these options, what is classified is no text.
    texts: Sequence[object] = body.input if body.is_plain else [None] * len(body.input)
    done = await exchange.counted(classifier, texts, work)
    predictions = every_prediction(done.outcomes)
    tokens = sum(min(prediction["tokens"], done.model.max_tokens) for prediction in predictions)
    response = {
        "id": f"classify-{exchange.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": done.model.name,
        "data": [
            {
                "index": index,
                "label": prediction["label"],
                "probs": list(
                    prediction["logits" if body.use_activation is False else "scores"].values()
                ),
                "num_classes": len(done.model.labels),
            }
            for index, prediction in enumerate(predictions)
        ],
        "usage": {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        },
    }
    return JsonAnswer(response, done.server_timing)


async def _classified(
    request: HttpRequest, classifier: Classifier, body: ClassificationRequest
) -> Classification:
    deadline = request.exchange.deadline
    with classifier.in_use():  # the ids are this model's
        texts: Sequence[Any] = body.input
        if not body.is_plain:
            special, most = body.add_special_tokens, body.truncate_prompt_tokens
            texts = await _encoded(request, classifier.model, body.input, special, most)
            if min(map(len, texts)) < LEAST_TOKENS:
                raise InvalidRequest(f"the model reads at least {LEAST_TOKENS} tokens of each text")
        return await classifier.classify(texts, deadline=deadline)


@tokenize_router.post("/tokenize")
async def tokenize(request: HttpRequest) -> Response:
    """The ids that the model reads of the prompt. ``count`` is before truncation."""
    body = await read_body(request, TokenizeRequest)
    exchange = request.exchange
    model = exchange.service.models.classifiers.of(body.model).model
    exchange.asks(model.name, 1)
    work = _encoded(request, model, [body.prompt], body.add_special_tokens)
    (encoding,) = await exchange.while_connected(work)
    exchange.tokens = encoding.tokens
    ids = encoding.ids
    strings = [model.tokenizer.library.id_to_token(one) for one in ids]
    answer = {"count": encoding.tokens, "max_model_len": model.max_tokens, "tokens": ids}
    return JsonAnswer({**answer, "token_strs": strings if body.return_token_strs else None})


async def _encoded(
    request: HttpRequest,
    model: Model,
    prompts: Sequence[Prompt],
    special: bool,
    most: int | None = None,
) -> list[Encoding]:
    service = request.exchange.service
    steps = encode_steps(model, prompts, service.settings.max_text_chars, special, most)
    size, deadline = sum(map(len, prompts)), request.exchange.deadline
    return await service.step_thread.run(steps, deadline=deadline, kind=TOKENISING, size=size)


def encode_steps(
    model: Model, prompts: Sequence[Prompt], max_chars: int, special: bool, most: int | None
) -> Steps[list[Encoding]]:
    """The encoding of each prompt, which is one step.

    ``most`` tokens are kept, and as many as the model reads if it is -1. If it is None, longer
    lists of ids are refused.
    """
    library = model.tokenizer.library
    origin = library.encode("a").sequence_ids  # None for special tokens
    before, after = origin.index(0), origin[::-1].index(0)
    if most not in (None, -1) and not before + after < most <= model.max_tokens:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be -1, or from {before + after + 1} to "
            f"{model.max_tokens}, the most that the model reads"
        )
    kept = model.max_tokens if most in (None, -1) else most
    done = []
    for place, prompt in enumerate(prompts):
        yield
        if isinstance(prompt, list):
            ids = prompt if most is None else prompt[:kept]
            if len(ids) > kept:
                raise InvalidRequest(
                    f"the item at place {place} has {len(ids)} token ids, and the model reads at "
                    f'most {kept}; "truncate_prompt_tokens": -1 cuts off the rest'
                )
            for one in ids:
                if not 0 <= one < 2**31 or library.id_to_token(one) is None:
                    raise InvalidRequest(f"the model's vocabulary has no token with the id {one}")
            done.append(Encoding.of(ids))
            continue
        if isinstance(prompt, TextPair):
            raise InvalidRequest("a pair of texts is not cut; leave out the options of tokens")
        (encoding,) = model.tokenizer.encode_batch([prompt], max_chars=max_chars)
        if isinstance(encoding, ServiceError):
            raise encoding
        ids, end = encoding.ids, len(encoding) - after
        head, tail = (ids[:before], ids[end:]) if special else ([], [])
        ids = [*head, *ids[before:end][: kept - len(head) - len(tail)], *tail]
        dropped = 0 if special else before + after
        done.append(Encoding(packed(ids), encoding.tokens - dropped if most is None else len(ids)))
    return done


(_classify,), (_tokenize,) = router.routes, tokenize_router.routes
ADAPTER = Adapter(
    router.routes,
    forms={
        **{(path, "input"): _classify for path in ("/classify", "/invocations")},
        **{(path, "messages"): _classify for path in ("/classify", "/invocations")},
        **{("/tokenize", field): _tokenize for field in ("prompt", "messages")},
    },
)
