"""Opens connections for Fetch requests and keeps a few idle ones, so that the next cursor starts without a handshake."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from kafkasse.kafka.client import Client, unsupported_fetch
from kafkasse.kafka.connection import Connection
from kafkasse.kafka.fetch_protocol import FIRST_WITH_DIVERGENCE, Broker, newest_version

MAX_IDLE_PER_BROKER = 4


class ConnectionPool:
    """The connections of one log to all brokers.

    Args:
        client: opens the sockets.
        timeout_s: how long a broker may take to accept a request.
    """

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._idle: defaultdict[Broker, list[Connection]] = defaultdict(list)
        self._versions: dict[Broker, int] = {}  # of the last connection to each broker
        self._closed = False

    def reports_truncation(self, broker: Broker) -> bool:
        """Return whether a broker's Fetch responses report a truncated log, as far as is known. Does not block."""
        version = self._versions.get(broker, self._client.newest_fetch_version)
        return version >= FIRST_WITH_DIVERGENCE

    def take_idle(self, broker: Broker) -> Connection | None:
        """Return an idle connection, or None. Does not block."""
        return self._idle[broker].pop() if self._idle[broker] else None

    def take(self, broker: Broker) -> Connection:
        """Return an idle connection, or open a new one. Raise KafkaError or OSError if that fails."""
        if (idle := self.take_idle(broker)) is not None:
            return idle
        sock, versions = self._client.connect(broker)
        version = newest_version(*versions)
        if version is None:
            sock.close()
            raise unsupported_fetch(versions)
        self._versions[broker] = version
        return Connection(sock, broker, version, self._client.client_id, self._timeout_s)

    def release(self, connection: Connection) -> None:
        """Keep a connection for the next caller, or close it if it is unusable or the pool is full."""
        idle = self._idle[connection.broker]
        unusable = connection.broken or connection.in_flight is not None
        if self._closed or unusable or len(idle) >= MAX_IDLE_PER_BROKER:
            connection.close()
        else:
            connection.suspend()
            idle.append(connection)

    def close_idle(self, broker: Broker) -> None:
        """Close this broker's idle connections. If one of them is dead, the others probably are too."""
        for connection in self._idle.pop(broker, []):
            connection.close()

    def idle(self) -> Iterator[Connection]:
        """Iterate over the idle connections to all brokers."""
        for connections in self._idle.values():
            yield from connections

    def close(self) -> None:
        """Close the idle connections. Connections that are released later are closed too."""
        self._closed = True
        for broker in list(self._idle):
            self.close_idle(broker)
