"""The same checker on feeds in this process, where a seed decides the order of all steps.

Some faults need an order of steps that no black-box test can force, such as an eviction while a cursor is being closed. Here
the log is in memory and the test advances the tail itself. The bytes that readers return are those that a client receives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kafkasse.config import Config
from kafkasse.errors import KafkasseError
from kafkasse.feed import Feeds
from kafkasse.feed.reader import ReaderState
from kafkasse.feed.tail import Tail
from kafkasse.frame import Encoder
from kafkasse.log import Partition as LogPartition
from kafkasse.memory_log import MemoryCursor, MemoryLog
from kafkasse.position import of_topics, parse
from kafkasse.route import Route
from tests.history.checker import Bounds, Connection, History, StoredRecord, last_id, violations
from tests.history.payloads import is_json
from tests.history.wire import Partition
from tests.support.turns import turn

TOPIC = "t"
PARTITIONS = 3
HIDDEN = 3  # the filter drops one record in three
TURNS_TO_THE_END = PARTITIONS + 1  # a client that starts at the end starts at the tail
MAX_SETTLING_READS = 400


class BusyCursor(MemoryCursor):
    """Other greenlets run while this cursor closes, as they do while a Kafka cursor closes."""

    def close(self) -> None:
        super().close()
        self._log.while_closing()


class BusyLog(MemoryLog):
    """A log that runs `while_closing` whenever a cursor closes."""

    while_closing: Callable[[], None] = staticmethod(lambda: None)

    def cursor(self, offsets: Any, **options: Any) -> MemoryCursor:
        return BusyCursor(self, offsets)


def _is_shown(message: Any) -> bool:
    return bool(message.get("n", 1) % HIDDEN)


def _keeps(stored: StoredRecord) -> bool:
    value = stored.value
    return value is None or (is_json(value) and bool(int(value[5:-1].split(b",")[0]) % HIDDEN))


class Client:
    """One client: what it received over the open connection, and its earlier connections."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.body = b""
        self.sent_id: str | None = None
        self.reader: Any = None
        self._began = 0
        self._arrivals: list[tuple[int, float]] = []

    def connect(self, reader: Any, now: int) -> None:
        """Begin a connection."""
        self.reader, self._began = reader, now
        self.receive(reader.begin(), now)

    def receive(self, data: bytes, now: int) -> None:
        """Receive bytes at the time `now`."""
        self.body += data
        self._arrivals.append((len(self.body), now))

    def disconnect(self, received: int | None = None) -> None:
        """End the connection after its first `received` bytes."""
        what = self.sent_id, 200, self.body[:received], True, self._began, self._arrivals
        self.connections.append(Connection(*what))
        self.sent_id, self.body, self._arrivals = last_id(self.body[:received], self.sent_id), b"", []


