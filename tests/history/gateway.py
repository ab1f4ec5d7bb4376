"""Clients with tokens that expire soon, on real servers with guards and a real Kafka. The configuration may be reloaded.

This module knows kafkasse only by its settings and over sockets.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import gevent
import jwt
from gevent.event import Event

from tests.history.checker import History, StoredRecord, last_id
from tests.history.cluster import Writer
from tests.history.recorder import Recorder
from tests.history.scenario import (
    END,
    MAX_BODY_BYTES,
    PATIENCE_S,
    TIMEOUT_S,
    BlackBox,
    Outcome,
    follow,
    kept_part,
    times_applied,
    value,
)
from tests.support.issuer import SECRET, SETTINGS, payload
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import wait_until

LIFETIME_S = 2  # of a token; a token contains whole seconds, so it may be a second less
MAX_OVERSTAY_S = 6.0  # of a stream whose token has expired; generous, because all clients and servers share the cores
WRITE_INTERVAL_S = 0.02
CUTS = 3  # of each client's connections
MAX_REFUSED = 3  # connections in a row, while a worker is replaced or a busy Kafka is slow
PARTITIONS = 2
KEYS = [b"ada", b"ada", b"bob", b"carol", None, b"\xff"]


class Visitor(NamedTuple):
    """A client: its claim `sub`, and the route that it reads."""

    sub: str
    route: str


VISITORS = [
    Visitor("ada", "mine"),
    Visitor("ada", "mine"),
    Visitor("bob", "mine"),
    Visitor("ada", "live"),
    Visitor("carol", "live"),
    Visitor("ada", "matching"),
]


class Gateway(BlackBox):
    """Topics, servers, visitors and a writer. Close it at the end.

    A personal route contains one topic, and after reload() another one too. A route with a pattern contains both, and a
    third one that is created while clients read.

    Attributes:
        expiries: how many streams ended because their token expired.
    """

    def __init__(self, cluster: Cluster, name: str, directory: Path, seed: int) -> None:
        self.topic = cluster.create(f"{name}-first", PARTITIONS)
        self.added = cluster.create(f"{name}-added")
        self.created = f"{name}-created"
        super().__init__(cluster, directory, seed, [self.topic, self.added])
        self.expiries = 0
        self._reloads = 0
        self._pattern = f"{name}-*"
        (directory / "secret").write_bytes(SECRET)
        self._set_topics([self.topic])

    def _set_topics(self, topics: list[str]) -> None:
        guard = {**SETTINGS, "algorithms": ["HS256"], "secret_file": str(self._directory / "secret"), "leeway_s": 0}
        own = {"key": ["{claims.sub}", END.decode()]}
        routes: dict[str, dict[str, Any]] = {
            "mine": {"topics": topics, "start": "earliest", "where": own},
            "live": {"topics": [self.topic], "where": own},
            "matching": {"topics": [self._pattern], "start": "earliest"},
        }
        guarded = {name: {"path": f"/{name}", "access": ["customers"], **more} for name, more in routes.items()}
        self.configure(guards={"customers": {"jwt": guard}}, routes=guarded)

    # Steps.

    def write(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with closing(Writer(self._cluster.bootstrap_servers)) as writer:
            while time.monotonic() < until:
                for topic in self._topics:
                    self._send(writer, topic, self._rng.choice(KEYS))
                writer.flush()
                gevent.sleep(WRITE_INTERVAL_S)
            self._acknowledged += writer.acknowledged

    def _send(self, writer: Writer, topic: str, key: bytes | None) -> None:
        partition = self._rng.randrange(self._partitions(topic))
        writer.send(topic, partition, value(next(self._numbers), self._rng), key)

    def _partitions(self, topic: str) -> int:
        return PARTITIONS if topic == self.topic else 1

    def create(self) -> None:
        """Create another topic that matches the pattern, and write to it from now on."""
        self._cluster.create(self.created)
        self._topics.append(self.created)
        self._watch.topics.append(self.created)

    def reload(self, server: Server) -> None:
        """Add a topic to the personal route, and wait until the workers are new."""
        self._set_topics([self.topic, self.added])
        before = set(server.workers())
        server.reload()
        wait_until(lambda: len(server.workers()) == 1 and not before & set(server.workers()))
        self._reloads += 1

    def end(self) -> None:
        with closing(Writer(self._cluster.bootstrap_servers)) as writer:
            for topic in self._topics:
                for partition in range(self._partitions(topic)):
                    writer.send(topic, partition, self._end_mark(topic, partition), END)
            writer.flush()
            self._acknowledged += writer.acknowledged
        self._written_at = time.monotonic()

    def _end_mark(self, topic: str, partition: int) -> bytes:
        """Return the value of the last record of a partition."""
        return b'{"end":"%b/%d","of":%d}' % (topic.encode(), partition, self._ends)

    # Clients.

    def _client(self, server: Server, visitor: Visitor, number: int, is_patient: bool, began: Event) -> History:
        """Run one client until it has received the last records. An impatient client gives up after PATIENCE_S."""
        recorder = Recorder(
            lambda: ("127.0.0.1", server.port), f"/plain/{visitor.route}", token=lambda: _token(visitor)
        )
        received: set[bytes] = set()

        def enough(recorder: Recorder) -> bool:
            body = bytes(recorder.body or (recorder.connections[-1].body if recorder.connections else b""))
            if last_id(body, recorder.last_id) is not None:
                began.set()
            is_over = time.monotonic() > self._written_at + PATIENCE_S or len(body) > MAX_BODY_BYTES
            if is_over and not is_patient:
                return True
            marks = {self._end_mark(*partition) for partition in self._contents(visitor)}
            received.update(mark for mark in marks if mark[:-1] in kept_part(body))
            return self._written_at < inf and received >= marks

        follow(recorder, enough, CUTS, random.Random(f"{self._seed} {number}"))  # noqa: S311 - reproducible, not secret
        return History(
            f"{visitor.sub} {number} of {visitor.route}",
            sorted({topic for topic, _ in self._contents(visitor)}),
            recorder.connections,
            keeps=_keeps(visitor),
            start="latest" if visitor.route == "live" else "earliest",
            statuses=frozenset({503}),
            max_refused=MAX_REFUSED,
            max_ended=self._reloads,
        )

    def _contents(self, visitor: Visitor) -> list[tuple[str, int]]:
        topics = {"live": [self.topic], "matching": self._topics, "mine": self._topics[: 1 + bool(self._reloads)]}
        return [(topic, partition) for topic in topics[visitor.route] for partition in range(self._partitions(topic))]

    # The whole test.

    def play(self, mutants: Sequence[str], actions: Callable[[list[Server]], None]) -> dict[str, Outcome]:
        """Run all visitors on a server for each mutant, during `actions`. Return the outcome of each mutant."""
        self._ends += 1
        self._written_at = inf
        with self.servers(mutants) as servers:
            of = dict(zip(mutants, servers, strict=True))
            began: dict[str, list[Event]] = {mutant: [Event() for _ in VISITORS] for mutant in mutants}
            clients = {
                mutant: [
                    gevent.spawn(self._client, of[mutant], visitor, number, not mutant, began[mutant][number])
                    for number, visitor in enumerate(VISITORS)
                ]
                for mutant in mutants
            }
            for mutant in mutants:
                gevent.wait(began[mutant], timeout=PATIENCE_S if mutant else TIMEOUT_S)
            actions(servers)
            self.end()
            histories = {mutant: [client.get() for client in some] for mutant, some in clients.items()}
            applied = {mutant: times_applied(of[mutant]).get(mutant, 0) for mutant in mutants}
        connections = [
            connection for some in histories.values() for history in some for connection in history.connections
        ]
        self.expiries = sum(
            connection.status == 200 and not connection.cut and connection.has_expired for connection in connections
        )
        self._watch.now()
        reached = self._witness.read()
        limits = {"max_overstay_s": MAX_OVERSTAY_S}
        violations = {mutant: self.violations(histories[mutant], reached, **limits) for mutant in mutants}
        return {mutant: Outcome(violations[mutant], applied[mutant]) for mutant in mutants}


def _token(visitor: Visitor) -> tuple[str, float]:
    """Return a token that expires soon, and when it expires."""
    expires_at = int(time.time()) + LIFETIME_S
    token = jwt.encode(payload(sub=visitor.sub, exp=expires_at), SECRET, "HS256")
    return token, time.monotonic() + expires_at - time.time()


def _keeps(visitor: Visitor) -> Callable[[StoredRecord], bool]:
    if visitor.route == "matching":
        return lambda stored: True
    return lambda stored: stored.key in (visitor.sub.encode(), END)
