"""Limits the number of open streams per process and per client address. Does not depend on feeds or Kafka."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv6Network, ip_address, ip_network

from kafkasse.errors import ServerFull, TooManyStreams

# The last addresses of X-Forwarded-For that are read. Parsing one takes 20 µs, and a header may have 64 KiB.
MAX_FORWARDED = 20
IPV6_SUBSCRIBER_BITS = 64

# Proxies write an address with or without its port. Some write an IPv6 address in brackets, with its zone, or in quotes.
_ADDRESS = re.compile(
    r'(?P<quote>"?)'
    r"(?:\[(?P<bracketed>[0-9A-Fa-f:.]+)(?:%[\w.:@-]+)?\](?::\d+)?|(?P<ipv4>[0-9.]+)(?::\d+)?|"
    r"(?P<ipv6>[0-9A-Fa-f:.]+)(?:%[\w.:@-]+)?)"
    r"(?P=quote)"
)


class StreamLimits:
    """Counts the open streams of one blueprint, or of one of its routes, in one process. Clients are those of subscriber().

    Args:
        whole: the limits of the blueprint, if these are the limits of a route. They count the same streams.
    """

    def __init__(self, max_streams: int, max_per_client: int, whole: StreamLimits | None = None) -> None:
        self._max_streams = max_streams
        self._max_per_client = max_per_client
        self._whole = whole
        self._open: dict[str, int] = {}  # by client
        self.count = 0

    def enter(self, client: str) -> None:
        """Count a new stream of a client.

        Raises:
            ServerFull: this worker has `max_streams` streams.
            TooManyStreams: this client has `max_per_client` streams.
        """
        if self._whole is not None:
            self._whole.check(client)
        self.check(client, "This route")
        self.add(client, 1)

    def leave(self, client: str) -> None:
        """Undo one call of enter()."""
        self.add(client, -1)

    def check(self, client: str, scope: str = "This server") -> None:
        """Raise an error if the client may not open another stream; see enter()."""
        if self.count >= self._max_streams:
            raise ServerFull(f"{scope} has too many streams (max_streams={self._max_streams}). Retry later.")
        if self._open.get(client, 0) >= self._max_per_client:
            raise TooManyStreams(
                f"You have too many open streams (max_streams_per_client={self._max_per_client}). Close one, then retry."
            )

    def add(self, client: str, number: int) -> None:
        """Count streams here and in the blueprint, without checking the limits."""
        if self._whole is not None:
            self._whole.add(client, number)
        self.count += number
        self._open[client] = self._open.get(client, 0) + number
        if not self._open[client]:
            del self._open[client]


class TrustedProxies:
    """Finds the address of a client behind your own proxies.

    Args:
        proxies: the number of your proxies in front of this server, or their networks. Each proxy appends an address to
            X-Forwarded-For. If it is 0, the header is ignored, because any client can set it.
    """

    def __init__(self, proxies: int | Sequence[str] = 0) -> None:
        self._count = proxies if isinstance(proxies, int) else 0
        self._networks = [] if isinstance(proxies, int) else [ip_network(text) for text in proxies]

    def client(self, peer: str, forwarded_for: str) -> str:
        """Return the client's address: the address of the peer, or the one that the outermost trusted proxy recorded.

        If a proxy recorded no valid address, return the peer's address; with trusted networks, that proxy's own address.

        Args:
            peer: the address of the connection; "" for a Unix socket.
            forwarded_for: the header X-Forwarded-For; "" if there is none.
        """
        peer = _canonical_peer(peer) or peer
        forwarded = _addresses(forwarded_for)
        if self._count and len(forwarded) >= self._count:
            return _canonical(forwarded[-self._count]) or peer
        while self._networks and forwarded and self._is_trusted(peer):
            recorded = _canonical(forwarded.pop())
            if recorded is None:
                break
            peer = recorded
        return peer

    def forwarded(self, peer: str, forwarded_for: str) -> bool:
        """Return whether the proxies have forwarded a request. See client() for the arguments."""
        if self._count:
            return len(_addresses(forwarded_for)) >= self._count
        return bool(self._networks) and self._is_trusted(_canonical_peer(peer) or peer)

    def _is_trusted(self, address: str) -> bool:
        # The peer at a Unix socket has no IP address. The permissions of the socket restrict who can connect.
        return _canonical(address) is None or any(ip_address(address) in network for network in self._networks)


def _addresses(forwarded_for: str) -> list[str]:
    return [address.strip() for address in forwarded_for.rsplit(",", MAX_FORWARDED)[-MAX_FORWARDED:] if address.strip()]


def _canonical(text: str) -> str | None:
    """Return the canonical spelling of an address, such as `::1` for `"[0:0::1]:80"`, or None if the text is no address."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    try:
        address = ip_address(match["bracketed"] or match["ipv4"] or match["ipv6"])
    except ValueError:
        return None
    return str(getattr(address, "ipv4_mapped", None) or address)


@lru_cache(maxsize=1024)
def subscriber(address: str) -> str:
    """Return what the limits count as one client: an IPv4 address, or the /64 network of an IPv6 address.

    A subscriber with IPv6 has at least 2^64 addresses.
    """
    try:
        parsed = ip_address(address)
    except ValueError:  # "" at a Unix socket
        return address
    return address if parsed.version == 4 else str(IPv6Network((int(parsed), IPV6_SUBSCRIBER_BITS), strict=False))


# Cached only for peers: headers may be 64 KiB long and would fill the cache.
_canonical_peer = lru_cache(maxsize=1024)(_canonical)
