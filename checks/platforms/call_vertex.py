"""Vertex AI's local endpoint, told that its container runs: health and predictions."""

import json
import sys
from urllib.parse import urlsplit

from google.cloud.aiplatform.prediction import LocalEndpoint

ROUTE = "/v1/endpoints/1/deployedModels/2"

for health, predict in ((ROUTE, f"{ROUTE}:predict"), ("/health", "/predict")):
    endpoint = LocalEndpoint(
        "no-image",
        serving_container_health_route=health,
        serving_container_predict_route=predict,
        host_port=str(urlsplit(sys.argv[1]).port),
    )
    endpoint.container_is_running = True
    assert endpoint.run_health_check().status_code == 200, health
    body = json.dumps({"instances": ["I love this!", {"text": "worst service ever"}]})
    answer = endpoint.predict(body, headers={"content-type": "application/json"})
    labels = [one["label"] for one in answer.json()["predictions"]]
    assert labels == ["positive", "negative"], (predict, answer.text)
    endpoint.container_is_running = False
