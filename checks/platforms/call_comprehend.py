"""AWS Comprehend's client for Python: DetectSentiment and BatchDetectSentiment."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

URL, KEY, CROWDED = sys.argv[1:]
TEXT = "I love this!\n\nWorst service ever."


def client(url: str = URL, key: str = KEY) -> Any:
    """A client; what the secret is does not matter."""
    secret = {"aws_access_key_id": key, "aws_secret_access_key": "any"}
    # By default it tries twice again, soon.
    again = Config(retries={"total_max_attempts": 10, "mode": "standard"})
    return boto3.client(
        "comprehend", region_name="us-east-1", endpoint_url=url, config=again, **secret
    )


def refused(operation: Any, **parameters: Any) -> str:
    """The name of the client's exception, or the error's own if the client has none for it."""
    try:
        operation(LanguageCode="en", **parameters)
    except ClientError as error:
        known = type(error).__name__
        return str(error.response["Error"]["Code"]) if known == "ClientError" else known
    raise AssertionError(f"{operation} was not refused")


comprehend = client()
one = comprehend.detect_sentiment(Text=TEXT, LanguageCode="en")
assert one["Sentiment"] == "MIXED", one
assert {*one["SentimentScore"]} == {"Positive", "Negative", "Neutral", "Mixed"}, one
answer = comprehend.batch_detect_sentiment(
    TextList=["I love this!", " ", "worst service ever"], LanguageCode="en"
)
found = [(each["Index"], each["Sentiment"]) for each in answer["ResultList"]]
assert found == [(0, "POSITIVE"), (2, "NEGATIVE")], answer
(bad,) = answer["ErrorList"]
assert (bad["Index"], bad["ErrorCode"]) == (1, "InvalidRequestException"), bad
texts = [f"I love number {number}" for number in range(1_000)]
many = comprehend.batch_detect_sentiment(TextList=texts, LanguageCode="en")
assert [each["Index"] for each in many["ResultList"]] == [*range(1_000)]
batch_detect = comprehend.batch_detect_sentiment
for parameters, expected in (
    ({"Text": " "}, "InvalidRequestException"),
    ({"Text": "x" * 60_000}, "TextSizeLimitExceededException"),
):
    assert refused(comprehend.detect_sentiment, **parameters) == expected
assert refused(batch_detect, TextList=["it"] * 1_001) == "BatchSizeLimitExceededException"
assert refused(comprehend.detect_entities, Text="it") == "InvalidRequestException"
other = client(key="another").detect_sentiment
assert refused(other, Text=TEXT) == "UnrecognizedClientException"

crowded = client(CROWDED)


def batch(_: int) -> tuple[int, int]:
    """The number of results, and how often the request was sent again."""
    done = crowded.batch_detect_sentiment(TextList=["I love this!"] * 250, LanguageCode="en")
    return len(done["ResultList"]), done["ResponseMetadata"]["RetryAttempts"]


with ThreadPoolExecutor(8) as pool:
    results, retried = zip(*pool.map(batch, range(32)), strict=True)
assert [*results] == [250] * 32
assert any(retried), "no request was refused, so nothing was retried"
