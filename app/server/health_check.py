"""The health check of the image: exit code 0 if the service of this container is ready."""

import http.client
import os
import sys

from app.config import platforms

TIMEOUT_S = 4


def main() -> int:
    """Ask the service that listens on the port of the environment."""
    found = platforms.platform_settings(os.environ).get("port")
    port = os.environ.get("SENTIMENT_PORT") or (found.value if found else 8000)
    # Not urllib, which would use a proxy that is set in the environment.
    service = http.client.HTTPConnection("127.0.0.1", int(port), timeout=TIMEOUT_S)
    service.request("GET", "/health/ready")
    return int(service.getresponse().status != 200)


if __name__ == "__main__":
    sys.exit(main())
