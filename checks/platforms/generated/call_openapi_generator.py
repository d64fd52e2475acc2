"""Calls the service with the client that openapi-generator generated for Python."""

import sys

from openapi_client import (
    ApiClient,
    ClassificationApi,
    ClassifyRequest,
    ClassifyRequestInputs,
    Configuration,
    FailedItem,
    OperationsApi,
    PairObject,
    Prediction,
    Problem,
    TokenizeRequest,
    TokenizeRequestInputs,
)
from openapi_client.exceptions import NotFoundException

MODEL = "minilm-l6-tweet-sentiment"

with ApiClient(Configuration(host=sys.argv[1])) as client:
    api = ClassificationApi(client)
    texts = ClassifyRequestInputs(["I love this!", ""])
    good, bad = (one.actual_instance for one in api.classify(ClassifyRequest(inputs=texts)).results)
    assert isinstance(good, Prediction), good
    assert good.label == "positive"
    assert isinstance(bad, FailedItem), bad
    assert bad.error.code == "empty_text"
    objects = ClassifyRequestInputs([PairObject(text="worst service ever")])
    (result,) = api.classify(ClassifyRequest(inputs=objects)).results
    assert result.actual_instance.label == "negative"
    problem = None
    try:
        api.classify(ClassifyRequest(inputs=texts, model="none"))
    except NotFoundException as error:
        problem = error.data
    assert isinstance(problem, Problem), problem
    assert problem.code == "model_not_found"
    tokens = api.tokenize(TokenizeRequest(inputs=TokenizeRequestInputs("hi"))).results[0]
    assert tokens.actual_instance.tokens == ["[CLS]", "hi", "[SEP]"]
    # It does not know the media type of the answer, so it must not read it.
    lines = api.classify_stream_without_preload_content('{"id": 1, "text": "I love this!"}\n')
    assert b'"label":"positive"' in lines.read()
    operations = OperationsApi(client)
    assert operations.check_ready().status == "ready"
    assert operations.list_models().models[0].name == MODEL
    assert operations.get_info().limits.max_inflight_bytes > 0