class Simulation:
    """A log, a feed and clients. One seed decides every step.

    Args:
        seed: the seed of all random choices.
        filtered, sparse: the settings of the clients' route.
        drops: whether retention removes records.
        late_reconnects: whether clients may reconnect after retention removed the records they need next.
    """

    def __init__(
        self, seed: int, filtered: bool, sparse: bool, drops: bool = True, late_reconnects: bool = False
    ) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self.filtered, self.sparse, self.drops, self.late_reconnects = filtered, sparse, drops, late_reconnects
        self.log = BusyLog()
        self.log.create(TOPIC, PARTITIONS)
        self.log.while_closing = self._run_others
        self.stored: list[StoredRecord] = []
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self.firsts = dict.fromkeys(range(PARTITIONS), 0)
        self.clients: list[Client] = []
        self.now = 0  # the number of the step
        self._bounds: dict[Partition, list[Bounds]] = {(TOPIC, each): [] for each in range(PARTITIONS)}
        self._tails: list[Tail] = []
        ring = self.rng.choice([1, 3, 8])
        config = Config(max_ring_records=ring, metadata_refresh_s=300, idle_feed_timeout_s=3600, max_chunk_bytes=1024)
        self._feeds = Feeds(self.log, config.feed, self._tails.append)
        self._route = Route("topics", "/{topics}", None)
        self._encoder = Encoder(filterer=_is_shown if filtered else None, sparse_ids=sparse)

    def play(self, steps: int) -> list[str]:
        """Run this many random steps, then let every client read to the end. Return the violations."""
        moves = [self.append, self.append, self.append, self.mark, self.turn, self.turn, self.open]
        moves += [self.read, self.read, self.read, self.cut, self.cut_at_any_byte, self.heartbeat, self.drop]
        for _ in range(steps):
            self._tick()
            self.rng.choice(moves)()
        self.settle()
        histories = [self._history(number, client) for number, client in enumerate(self.clients)]
        reached = {(TOPIC, partition): end for partition, end in self.ends.items()}
        return violations(histories, self.stored, reached=reached, bounds=self._bounds)

    def _tick(self) -> None:
        """Begin the next step. During a step, writers may append, but nothing is removed."""
        self.now += 1
        for (_, partition), bounds in self._bounds.items():
            held = self.log.offset_ranges([LogPartition(TOPIC, partition)])[LogPartition(TOPIC, partition)]
            bounds.append(Bounds(self.now, self.now, held.start, held.end))

    @property
    def gaps(self) -> int:
        """The number of gaps that clients have received."""
        return sum(each.body.count(b"event: gap\n") for client in self.clients for each in client.connections)

    # Steps.

    def append(self) -> None:
        partition, number = self.rng.randrange(PARTITIONS), len(self.stored)
        value = None if number % 7 == 6 else b'{"n":%d,"price":25.00}' % number
        key = b"k%d" % number
        offset = self.log.append(TOPIC, value, partition, key, timestamp=1000 + number)
        self.stored.append(StoredRecord(TOPIC, partition, offset, 1000 + number, key, value))
        self.ends[partition] = offset + 1

    def mark(self) -> None:
        self.log.append_marker(TOPIC, self.rng.randrange(PARTITIONS))

    def drop(self) -> None:
        """Remove the oldest records of a partition, as retention does; rarely."""
        partition = self.rng.randrange(PARTITIONS)
        if self.drops and self.rng.random() < 0.2 and self.ends[partition]:
            first = self.rng.randrange(self.firsts[partition], self.ends[partition] + 1)
            self.log.drop_before(TOPIC, first, partition)
            self.firsts[partition] = first

    def turn(self) -> None:
        for tail in self._tails:
            turn(tail)

    def open(self) -> None:
        if len(self.clients) < 6:
            for _ in range(TURNS_TO_THE_END):
                self.turn()
            self.clients.append(Client())
            self._connect(self.clients[-1])

    def read(self) -> None:
        for client in self._some():
            client.receive(client.reader.read(0), self.now)

    def heartbeat(self) -> None:
        for client in self._some():
            client.receive(client.reader.id_if_moved(), self.now)

    def cut(self) -> None:
        for client in self._some():
            self._reconnect(client, None)

    def cut_at_any_byte(self) -> None:
        for client in self._some():
            self._reconnect(client, self.rng.randrange(len(client.body) + 1))

    def settle(self) -> None:
        """Let every client read until there is nothing more."""
        self.log.while_closing = lambda: None  # otherwise new records would never stop
        for _ in range(4):
            self._tick()
            self.turn()
            for client in self.clients:
                self._read_all(client)
        for client in self.clients:
            client.disconnect()

    def _read_all(self, client: Client) -> None:
        for _ in range(MAX_SETTLING_READS):
            before = client.body
            try:
                client.receive(client.reader.read(0), self.now)
            except KafkasseError:
                return
            if client.body == before and client.reader.state is ReaderState.LIVE:
                return

    def _run_others(self) -> None:
        """Run the steps that other greenlets may take while this one waits."""
        for _ in range(self.rng.randrange(6)):
            self.append()
        self.turn()

    def _some(self) -> list[Client]:
        return [self.rng.choice(self.clients)] if self.clients else []

    def _reconnect(self, client: Client, received: int | None) -> None:
        kept = last_id(client.body[:received], client.sent_id)
        starts = parse(kept).starts if kept else {}
        late = any((start.offset or 0) < self.firsts[partition.partition] for partition, start in starts.items())
        if kept and (self.late_reconnects or not late):
            client.reader.close()
            client.disconnect(received)
            self._connect(client)

    def _connect(self, client: Client) -> None:
        position = parse(client.sent_id) if client.sent_id else of_topics([TOPIC])
        reader = self._feeds.open(self._route, position, self.log.describe([TOPIC]), self._encoder)
        client.connect(reader, self.now)

    def _history(self, number: int, client: Client) -> History:
        keeps = {"keeps": _keeps} if self.filtered else {}
        every = "run" if self.sparse else "event"
        return History(f"client {number}", [TOPIC], client.connections, id_frequency=every, **keeps)
