"""``tei.v1.Info`` and ``tei.v1.Predict``, compatible with text-embeddings-inference (TEI)."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from app.adapters.forms.common import ranking, tokens_computed
from app.api.answers import every_prediction
from app.engine.text.encoding import TextOptions
from app.errors import ServiceError
from app.grpc_api.call import Answers, Call
from app.grpc_api.messages import Message, message

# Texts of one stream that are computed at the same time. Enough to fill a batch; a client that
# does not read its answers holds no more than these.
WINDOW = 32

_CLASSIFIER = 1  # of the enumeration ModelType


async def info(call: Call, request: Message) -> Message:
    """Versions and limits. Requests in flight have no limit of their own: 0."""
    classifier = call.service.models.classifier(None)
    model, plan = classifier.model, classifier.plan
    return call.method.response(
        version=call.service.version,
        model_id=model.name,
        model_sha=model.revision,
        model_dtype=model.precision,
        model_type=_CLASSIFIER,
        max_input_length=model.max_tokens,
        max_batch_tokens=plan.budget.tokens,
        max_client_batch_size=call.service.settings.max_texts,
        tokenization_workers=1,
    )


async def predict(call: Call, request: Message) -> Message:
    """Labels of one text, the highest score first.

    Raises:
        ServiceError: the text has no result.
    """
    return await _predict(call, request, deadline=call.deadline, started=time.perf_counter())


async def predict_stream(call: Call) -> AsyncGenerator[Message, None]:
    """The same for each text of a stream, in their order. The first bad text ends the stream.

    Raises:
        ServiceError: a text has no result, or the service shuts down.
    """
    # In the order of the texts; None marks the end. Its size limits the texts in work: one more is
    # awaited, and one more waits for room.
    answers: asyncio.Queue[asyncio.Task[Message] | None] = asyncio.Queue(WINDOW - 2)
    failure: ServiceError | None = None

    async def read() -> None:
        nonlocal failure
        try:
            async with aclosing(call.messages()) as messages:
                async for received in messages:
                    answer = _predict(
                        call, received.message, deadline=received.deadline, started=received.at
                    )
                    task = asyncio.create_task(answer)
                    # Not in the task itself, which may be cancelled before it begins.
                    task.add_done_callback(received.release)
                    await answers.put(task)
        except ServiceError as error:
            failure = error
        await answers.put(None)

    reading = asyncio.create_task(read())
    answering: asyncio.Task[Message] | None = None
    try:
        while (answering := await answers.get()) is not None:
            yield await answering
        await reading
        if failure is not None:
            raise failure
    finally:
        reading.cancel()
        left = [answering] if answering is not None else []
        while not answers.empty():
            if (task := answers.get_nowait()) is not None:
                left.append(task)
        for task in left:
            task.cancel()
        await asyncio.gather(reading, *left, return_exceptions=True)


async def _predict(call: Call, request: Message, *, deadline: float, started: float) -> Message:
    # TEI's field truncate is false unless it is set.
    options = TextOptions("truncate" if request.truncate else "error")
    done = await call.classify([request.inputs], model=None, options=options, deadline=deadline)
    predictions = every_prediction(done.outcomes)
    values = predictions[0]["logits" if request.raw_scores else "scores"]
    return call.method.response(
        predictions=ranking(values),
        metadata=_METADATA(
            compute_chars=len(request.inputs),
            compute_tokens=tokens_computed(done.model, predictions),
            total_time_ns=round((time.perf_counter() - started) * 1e9),
            tokenization_time_ns=round(done.stages["tokenize"] * 1e9),
            queue_time_ns=round(done.stages["queue"] * 1e9),
            inference_time_ns=round(done.stages["inference"] * 1e9),
        ),
    )


_METADATA = message("tei.v1.Metadata")
ANSWERS: Answers = {
    "/tei.v1.Info/Info": info,
    "/tei.v1.Predict/Predict": predict,
    "/tei.v1.Predict/PredictStream": predict_stream,
}
