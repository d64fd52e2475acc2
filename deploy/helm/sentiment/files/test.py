"""What `helm test` runs: the service at the URL is ready and classifies a text."""

import http.client
import json
import os
import re
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

address = urlsplit(sys.argv[1])
service = http.client.HTTPConnection(address.netloc, timeout=30)
if address.scheme == "https":  # the certificate has the public name, not that in the cluster
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    service = http.client.HTTPSConnection(address.netloc, timeout=30, context=tls)
keys = os.environ.get("SENTIMENT_API_KEYS", "")
if file := os.environ.get("SENTIMENT_API_KEYS_FILE"):
    keys = Path(file).read_text("latin-1")
headers = {"content-type": "application/json"}
if key := next(filter(None, re.split(r"[\s,]+", keys)), None):
    headers["authorization"] = f"Bearer {key}"


def ask(method: str, path: str, body: str | None = None) -> bytes:
    """Send a request, and end with what is wrong unless the answer is 200."""
    try:
        service.request(method, path, body, headers)
        answer = service.getresponse()
        text = answer.read()
    except OSError as error:
        sys.exit(f"{sys.argv[1]} does not answer: {error}")
    if answer.status != 200:
        sys.exit(f"{path} answers {answer.status}: {text.decode(errors='replace')}")
    return text


ask("GET", "/health/ready")
found = json.loads(ask("POST", "/classify", '{"inputs": "I love it"}'))
result = found["results"][0]
print(f"{found['model']['name']}: {result['label']}, score {result['score']:.3f}")
