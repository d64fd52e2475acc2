"""Azure Language's client for Python: versions 2023-04-01, 2022-05-01 and 3.1."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests
from azure.ai.textanalytics import TextAnalyticsClient
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import HttpResponseError

URL, KEY, CROWDED = sys.argv[1:]
TEXT = "I love this! 👨‍👩‍👧\n\nWorst service ever."


def client(version: str, url: str = URL, key: str = KEY) -> TextAnalyticsClient:
    # By default it tries 3 times again, each time after the second that the service asks for: all
    # that were refused come at once again.
    tries = {"retry_total": 30, "retry_status": 30}
    return TextAnalyticsClient(url, AzureKeyCredential(key), api_version=version, **tries)


def refused(documents: list[str], by: TextAnalyticsClient | None = None, **options: Any) -> str:
    try:
        (by or client("2023-04-01")).analyze_sentiment(documents, **options)
    except HttpResponseError as error:
        return f"{error.status_code} {error.message}"
    raise AssertionError(f"{options} was not refused")


for version in ("2023-04-01", "2022-05-01", "v3.1"):
    ask = client(version).analyze_sentiment
    (one,) = ask([TEXT], language="en", show_stats=True)
    assert one.sentiment == "mixed", one
    assert abs(sum(one.confidence_scores.values()) - 1) < 1e-6, one
    assert one.statistics.character_count == len(TEXT), one
    for sentence in one.sentences:
        end = sentence.offset + sentence.length
        assert TEXT[sentence.offset : end] == sentence.text, sentence
    assert [sentence.sentiment for sentence in one.sentences][-1] == "negative", one
    texts = {"a": "I love this!", "b": "", "c": "worst service ever"}
    answers = ask([{"id": name, "text": text} for name, text in texts.items()])
    assert [answer.id for answer in answers] == [*texts], answers
    assert [answer.is_error for answer in answers] == [False, True, False], answers
    assert "empty or blank" in answers[1].error.message, answers[1]
    (bad,) = ask([""])
    assert bad.is_error, bad
    many = ask([f"I love number {number}" for number in range(1_000)])
    assert len(many) == 1_000, len(many)
    assert not any(answer.is_error for answer in many)
    problem = refused([TEXT], client(version, key="another"))
    assert "Ocp-Apim-Subscription-Key" in problem, problem

assert "opinionMining" in refused([TEXT], show_opinion_mining=True)
assert "served models" in refused([TEXT], model_version="2022-11-01")
assert "at most 1000" in refused([TEXT] * 1_001)

crowded = client("2023-04-01", CROWDED)
with ThreadPoolExecutor(8) as pool:
    batches = pool.map(lambda _: crowded.analyze_sentiment(["I love this!"] * 250), range(32))
    assert not any(answer.is_error for answers in batches for answer in answers)
metrics = requests.get(f"{CROWDED}/metrics", timeout=10).text.splitlines()
(refusals,) = (line for line in metrics if 'reason="queue_full"' in line)
assert not refusals.endswith(" 0.0"), "no request was refused, so nothing was retried"
