"""Who may send requests, how many, how long they take, and how many bytes their bodies hold."""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import or_
from typing import NamedTuple, Protocol
from urllib.parse import unquote_to_bytes

from sentiment_service.errors import InvalidRequest, RateLimited, Unauthorized
from sentiment_service.settings.credentials import Credentials
from sentiment_service.settings.settings import Settings
from sentiment_service.shared_memory import Board, HitLimit

IPV4_MAPPED = "::ffff:"  # the prefix of an IPv4 address on an IPv6 socket
PERIOD_S = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
# Where clients of Azure and of Google put their key, if they have a header for it.
KEY_HEADERS = (b"ocp-apim-subscription-key", b"x-goog-api-key")
QUERY_KEY = re.compile(rb"(?:^|&)key=([^&]+)")  # Google's other way
IPV6_NETWORK_BITS = 64  # one customer of a provider has at least so many addresses
# The methods that request a probe or a page; gRPC has one verb for all.
READING = frozenset({"GET", "HEAD", "GRPC"})
TIMEOUT_MS = re.compile(rb"[1-9][0-9]*")
TIMEOUT_DIGITS = 18  # a longer number is above any deadline, and so are its first 18 digits


class PathSet:
    """Paths; ``/web/*`` stands for all below ``/web/``, ``/models/*/reload`` for all between."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self.patterns = frozenset(paths)
        known = (re.escape(path).replace(r"\*", ".*") for path in self.patterns)
        self._match = re.compile("|".join(known) or "(?!)", re.DOTALL).fullmatch

    def __contains__(self, path: str) -> bool:
        return self._match(path) is not None

    def __or__(self, other: "PathSet") -> "PathSet":
        return PathSet(self.patterns | other.patterns)


NONE = PathSet()


class Paths(NamedTuple):
    """The paths, HTTP's and gRPC's, that are not treated like the others.

    To read ``probes`` and ``files``, of which a page has a dozen, needs no key and has no rate
    limit; to read ``open`` needs no key. ``probes`` and ``quiet``, which are asked for all the
    time, begin at once, and where they succeed, their log line has the level debug.
    """

    probes: PathSet = NONE
    files: PathSet = NONE
    open: PathSet = NONE
    admin: PathSet = NONE  # a POST to them needs an admin key
    quiet: PathSet = NONE

    def __or__(self, other: "Paths") -> "Paths":
        return Paths(*map(or_, self, other))


class Head(Protocol):
    """What the access of a request depends on; the names of its headers are in lower case."""

    verb: str
    path: str
    query: bytes  # what follows the path of its URL, if anything does
    headers: Mapping[bytes, bytes]
    client: str
    key: str  # the name of its key, if that has one; set here


class Access:
    """Checks a request's key and its rate limit. Only digests of the keys are known here."""

    def __init__(
        self, settings: Settings, paths: Paths, board: Board, credentials: Credentials
    ) -> None:
        self._paths = paths
        self._free = paths.probes | paths.files
        self.credentials = credentials
        self._rate = settings.rate_limit
        if self._rate:
            requests, period = self._rate.split("/")
            self._hits = HitLimit(int(requests), PERIOD_S[period], board.parts("hits"))

    def check(self, head: Head) -> None:
        paths, reads = self._paths, head.verb in READING
        if reads and head.path in self._free:
            return
        digests = () if reads and head.path in paths.open else self.credentials.api_keys
        kind = "API keys (--api-keys)"
        if head.verb == "POST" and head.path in paths.admin:
            digests, kind = self.credentials.admin_keys, "admin keys (--admin-keys)"
            if not digests:
                raise Unauthorized(
                    "this service has no admin keys, so only the signal SIGHUP reloads models; "
                    "to allow this request, the operator must set SENTIMENT_ADMIN_KEYS"
                )
        if not (digests or self._rate):
            return
        if digests:
            who = _check_key(head, digests, kind)
            head.key = self.credentials.key_names.get(who, "")
        else:
            who = _network(head.client)
        if self._rate and (wait_s := self._hits.hit(who)):
            raise RateLimited(
                f"the rate limit is {self._rate}; wait as long as Retry-After says",
                retry_after_s=wait_s,
            )

    def catch_up(self) -> None:
        """Count what other workers have accepted since the last call."""
        if self._rate:
            self._hits.catch_up()


class InflightBytes:
    """A number of bytes that may be taken and given back. Use it only on the event loop.

    ``parts`` are where the workers of the service write how many they have taken, with this one's
    first: the limit is for all together. Bytes taken here are taken ``within`` another, too.
    """

    def __init__(
        self, limit: int, parts: Sequence[memoryview], *, within: "InflightBytes | None" = None
    ) -> None:
        self.limit = limit
        self._own, *self._others = (part.cast("q") for part in parts)
        self._own_taken = 0
        self._within = within

    @property
    def taken(self) -> int:
        taken = self._own_taken
        for other in self._others:
            taken += other[0]
        return taken

    @property
    def remaining(self) -> int:
        return self.limit - self.taken

    def take(self, size: int) -> bool:
        """Take ``size`` bytes if there is room for them. Returns whether there was."""
        # First taken, then compared: of two workers that do so at the same time, one sees both.
        self._add(size)
        if self.remaining < 0 or (self._within is not None and not self._within.take(size)):
            self._add(-size)
            return False
        return True

    def give(self, size: int) -> None:
        self._add(-size)
        if self._within is not None:
            self._within.give(size)

    def _add(self, size: int) -> None:
        self._own_taken += size
        self._own[0] = self._own_taken


