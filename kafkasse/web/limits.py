"""Limits on the number of open streams: of a worker, and of one client address. Knows addresses, and no Kafka."""

from __future__ import annotations

from collections.abc import Callable

from flask import Request

from kafkasse.errors import ServerFull, TooManyStreams


class StreamLimits:
    """Counts the open streams of one blueprint in one process.

    Args:
        max_streams: of all clients.
        max_per_client: of one client address.
        trusted_proxies: how many of your own proxies are in front of this server, each of which appends an address to
            X-Forwarded-For. With 0 the header is ignored, because any client can set it.
    """

    def __init__(self, max_streams: int, max_per_client: int, trusted_proxies: int) -> None:
        self._max_streams = max_streams
        self._max_per_client = max_per_client
        self._trusted_proxies = trusted_proxies
        self._open: dict[str, int] = {}  # by client address
        self._count = 0

    def enter(self, request: Request) -> Callable[[], None]:
        """Count a new stream. Returns a function that removes it from the count; later calls of it do nothing.

        Raises:
            ServerFull: this worker has `max_streams` streams.
            TooManyStreams: this client has `max_per_client` streams.
        """
        client = self.client(request)
        if self._count >= self._max_streams:
            raise ServerFull(f"This server has too many streams (max_streams={self._max_streams}). Retry later.")
        if self._open.get(client, 0) >= self._max_per_client:
            raise TooManyStreams(
                f"You have too many open streams (max_streams_per_client={self._max_per_client}). Close one, then retry."
            )
        self._open[client] = self._open.get(client, 0) + 1
        self._count += 1
        counted = [client]

        def leave() -> None:
            if counted:
                self._leave(counted.pop())

        return leave

    def _leave(self, client: str) -> None:
        self._count -= 1
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]

    def client(self, request: Request) -> str:
        """Return the client's address: the peer's, or the one that the outermost trusted proxy saw."""
        forwarded = [each.strip() for each in request.headers.get("X-Forwarded-For", "").split(",") if each.strip()]
        if self._trusted_proxies and len(forwarded) >= self._trusted_proxies:
            return forwarded[-self._trusted_proxies]
        return request.remote_addr or ""
