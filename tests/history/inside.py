"""The same checker on feeds inside of this process, where a seed can put any step between any two others.

Some faults need an order of things that no black box can bring about: an eviction while a cursor is given back. Here the
log is in memory and the tail is turned by hand; what readers return are the bytes that a client gets.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kafkasse.config import Config
from kafkasse.errors import KafkasseError
from kafkasse.feed import Feeds
from kafkasse.feed.tail import Tail
from kafkasse.frame import Encoder
from kafkasse.memory_log import MemoryCursor, MemoryLog
from kafkasse.position import of_topics, parse
from kafkasse.route import Route
from tests.history.checker import Attempt, History, Written, complaints, last_id
from tests.history.payloads import is_json

TOPIC = "t"
PARTITIONS = 3
HIDDEN = 3  # one record in so many does not pass the filter
SETTLING_READS_MAX = 400


class BusyCursor(MemoryCursor):
    """Closing one of Kafka's lets other greenlets run."""

    def close(self) -> None:
        super().close()
        self._log.while_closing()


class BusyLog(MemoryLog):
    """A log whose cursors let others run while they close."""

    while_closing: Callable[[], None] = staticmethod(lambda: None)

    def cursor(self, offsets: Any, tail: bool = False, shared: bool = False) -> MemoryCursor:
        return BusyCursor(self, offsets)


def _is_shown(message: Any) -> bool:
    return bool(message.get("n", 1) % HIDDEN)


def _keeps(written: Written) -> bool:
    value = written.value
    return value is None or (is_json(value) and bool(int(value[5:-1].split(b",")[0]) % HIDDEN))


class Client:
    """One client: what it had over the connection that is open, and over those before."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.body = b""
        self.sent_id: str | None = None
        self.reader: Any = None

    def over(self, had: int | None = None) -> None:
        """The connection broke after the first `had` bytes."""
        self.attempts.append(Attempt(self.sent_id, 200, self.body[:had]))
        self.sent_id, self.body = last_id(self.body[:had], self.sent_id), b""


class World:
    """A log, a feed over it, and clients, all moved by chance from one seed.

    Args:
        seed: decides everything that chance decides.
        filtered, sparse: what the clients' route does.
        drops: whether retention removes records.
        late_returns: whether clients may come back when it has removed what they are to go on with.
    """

    def __init__(self, seed: int, filtered: bool, sparse: bool, drops: bool = True, late_returns: bool = False) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self.filtered, self.sparse, self.drops, self.late_returns = filtered, sparse, drops, late_returns
        self.log = BusyLog()
        self.log.create(TOPIC, PARTITIONS)
        self.log.while_closing = self._bustle
        self.written: list[Written] = []
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self.firsts = dict.fromkeys(range(PARTITIONS), 0)
        self.clients: list[Client] = []
        self._tails: list[Tail] = []
        ring = self.chance.choice([1, 3, 8])
        config = Config(max_ring_records=ring, metadata_refresh_s=300, idle_feed_timeout_s=3600, max_chunk_bytes=1024)
        self._feeds = Feeds(self.log, config.feed, self._tails.append)
        self._route = Route("topics", "/<topics>", None)
        self._encoder = Encoder(filterer=_is_shown if filtered else None, sparse_ids=sparse)

    def play(self, steps: int) -> list[str]:
        """So many steps; then everybody reads to the end. Returns the complaints."""
        moves = [self.append, self.append, self.append, self.mark, self.turn, self.turn, self.open]
        moves += [self.read, self.read, self.read, self.cut, self.tear, self.beat, self.drop]
        for _ in range(steps):
            self.chance.choice(moves)()
        self.settle()
        histories = [self._history(number, client) for number, client in enumerate(self.clients)]
        firsts = {(TOPIC, partition): first for partition, first in self.firsts.items()}
        reached = {(TOPIC, partition): end for partition, end in self.ends.items()}
        return complaints(histories, self.written, reached=reached, firsts=firsts)

    # Steps.

    def append(self) -> None:
        partition, number = self.chance.randrange(PARTITIONS), len(self.written)
        value = None if number % 7 == 6 else b'{"n":%d,"price":25.00}' % number
        key = b"k%d" % number
        offset = self.log.append(TOPIC, value, partition, key, timestamp=1000 + number)
        self.written.append(Written(TOPIC, partition, offset, 1000 + number, key, value))
        self.ends[partition] = offset + 1

    def mark(self) -> None:
        self.log.mark(TOPIC, self.chance.randrange(PARTITIONS))

    def drop(self) -> None:
        """What retention does, seldom."""
        partition = self.chance.randrange(PARTITIONS)
        if self.drops and self.chance.random() < 0.2 and self.ends[partition]:
            first = self.chance.randrange(self.firsts[partition], self.ends[partition] + 1)
            self.log.drop_before(TOPIC, first, partition)
            self.firsts[partition] = first

    def turn(self) -> None:
        for tail in self._tails:
            tail.turn(0)

    def open(self) -> None:
        if len(self.clients) < 6:
            self.clients.append(Client())
            self._connect(self.clients[-1])

    def read(self) -> None:
        for client in self._some():
            client.body += client.reader.read(0)

    def beat(self) -> None:
        for client in self._some():
            client.body += client.reader.id_if_moved()

    def cut(self) -> None:
        for client in self._some():
            self._come_back(client, None)

    def tear(self) -> None:
        for client in self._some():
            self._come_back(client, self.chance.randrange(len(client.body) + 1))

    def settle(self) -> None:
        """Everybody reads until there is nothing more."""
        self.log.while_closing = lambda: None  # or there would always be more
        for _ in range(4):
            self.turn()
            for client in self.clients:
                self._read_all(client)
        for client in self.clients:
            client.over()

    def _read_all(self, client: Client) -> None:
        for _ in range(SETTLING_READS_MAX):
            before = client.body
            try:
                client.body += client.reader.read(0)
            except KafkasseError:
                return
            if client.body == before and not getattr(client.reader, "_own", None):
                return

    def _bustle(self) -> None:
        """What may happen while somebody waits."""
        for _ in range(self.chance.randrange(6)):
            self.append()
        self.turn()

    def _some(self) -> list[Client]:
        return [self.chance.choice(self.clients)] if self.clients else []

    def _come_back(self, client: Client, had: int | None) -> None:
        kept = last_id(client.body[:had], client.sent_id)
        starts = parse(kept).starts if kept else {}
        late = any((start.offset or 0) < self.firsts[place.partition] for place, start in starts.items())
        if kept and (self.late_returns or not late):
            client.reader.close()
            client.over(had)
            self._connect(client)

    def _connect(self, client: Client) -> None:
        position = parse(client.sent_id) if client.sent_id else of_topics([TOPIC])
        client.reader = self._feeds.open(self._route, position, self.log.describe([TOPIC]), self._encoder)
        client.body += client.reader.begin()

    def _history(self, number: int, client: Client) -> History:
        keeps = {"keeps": _keeps} if self.filtered else {}
        every = "run" if self.sparse else "event"
        return History(f"client {number}", [TOPIC], client.attempts, id_frequency=every, **keeps)
