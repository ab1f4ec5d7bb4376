"""Drives the core of a Kafka cursor in a simulated cluster: each request, response, lookup and failure is one step.

It does what KafkaCursor does, without greenlets, sockets and a clock.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any, NamedTuple, Protocol

from kafkasse.errors import KafkaUnavailable
from kafkasse.kafka import errors
from kafkasse.kafka.cursor_core import CursorCore, CursorLookup, CursorOptions, FindEpochs
from kafkasse.kafka.fetch_protocol import FetchOptions, FetchRequest, FetchResponse
from kafkasse.kafka.fetch_session import FetchSession
from tests.history.draws import Draws
from tests.history.simulated_cluster import NOT_LEADER, SESSION_NOT_FOUND, SimulatedCluster

MAX_LAG = 3  # changes of the metadata
TOPIC_ID_BYTES = 16


class World(Protocol):
    """The world of a cursor.

    Attributes:
        now: the time of the cursors.
        reached: how often the situations occurred that a world must contain.
    """

    draws: Draws
    cluster: SimulatedCluster
    now: float
    reached: Counter[str]

    def note(self, event: str) -> None:
        """Add an event, for people."""

    def report(self, violation: str) -> None:
        """Add a violation."""


class Connection(NamedTuple):
    """What is in flight between the core and one broker: a request, then its response.

    `names` are those of the partitions that the cursor reads from the broker when it sends the request.
    """

    session: FetchSession
    request: FetchRequest | None = None
    response: FetchResponse | None = None
    names: frozenset[tuple[bytes, int]] = frozenset()


class CursorDriver:
    """Executes the actions of a core, step by step.

    Attributes:
        core: the core.
        is_tail: the cursor is that of a tail.
    """

    def __init__(self, world: World, is_tail: bool) -> None:
        self.is_tail = is_tail
        self._world = world
        rack = "zone" if world.cluster.has_replicas else ""
        options = CursorOptions(FetchOptions(100, 1 << 20, 1 << 20, 0, rack), is_tail, 5.0, 1 << 20)
        self.core = CursorCore(world.cluster, options, errors, self)
        self._connections: dict[FetchSession, Connection] = {}
        self._lookup: CursorLookup | None = None
        self._answer: Any = None

    def info(self, text: str, *values: object) -> None:
        """Implements EventLog of the core."""
        self._world.note(text % values)

    error = info

    # Steps

    def act(self) -> None:
        """Start lookups and fetches, as KafkaCursor does if it has nothing to decode, or within a large response."""
        if self.core.undecoded and not self.is_tail:
            return
        if self._lookup is None:
            self._next_lookup()
        for session in self.core.fetches(self._world.now):
            self._connections[session] = Connection(session)  # not connected yet

    def _next_lookup(self) -> None:
        self._lookup, self._answer = self.core.next_lookup(self._world.now), None

    def _any_connection(self) -> Connection | None:
        return self._world.draws.choice([*self._connections.values()]) if self._connections else None

    def send(self) -> None:
        connection = self._any_connection()
        if connection is not None and connection.request is None:
            self._send(connection)

    def _send(self, connection: Connection) -> None:
        world = self._world
        request = self.core.request(world.now, connection.session, world.cluster.version)
        names = frozenset(position.request(request.version)[:2] for position in connection.session.positions)
        self._connections[connection.session] = connection._replace(request=request, names=names)

    def respond(self) -> None:
        """Let a broker respond, or the response arrive."""
        connection = self._any_connection()
        if connection is None or connection.request is None:
            return
        if connection.response is not None:
            self._receive(connection.session, connection.response)
            return
        response = self._response_to(connection, connection.request)
        if response.partitions or response.error_code or self._world.draws.chance(3):
            self._connections[connection.session] = connection._replace(response=response)

    def _response_to(self, connection: Connection, request: FetchRequest) -> FetchResponse:
        broker = self._world.cluster.brokers[connection.session.broker.node_id]
        response = broker.fetch(request)
        contents = broker.contents(response.session_id)
        if contents is not None and contents != connection.names:
            names = sorted(contents ^ connection.names)
            self._world.report(f"the session at broker {broker.broker.node_id} differs from the cursor in {names}")
        return response

    def _receive(self, session: FetchSession, response: FetchResponse) -> None:
        del self._connections[session]
        self._describe(session, response)
        self.core.on_response(self._world.now, session, response)

    def _describe(self, session: FetchSession, response: FetchResponse) -> None:
        reached = self._world.reached
        reached["session evicted"] += response.error_code == SESSION_NOT_FOUND
        for data in response.partitions:
            if data.error_code or data.diverging:
                what = f"diverged {data.diverging}" if data.diverging else f"error {data.error_code}"
                topic = data.topic.decode() if len(data.topic) < TOPIC_ID_BYTES else f"topic {data.topic[3]}"
                self._world.note(f"broker {session.broker.node_id} responds for {topic}/{data.partition}: {what}")
            reached["leader moved"] += data.error_code == NOT_LEADER
            reached["diverging"] += data.diverging is not None
            reached["replica"] += data.replica >= 0

    def disconnect(self) -> None:
        connection = self._any_connection()
        if connection is not None:
            self._disconnect(connection.session, retry_now=self._world.draws.chance(3))

    def _disconnect(self, session: FetchSession, retry_now: bool) -> None:
        del self._connections[session]
        self._world.note(f"the connection to broker {session.broker.node_id} breaks")
        self._world.reached["connection lost"] += 1
        self.core.connection_failed(self._world.now, session, retry_now)

    def look_up(self) -> None:
        """Let the cluster answer a lookup, or the answer arrive."""
        if self._lookup is None:
            return
        if self._answer is None:
            self._world.cluster.lag = self._world.draws.below(MAX_LAG)
            self._answer = self._lookup.ask(self._world.cluster)
        else:
            self._end_lookup(self._lookup)

    def _end_lookup(self, lookup: CursorLookup) -> None:
        self._world.reached["validated"] += isinstance(lookup, FindEpochs)
        self.core.end_lookup(self._world.now, lookup, self._answer)
        self._next_lookup()

    def fail_lookup(self) -> None:
        if self._lookup is not None:
            self._world.note(f"{type(self._lookup).__name__} fails")
            self.core.lookup_failed(self._world.now, self._lookup, KafkaUnavailable("no answer"))
            self._next_lookup()

    # Several steps without draws

    def send_all(self) -> None:
        """Start what the core wants, and send all requests."""
        self.act()
        for connection in [*self._connections.values()]:
            if connection.request is None:
                self._send(connection)

    def respond_all(self, waits_for_records: bool = True) -> None:
        """Let the brokers respond, if they have something or have waited long enough. The responses are still in flight."""
        for session, connection in [*self._connections.items()]:
            if connection.request is not None and connection.response is None:
                response = self._response_to(connection, connection.request)
                if response.partitions or response.error_code or not waits_for_records:
                    self._connections[session] = connection._replace(response=response)

    def receive_all(self) -> bool:
        """Let all responses arrive. Return whether there were any."""
        responses = [(session, at.response) for session, at in self._connections.items() if at.response is not None]
        for session, response in responses:
            self._receive(session, response)
        return bool(responses)

    def disconnect_all(self) -> None:
        """Break all connections."""
        for session in [*self._connections]:
            self._disconnect(session, retry_now=False)

    def look_up_all(self, lag: int) -> bool:
        """Complete all lookups, with metadata that is `lag` changes old. Return whether there were any."""
        lookup = self._lookup
        self._world.cluster.lag = lag
        while self._lookup is not None:
            self._answer = self._lookup.ask(self._world.cluster) if self._answer is None else self._answer
            self._end_lookup(self._lookup)
        return lookup is not None

    def run_all(self) -> bool:
        """Let everything that is in flight arrive, and nothing fail. Return whether anything has arrived."""
        self.respond_all(waits_for_records=False)  # a request does not contain partitions that were added since
        self.receive_all()
        self.act()
        if self._lookup is None and self.core.wake_at < inf:
            self._world.now = max(self._world.now, self.core.wake_at)
            self.act()
        has_looked_up = self.look_up_all(lag=0)
        self.send_all()
        self.respond_all()
        has_received = self.receive_all()
        while self.core.undecoded:
            self.core.decode_run()
        return has_looked_up or has_received
