"""How many streams a worker, and one client of it, may have open. Knows addresses, and no Kafka."""

from __future__ import annotations

from collections.abc import Callable

from flask import Request

from kafkasse.errors import ServerFull, TooManyStreams


class StreamLimits:
    """Counts open streams; one for each blueprint and process.

    Args:
        max_streams: of this worker.
        per_client_max: of one client address.
        trusted_proxies: how many proxies of ours stand in front, each adding an address to X-Forwarded-For. With 0 the
            header is not read: anybody may write anything into it.
    """

    def __init__(self, max_streams: int, per_client_max: int, trusted_proxies: int) -> None:
        self._max_streams = max_streams
        self._per_client_max = per_client_max
        self._trusted_proxies = trusted_proxies
        self._open: dict[str, int] = {}  # of each client that has any
        self._count = 0

    def enter(self, request: Request) -> Callable[[], None]:
        """Count a stream in. Returns what counts it out again, once.

        Raises:
            ServerFull, TooManyStreams: with Retry-After.
        """
        client = self.client(request)
        if self._count >= self._max_streams:
            raise ServerFull(f"This server has the {self._max_streams} streams that it may have. Try again later.")
        if self._open.get(client, 0) >= self._per_client_max:
            raise TooManyStreams(f"You have {self._per_client_max} streams open, the most that one client may have.")
        self._open[client] = self._open.get(client, 0) + 1
        self._count += 1
        inside = [client]

        def leave() -> None:
            if inside:
                self._leave(inside.pop())

        return leave

    def _leave(self, client: str) -> None:
        self._count -= 1
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]

    def client(self, request: Request) -> str:
        """The address that counts: the peer's, or the one that the outermost of our own proxies saw."""
        hops = [each.strip() for each in request.headers.get("X-Forwarded-For", "").split(",") if each.strip()]
        if self._trusted_proxies and len(hops) >= self._trusted_proxies:
            return hops[-self._trusted_proxies]
        return request.remote_addr or ""
