"""A simulation of a server with three routes and an archive, that combines what happens in the other simulations.

Streams follow a pattern of topics, streams of a table begin with a snapshot, and finite reads share a cache. Each client
selects all records, those of a visitor, or those that a filter matches. Streams of the table have no filters, which could
hide the newest record of a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gevent

from kafkasse.feed.snapshot import Snapshot
from kafkasse.records.position import Position, of_topics
from kafkasse.route import Route, StartAt
from tests.history.archive_simulation import ArchiveSimulation
from tests.history.checker import History
from tests.history.draws import Draws
from tests.history.finite_simulation import FiniteClient, FiniteReads
from tests.history.interleaved import ChangingInterleaved
from tests.history.simulation import MAX_CLIENTS, TOPIC, Choice, Client
from tests.history.visitors import EVERYTHING, FILTERS, KEYS, VISITORS, SnapshotSimulation
from tests.history.wire import Partition

TABLE = "table"
FIRST_PARTITIONS = 2  # of the table
TABLE_ROUTE = Route("table", "/table", None, start=StartAt.SNAPSHOT)
STREAM, FINITE = "stream", "finite"
CLIENTS = STREAM, STREAM, TABLE, FINITE
FILTERED = b"k0", b"k12", b"k15"  # keys that filters select


class Everything(ChangingInterleaved, ArchiveSimulation, FiniteReads, SnapshotSimulation):
    """A simulation in which the table loses no records to retention: the checker expects the newest record of each key."""

    def __init__(self, draws: Draws) -> None:
        self._opened: list[tuple[str, Choice]] = []  # the type of each client, and what it selects
        super().__init__(draws, hooked=draws.chance(5), drops=True)
        self._feeds._slots._count = MAX_CLIENTS + 1  # a finite read would wait in real time
        self.log.while_closing = self._run_others
        self.create(TABLE, FIRST_PARTITIONS)

    # Only one greenlet makes moves. While the greenlet of a snapshot reads, the others wait.

    def let_others_run(self, urgent: bool = False) -> None:
        if not self._is_in_snapshot:
            super().let_others_run(urgent)

    def _run_others(self) -> None:
        if not self._is_in_snapshot:
            super()._run_others()

    @property
    def _is_in_snapshot(self) -> bool:
        run = getattr(gevent.getcurrent(), "_run", None)
        return isinstance(getattr(run, "__self__", None), Snapshot)

    # Clients.

    def open(self) -> None:
        if len(self.clients) < MAX_CLIENTS:
            kind = self.draws.choice(CLIENTS)
            choices = [EVERYTHING, *VISITORS] if kind == TABLE else [*FILTERS, *VISITORS]
            self._opened.append((kind, self.draws.choice(choices)))
            if self._opened[-1][0] == FINITE:
                self.open_finite()
            else:
                super().open()

    def connect(self, client: Client) -> None:
        if not isinstance(client, FiniteClient):
            super().connect(client)

    def _choice(self, client: Client) -> Choice:
        return self._opened[self.clients.index(client)][1]

    def _is_table(self, client: Client) -> bool:
        return self._opened[self.clients.index(client)][0] == TABLE

    def _route_of(self, client: Client) -> Route:
        return TABLE_ROUTE if self._is_table(client) else self._route

    def _start_of(self, client: Client) -> Position:
        return of_topics([TABLE]) if self._is_table(client) else self._start

    def _clients_of(self, topic: str) -> list[Any]:
        return [client for client in super()._clients_of(topic) if self._is_table(client) == (topic == TABLE)]

    def _history(self, number: int, client: Client) -> History:
        is_finite = isinstance(client, FiniteClient)
        history = FiniteReads._history(self, number, client) if is_finite else super()._history(number, client)
        topics: Sequence[str] = [name for name in history.topics if (name == TABLE) == self._is_table(client)]
        return replace(history, topics=topics)

    # The table.

    def _key(self, number: int) -> bytes | None:
        return self.draws.choice([*KEYS, *FILTERED])

    def _partition_of(self, key: bytes | None) -> Partition:
        """Choose any partition, but in the table always the same one for a key."""
        topic, at = self._any_partition()
        of_key = TABLE, len(key or b"") % (FIRST_PARTITIONS + 1)
        return (topic, at) if topic != TABLE else of_key if of_key in self.ends else (TOPIC, 0)

    def _remember(self, topic: str) -> None:
        # With an outdated description, a client may receive the snapshot of a table that was deleted.
        if topic != TABLE:
            super()._remember(topic)

    def drop_before(self, partition: Partition, first: int) -> None:
        if partition[0] != TABLE:
            super().drop_before(partition, first)