class Waiting:
    """What waits for clients. What has waited longest gives way to a new one.

    Ordinary clients are done before many others come, so those that hold others up lose. ``least``
    may wait whatever their bytes are.
    """

    def __init__(self, most_bytes: int, least: int = 1) -> None:
        self._most_bytes, self._least = most_bytes, least
        self._bytes = 0
        # With its bytes, and with what gives it up. The oldest comes first.
        self._waiting: dict[object, tuple[int, Callable[[], object]]] = {}

    def add(self, one: object, size: int, give_up: Callable[[], object]) -> None:
        """Count one and its bytes until it is removed, or given up."""
        while self._bytes + size > self._most_bytes and len(self._waiting) >= self._least:
            self._give_up(next(iter(self._waiting)))
        self._waiting[one] = size, give_up
        self._bytes += size

    def remove(self, one: object) -> bool:
        """Count it no longer. Returns whether it was counted."""
        size, known = self._waiting.pop(one, (0, None))
        self._bytes -= size
        return known is not None

    def give_up_all(self) -> None:
        for one in [*self._waiting]:
            self._give_up(one)

    def _give_up(self, one: object) -> None:
        _, give_up = self._waiting[one]
        self.remove(one)
        give_up()


class Proxies:
    """The proxies of ``--trusted-proxies``, whose X-Forwarded-For is believed."""

    def __init__(self, trusted: Sequence[str]) -> None:
        self._all = "*" in trusted
        self._networks = [ipaddress.ip_network(one) for one in trusted if one != "*"]

    def client(self, peer: str, forwarded: Iterable[bytes]) -> str:
        """The address of the client behind ``peer``, by the header's lines in their order.

        Each proxy adds the address that it sees at the end. So the client is the last one that is
        no trusted proxy's; what is no address, a client has made up.
        """
        client = peer
        hops = b",".join(forwarded).decode("latin-1").split(",")
        while self._trusts(client) and hops and (address := _address(hops.pop())):
            client = address
        return client

    def _trusts(self, address: str) -> bool:
        if self._all:
            return True
        try:
            found = ipaddress.ip_address(address)
        except ValueError:  # of a connection that has none
            return False
        return any(found in network for network in self._networks)


def _address(hop: str) -> str:
    """The IP address of an entry of X-Forwarded-For, without its port; empty if it has none."""
    hop = hop.strip()
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    try:
        found = ipaddress.ip_address(hop.partition("%")[0])  # behind it may be any words
    except ValueError:
        return ""
    return str(getattr(found, "ipv4_mapped", None) or found)


def timeout_ms(asked: bytes) -> int:
    if not TIMEOUT_MS.fullmatch(asked):
        raise InvalidRequest(
            "x-request-timeout-ms must be a whole number of milliseconds, 1 or more"
        )
    return int(asked[:TIMEOUT_DIGITS])


def plain_address(host: str) -> str:
    """The address; an IPv4 address without the IPv6 prefix: 1.2.3.4, not ::ffff:1.2.3.4."""
    return host.removeprefix(IPV4_MAPPED) if "." in host else host


def _check_key(head: Head, digests: Sequence[bytes], kind: str) -> str:
    key_digest = hashlib.sha256(_key(head)).hexdigest()
    # All are compared, each in constant time, so that the time taken reveals nothing.
    known = [hmac.compare_digest(key_digest.encode(), accepted) for accepted in digests]
    if not any(known):
        raise Unauthorized(f"send one of the {kind}, as 'Authorization: Bearer KEY'")
    return key_digest


def _key(head: Head) -> bytes:
    """The key that a request has, empty if it has none; of AWS' clients, the id of their secret."""
    for name in KEY_HEADERS:
        if name in head.headers:
            return head.headers[name]
    scheme, _, rest = head.headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme == b"AWS4-HMAC-SHA256":  # Credential=ID/day/region/service/aws4_request, ...
        credential = rest.partition(b"Credential=")[2].partition(b",")[0]
        return credential.strip().rsplit(b"/", 4)[0]
    return unquote_to_bytes(found[1]) if (found := QUERY_KEY.search(head.query)) else b""


def _network(address: str) -> str:
    """What a client without a key counts for: an IPv4 address, or the network of an IPv6 one."""
    if ":" not in address:
        return address
    return str(ipaddress.ip_network((address.partition("%")[0], IPV6_NETWORK_BITS), False))
