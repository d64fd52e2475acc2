"""Azure ML's loader reads the files in deploy/azure-ml, and their routes answer."""

import sys
from pathlib import Path

import requests
from azure.ai.ml import load_online_deployment, load_online_endpoint

DEPLOY = Path(__file__).resolve().parents[2] / "deploy/azure-ml"

endpoint = load_online_endpoint(DEPLOY / "endpoint.yml")
deployment = load_online_deployment(DEPLOY / "deployment.yml")
assert deployment.endpoint_name == endpoint.name
assert deployment.request_settings.max_concurrent_requests_per_instance > 1
routes = deployment.environment.inference_config
probes = [routes.liveness_route, routes.readiness_route]
assert {route.port for route in (*probes, routes.scoring_route)} == {8000}, routes
for route in probes:
    assert requests.get(sys.argv[1] + route.path, timeout=10).status_code == 200, route
scoring = sys.argv[1] + routes.scoring_route.path
(result,) = requests.post(scoring, json={"inputs": ["I love this!"]}, timeout=10).json()["results"]
assert result["label"] == "positive", result
