"""The health check of the image: exit code 0 if the service of this container is ready."""

import argparse
import http.client
import ssl
import sys
from contextlib import closing
from pathlib import Path

from sentiment_service.errors import first_line
from sentiment_service.settings.sources import load_settings

# The command of the container: the service, or an init that was given the service's command.
COMMAND = Path("/proc/1/cmdline")
TIMEOUT_S = 4
# Addresses to listen on all interfaces, and where to reach them from the same container.
LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104


def main(command: Path = COMMAND) -> int:
    """Ask the service where its flags, the environment or the platform say that it listens.

    What it answers, or why it does not, is printed as one line, which Docker shows.
    """
    settings = load_settings(_flags(command.read_text(encoding="utf-8", errors="replace")))
    host = LOCAL.get(settings.host, settings.host)
    # Not urllib, which would use a proxy that is set in the environment.
    service = http.client.HTTPConnection(host, settings.port, timeout=TIMEOUT_S)
    if settings.tls_cert:  # its name is not that of this host
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        service = http.client.HTTPSConnection(host, settings.port, timeout=TIMEOUT_S, context=tls)
    try:
        with closing(service):
            service.request("GET", "/health/ready", headers={"connection": "close"})
            answer = service.getresponse()
            print(answer.status, *answer.read(500).decode(errors="replace").splitlines()[:1])
            return int(answer.status != 200)
    except (OSError, http.client.HTTPException) as error:
        print(f"{host}:{settings.port} does not answer: {first_line(error)}")
        return 1


def _flags(command: str) -> dict[str, str]:
    """What a command line says of the service's address. NUL ends each of its words."""
    parser = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    for flag in ("--host", "--port", "--tls-cert", "--tls-key"):
        parser.add_argument(flag)
    words = command.split("\0")
    options = words[words.index("serve") :] if "serve" in words else []
    return vars(parser.parse_known_args(options)[0])


if __name__ == "__main__":
    sys.exit(main())
