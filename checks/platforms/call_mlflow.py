"""MLflow's client of scoring servers, with a table."""

import sys
from urllib.parse import urlsplit

import pandas as pd
from mlflow.pyfunc.scoring_server.client import ScoringServerClient

address = urlsplit(sys.argv[1])
client = ScoringServerClient(address.hostname, address.port)
client.wait_server_ready(timeout=10)
table = pd.DataFrame({"id": [1, 2], "text": ["I love this!", "worst service ever"]})
predictions = client.invoke(table).get_predictions()
assert list(predictions["label"]) == ["positive", "negative"], predictions
