"""SageMaker's own client for a local endpoint: JSON, JSON lines and CSV."""

import json
import sys
from urllib.parse import urlsplit

from sagemaker.core.local.local_session import LocalSagemakerRuntimeClient

client = LocalSagemakerRuntimeClient({"local": {"serving_port": urlsplit(sys.argv[1]).port}})


def invoke(body: str, content_type: str, accept: str) -> str:
    answer = client.invoke_endpoint(body, "sentiment", content_type, accept)
    text: str = answer["Body"].read().decode()
    return text


(best,) = json.loads(invoke('{"inputs": "I love this!"}', "application/json", "application/json"))
assert best["label"] == "positive", best
answer = invoke(
    '"I love this!"\n\n{"text": "worst service ever"}\n', "application/jsonlines", "*/*"
)
lines = [json.loads(line) for line in answer.splitlines()]
assert [line.get("label") for line in lines] == ["positive", None, "negative"], lines
rows = invoke("I love this!\nworst service ever\n", "text/csv", "text/csv").splitlines()
assert [row.split(",")[0] for row in rows] == ["positive", "negative"], rows
