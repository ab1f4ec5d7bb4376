"""Catching up and joining: in whatever order things happen, each client receives exactly the topic's records.

The test drives the tail, so that hypothesis can put any step between any two others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkasse.config import Config
from kafkasse.feed import Feeds
from kafkasse.feed.tail import Tail
from kafkasse.frame import Encoder
from kafkasse.log import Partition
from kafkasse.memory_log import MemoryCursor, MemoryLog
from kafkasse.position import of_topics, parse
from kafkasse.route import Route
from tests.support.examples import examples

PARTITIONS = 3
EVENT = re.compile(rb"(?:event: (\w+)\n)?(?:id: (.*)\n)?(?:data: (.*)\n)?\n")
OFFSETS = re.compile(rb'"partition":(\d+),"offset":(\d+),"timestamp"')


@dataclass
class Client:
    """A client that keeps what it received."""

    start: dict[int, int]
    reader: object = None
    had: dict[int, list[int]] = field(default_factory=dict)
    last_id: str = ""


class SwitchingCursor(MemoryCursor):
    """Closing a cursor lets other greenlets run, as with Kafka: the tail may append records meanwhile."""

    def close(self) -> None:
        super().close()
        self._log.while_closing()


class SwitchingLog(MemoryLog):
    """A log whose cursors let other greenlets run while they close."""

    while_closing = staticmethod(lambda: None)

    def cursor(self, offsets, tail=False, shared=False):
        return SwitchingCursor(self, offsets)


class World:
    """A log, a tail that is driven by the test, and clients."""

    def __init__(self, max_ring_records: int, filtered: bool, sparse_ids: bool = False) -> None:
        self.log = SwitchingLog()
        self.log.create("t", PARTITIONS)
        self.filtered = filtered
        self.sparse_ids = sparse_ids
        config = Config(
            max_ring_records=max_ring_records, metadata_refresh_s=300, idle_feed_timeout_s=3600, max_chunk_bytes=1024
        )
        self.tails: list[Tail] = []
        self.feeds = Feeds(self.log, config.feed, self.tails.append)
        self.route = Route("topics", "/<topics>", None)
        keeps = (lambda message: message["n"] % 2 == 0) if filtered else None
        self.encoder = Encoder(filterer=keeps, sparse_ids=sparse_ids)
        self.clients: list[Client] = []
        self.log.while_closing = self.run_others
        self.count = 0

    def append(self, partition: int) -> None:
        self.log.append("t", b'{"n":%d}' % self.count, partition)
        self.count += 1

    def mark(self, partition: int) -> None:
        self.log.append_marker("t", partition)

    def turn(self) -> None:
        for tail in self.tails:
            tail.turn(0)

    def run_others(self) -> None:
        """What other greenlets may do while one waits: write records, and append them to the feed."""
        for partition in range(PARTITIONS):
            self.append(partition)
        self.turn()

    def open(self, client: Client | None, last_id: str | None) -> None:
        position = parse(last_id) if last_id else of_topics(["t"])
        reader = self.feeds.open(self.route, position, self.log.describe(["t"]), self.encoder)
        if client is None:
            client = Client({each.partition: start.offset for each, start in parse(reader.position_id).starts.items()})
            self.clients.append(client)
        client.reader = reader
        self.take(client, reader.begin())

    def read(self, client: Client) -> None:
        self.take(client, client.reader.read(0))

    def act(self, step: str, number: int) -> None:
        client = self.clients[number % len(self.clients)]
        if step == "cut_while_sending":
            self.cut_while_sending(client, number)
        else:
            getattr(self, step)(client)

    def play(self, steps: list[tuple[str, int]]) -> None:
        for step, number in steps:
            if step in ("append", "mark"):
                getattr(self, step)(number)
            elif step == "turn":
                self.turn()
            elif step == "open":
                self.open(None, None)
            elif self.clients:
                self.act(step, number)
        self.read_everything(len(steps))

    def read_everything(self, steps: int) -> None:
        """Let every client read until there is nothing more."""
        self.log.while_closing = lambda: None  # otherwise there would always be more records
        for _ in range(4):
            self.turn()
            for client in self.clients:
                for _ in range(steps + 2):
                    self.read(client)

    def cut(self, client: Client) -> None:
        """Break the client's connection; the client reconnects with its last event ID."""
        client.reader.close()
        self.open(client, client.last_id)

    def cut_while_sending(self, client: Client, hundredth: int) -> None:
        """Break the connection while frames are sent; the client reconnects with its last event ID."""
        data = client.reader.read(0)
        self.take(client, data[: len(data) * hundredth // 100])
        if self.sparse_ids:  # the frames after the last event ID will be sent again
            told = {each.partition: start.offset for each, start in parse(client.last_id).starts.items()}
            client.had = {each: [offset for offset in had if offset < told[each]] for each, had in client.had.items()}
        self.cut(client)

    def beat(self, client: Client) -> None:
        self.take(client, client.reader.id_if_moved())

    def take(self, client: Client, data: bytes) -> None:
        for event, position_id, payload in EVENT.findall(data):
            if event == b"message":
                partition, offset = map(int, OFFSETS.search(payload).groups())
                client.had.setdefault(partition, []).append(offset)
            if position_id:
                client.last_id = position_id.decode()
                self.check(
                    client, {each.partition: start.offset for each, start in parse(client.last_id).starts.items()}
                )

    def check(self, client: Client, told: dict[int, int]) -> None:
        """Check that the event ID is exactly the position after what the client has received."""
        for partition in range(PARTITIONS):
            assert self.expected(partition, client.start[partition], told[partition]) == client.had.get(partition, [])

    def expected(self, partition: int, start: int, end: int | float = float("inf")) -> list[int]:
        """Return the offsets of the records that a stream of `[start, end)` must contain."""
        batch = self.log.read(Partition("t", partition), 0)
        records = batch.records if batch else []
        kept = (each for each in records if not self.filtered or int(each.value[5:-1]) % 2 == 0)
        return [each.offset for each in kept if start <= each.offset < end]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, PARTITIONS - 1)),
        st.tuples(st.just("mark"), st.integers(0, PARTITIONS - 1)),
        st.tuples(st.just("turn"), st.just(0)),
        st.tuples(st.just("open"), st.just(0)),
        st.tuples(st.just("read"), st.integers(0, 9)),
        st.tuples(st.just("cut"), st.integers(0, 9)),
        st.tuples(st.just("cut_while_sending"), st.integers(0, 99)),
        st.tuples(st.just("beat"), st.integers(0, 9)),
    ),
    min_size=25,  # hypothesis prefers short lists, in which no reader joins
    max_size=100,
)


@given(steps=STEPS, max_ring_records=st.integers(1, 12), filtered=st.booleans())
@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_client_receives_exactly_the_records_in_any_interleaving(steps, max_ring_records, filtered):
    """Writes, fetches, opens, reads, heartbeats and cuts at any byte, in any order: no record is lost or duplicated."""
    world = World(max_ring_records, filtered)
    world.play(steps)

    for client in world.clients:
        for partition in range(PARTITIONS):
            assert world.expected(partition, client.start[partition]) == client.had.get(partition, [])


@given(steps=STEPS, max_ring_records=st.integers(1, 12))
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_event_ids_on_the_last_frame_of_a_run_lose_nothing(steps, max_ring_records):
    """With id_frequency=run, a client that is cut off resumes after the last event ID that it received."""
    world = World(max_ring_records, filtered=False, sparse_ids=True)
    world.play(steps)

    for client in world.clients:
        for partition in range(PARTITIONS):
            assert world.expected(partition, client.start[partition]) == client.had.get(partition, [])
