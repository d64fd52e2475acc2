"""Calls the service with the client that openapi-python-client generated."""

import sys

from sentiment_service_client import Client
from sentiment_service_client.api.classification import classify, classify_stream, tokenize
from sentiment_service_client.api.operations import check_ready, get_info, list_models
from sentiment_service_client.models import (
    ClassifyRequest,
    FailedItem,
    PairObject,
    Prediction,
    Problem,
    TokenizeRequest,
)
from sentiment_service_client.types import File

MODEL = "minilm-l6-tweet-sentiment"

with Client(sys.argv[1]) as client:
    answer = classify.sync(client=client, body=ClassifyRequest(inputs=["I love this!", ""]))
    good, bad = answer.results
    assert isinstance(good, Prediction), good
    assert good.label == "positive"
    assert isinstance(bad, FailedItem), bad
    assert bad.error.code == "empty_text"
    # A list of objects is sent as it is, so its objects must be dicts.
    objects = [PairObject(text="worst service ever").to_dict()]
    answer = classify.sync(client=client, body=ClassifyRequest(inputs=objects))
    assert answer.results[0].label == "negative"
    refused = classify.sync(client=client, body=ClassifyRequest(inputs="hi", model="none"))
    assert isinstance(refused, Problem), refused
    assert refused.code == "model_not_found"
    assert check_ready.sync(client=client).status == "ready"
    assert list_models.sync(client=client).models[0].name == MODEL
    assert get_info.sync(client=client).limits.max_inflight_bytes > 0
    tokens = tokenize.sync(client=client, body=TokenizeRequest(inputs="hi")).results[0]
    assert tokens.tokens == ["[CLS]", "hi", "[SEP]"]
    # It does not know the media type of the answer, which is bytes for it.
    lines = classify_stream.sync_detailed(
        client=client, body=File(payload=b'{"id": 1, "text": "I love this!"}\n')
    )
    assert b'"label":"positive"' in lines.content
