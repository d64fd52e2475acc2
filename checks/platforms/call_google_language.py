"""Google Natural Language's client for Python, with its REST transport: versions 1 and 2."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import BadRequest, NotFound, Unauthorized
from google.cloud import language_v1, language_v2

URL, KEY, CROWDED = sys.argv[1:]
TEXT = "I love this! 👨‍👩‍👧 é\n\nWorst service ever."


def client(version: Any, url: str = URL, key: str = KEY) -> Any:
    options = ClientOptions(api_endpoint=url, api_key=key)
    return version.LanguageServiceClient(transport="rest", client_options=options)


def refused(asked: Any, kind: type[Exception]) -> str:
    try:
        asked()
    except kind as error:
        return str(error)
    raise AssertionError("it was not refused")


for version in (language_v1, language_v2):
    google, types = client(version), version.Document.Type
    document = version.Document(content=TEXT, type_=types.PLAIN_TEXT)
    last = TEXT.index("Worst")
    expected = {
        "NONE": -1,
        "UTF8": len(TEXT[:last].encode()),
        "UTF16": len(TEXT[:last].encode("utf-16-le")) // 2,
        "UTF32": last,
    }
    for encoding, begin in expected.items():
        answer = google.analyze_sentiment(request={"document": document, "encoding_type": encoding})
        assert answer.sentences[-1].text.begin_offset == begin, (encoding, answer)
    assert answer.sentences[-1].sentiment.score < 0, answer
    assert answer.document_sentiment.magnitude > 1, answer
    for bad, said in (
        (version.Document(content="", type_=types.PLAIN_TEXT), "empty or blank"),
        (version.Document(content="<p>it", type_=types.HTML), "HTML is not read here"),
        (version.Document(gcs_content_uri="gs://any/text", type_=1), "gcsContentUri"),
    ):
        problem = refused(lambda: google.analyze_sentiment(document=bad), BadRequest)  # noqa: B023
        assert said in problem, problem
    other = client(version, key="another")
    problem = refused(lambda: other.analyze_sentiment(document=document), Unauthorized)  # noqa: B023
    assert "x-goog-api-key" in problem, problem
    refused(lambda: google.analyze_entities(document=document), NotFound)  # noqa: B023

crowded = client(language_v2, CROWDED)
batch = language_v2.Document(content="I love this! " * 250, type_=1)
with ThreadPoolExecutor(8) as pool:
    answers = pool.map(lambda _: crowded.analyze_sentiment(document=batch), range(32))
    assert all(len(answer.sentences) == 250 for answer in answers)
metrics = requests.get(f"{CROWDED}/metrics", timeout=10).text.splitlines()
(refusals,) = (line for line in metrics if 'reason="queue_full"' in line)
assert not refusals.endswith(" 0.0"), "no request was refused, so nothing was retried"
