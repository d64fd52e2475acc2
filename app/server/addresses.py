"""Says where the service can be reached."""

import ipaddress
import logging
import socket
from collections.abc import Sequence

from app.config.settings import Settings

logger = logging.getLogger(__name__)


def announce(what: str, sites: Sequence[socket.socket], settings: Settings) -> None:
    """Log what is served at the bound ``sites``, and what a browser can open there.

    The first site is the service's, the second one that of the metrics, if they have their own.
    """
    urls = [_url(site) for site in sites]
    pages = {"page": f"{urls[0]}/"}
    if settings.docs == "on":
        pages["docs"] = f"{urls[0]}/docs"
    pages["metrics"] = f"{urls[-1]}/metrics"
    logger.info("serving %s at %s", what, urls[0], extra={"fields": pages})
    address = ipaddress.ip_address(sites[0].getsockname()[0].partition("%")[0])
    if not (settings.api_keys or address.is_loopback):
        logger.warning("everyone who reaches %s may send requests: there are no API keys", urls[0])


def _url(site: socket.socket) -> str:
    host, port = site.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
