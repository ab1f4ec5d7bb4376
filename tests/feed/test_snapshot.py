"""Snapshots: a client receives the newest record of each key, then new records. All clients share one snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gevent
import pytest

from kafkasse.config import Config
from kafkasse.errors import ConfigurationError, TopicGone, Unavailable
from kafkasse.event_loop import take_turn
from kafkasse.feed import Feeds, StopReason
from kafkasse.feed import snapshot as snapshots
from kafkasse.feed.reader import ReaderState
from kafkasse.feed.tail import Tail
from kafkasse.filter import Dimension, Dimensions, Selector
from kafkasse.frame import Encoder, JsonLines
from kafkasse.memory_log import MemoryCursor, MemoryLog
from kafkasse.position import of_topics, parse
from kafkasse.route import Route, StartAt
from kafkasse.sse import Event, Parser
from tests.support.memory import kept_bytes
from tests.support.turns import turn
from tests.support.waiting import TIMEOUT_S, wait_until


class CountingLog(MemoryLog):
    """Counts the cursors that were opened and closed."""

    cursors = 0
    closed = 0

    def cursor(self, *args: Any, **options: Any) -> MemoryCursor:
        self.cursors += 1
        cursor = super().cursor(*args, **options)
        cursor.close = self._count_closed
        return cursor

    def _count_closed(self) -> None:
        self.closed += 1


class World:
    """A topic with two partitions, and clients of a route that starts with a snapshot."""

    def __init__(self, encoder: Encoder | None = None, **settings: float) -> None:
        self.log = CountingLog()
        self.log.create("t", 2)
        self.tails: list[Tail] = []
        config = Config(metadata_refresh_s=300, **settings)
        self.feeds = Feeds(self.log, config.feed, self.tails.append)
        self.encoder = encoder or Encoder()

    def put(self, n: int, key: bytes | None = None, partition: int = 0) -> None:
        """Write a record, and let the tail read it."""
        self.log.append("t", b'{"n":%d}' % n, partition, key)
        self.turn()

    def delete(self, key: bytes, partition: int = 0) -> None:
        """Write a tombstone, and let the tail read it."""
        self.log.append("t", None, partition, key)
        self.turn()

    def turn(self) -> None:
        for tail in self.tails:
            turn(tail)

    def open(self, last_id: str = "", selector: Selector | None = None) -> Client:
        return Client(self, last_id, selector)


class Client:
    """A client that receives everything that is ready with read()."""

    def __init__(self, world: World, last_id: str, selector: Selector | None) -> None:
        route = Route("topics", "/{topics}", None, start=StartAt.SNAPSHOT)
        position = parse(last_id) if last_id else of_topics(["t"])
        self.reader = world.feeds.open(route, position, world.log.describe(["t"]), world.encoder, selector=selector)
        self.parser = Parser(last_event_id=last_id)
        self.bytes = self.reader.begin()
        self.events: list[Event] = list(self.parser.receive(self.bytes))

    def chunks(self) -> Iterator[bytes]:
        """Yield the snapshot, and everything else that is ready."""
        while chunk := self.reader.read(TIMEOUT_S if self.reader.state is ReaderState.SNAPSHOT else 0):
            yield chunk

    def read(self) -> list[Event]:
        """Receive everything that is ready."""
        received = b"".join(self.chunks())
        events = list(self.parser.receive(received))
        self.bytes += received
        self.events += events
        return events

    def read_slowly(self) -> list[Event]:
        """Receive one row, and later one row at a time."""
        self.reader._cursors = self.reader._cursors._replace(max_chunk_bytes=1)
        return list(self.parser.receive(self.reader.read(TIMEOUT_S)))


def numbers(events: list[Event]) -> list[int]:
    return [json.loads(event.data)["n"] for event in events if event.type == "message"]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.feeds.close()


# Personal streams.


BY_OWNER = Dimensions((Dimension("field", "of"),))


def put_for(world: World, whose: str, n: int, key: bytes) -> None:
    world.log.append("t", b'{"n":%d,"of":"%b"}' % (n, whose.encode()), 0, key)
    world.turn()


def test_the_limit_counts_only_the_rows_that_exist() -> None:
    """A table may change for years, and rows that were replaced or deleted take up no memory."""
    used = []
    for first in (0, 98):
        world = World(Encoder(dimensions=BY_OWNER))
        for n in range(first, 100):
            key = b"key-%d" % (n % 2) * 20
            put_for(world, f"customer-{n % 7}", n, key)
            if n % 10 == 0:
                world.delete(key)
        selector = Selector.of(["customer-0"], ["customer-1"])
        assert [98, 99] == numbers(world.open(selector=selector).read())
        (feed,) = world.tails[0].feeds.values()
        used.append(feed.snapshot._bytes)

    assert used[0] == pytest.approx(used[1], rel=0.01)  # offsets have more digits in the first


# One client.


def test_a_snapshot_has_no_event_id_until_it_is_complete(world: World) -> None:
    """A client whose connection breaks during the snapshot has no event ID, so it receives the whole snapshot again."""
    for n in range(5):
        world.put(n, b"%d" % n)
    client = world.open()

    assert b"" == client.bytes == client.reader.id_if_moved()
    assert "" == client.reader.position_id
    *rows, last = client.read()

    assert [""] * 5 == [event.id for event in rows]
    assert ("position", '{"snapshot":"complete"}') == (last.type, last.data)
    assert [5, 0] == [start.offset for start in parse(last.id).starts.values()]


def test_the_snapshot_of_an_empty_topic_is_an_event_id(world: World) -> None:
    client = world.open()
    (event,) = client.read()

    assert ("position", '{"snapshot":"complete"}') == (event.type, event.data)
    assert "" != client.parser.last_event_id


def test_only_the_end_of_a_snapshot_is_marked(world: World) -> None:
    """Later events, and the stream of a client that reconnects with an ID, do not contain the mark again."""
    world.put(1, b"a")
    client = world.open()
    client.read()
    world.put(2, b"a")

    later = client.read()
    returned = world.open(client.events[1].id)
    returned.read()

    assert [2] == numbers(later)
    assert ["message"] == [event.type for event in later]
    assert [2] == numbers(returned.events)
    assert b"complete" not in returned.bytes


def test_a_snapshot_contains_all_records_without_a_key(world: World) -> None:
    for n in range(3):
        world.put(n)

    assert [0, 1, 2] == numbers(world.open().read())


def test_a_snapshot_skips_records_that_retention_removes_meanwhile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot looks up the offsets before it reads."""
    for n in range(4):
        world.put(n, b"%d" % n)
    client = world.open()
    offset_ranges = world.log.offset_ranges

    def drop_later(partitions: Any) -> Any:
        found = offset_ranges(partitions)
        world.log.drop_before("t", 2)
        return found

    monkeypatch.setattr(world.log, "offset_ranges", drop_later)

    assert [2, 3] == numbers(client.read())


def test_a_snapshot_is_read_again_after_a_truncation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows may contain records that the log has lost."""
    monkeypatch.setattr(snapshots, "UNAVAILABLE_BACKOFF_S", 0.0)
    world.log.elect_leader("t")
    for n in range(4):
        world.put(n, b"%d" % n)
    world.open().read()
    world.log.truncate("t", 2)
    for n in range(12, 16):
        world.put(n, b"%d" % n)
    client = world.open()

    wait_until(lambda: client.read() or client.events)

    assert [0, 1, 12, 13, 14, 15] == numbers(client.events)


def test_a_snapshot_as_json_lines_has_the_same_rows() -> None:
    world = World(Encoder(wire=JsonLines()))
    world.put(1, b"a")
    client = world.open()
    client.read()

    row, end = [json.loads(line) for line in client.bytes.splitlines() if line]
    assert 1 == row["n"]
    assert {"event": "position", "snapshot": "complete"} == end


def test_a_snapshot_is_sent_in_chunks() -> None:
    world = World(max_chunk_bytes=1024)
    for n in range(100):
        world.put(n, b"%d" % n)
    client = world.open()

    chunks = list(client.chunks())

    assert 10 < len(chunks)
    assert max(map(len, chunks)) < 1500
    assert len(numbers(list(client.parser.receive(b"".join(chunks))))) == client.reader.totals()[0]


def test_a_failing_filter_ends_the_stream() -> None:
    """The client receives the error instead of a part of the table."""
    world = World(Encoder(filterer=lambda message: message["missing"]))
    world.put(1, b"a")

    with pytest.raises(Exception, match="The filter of this stream failed"):
        world.open().read()


def test_a_client_that_waits_for_a_snapshot_receives_the_error_of_its_feed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic may be deleted while its snapshot is read."""
    monkeypatch.setattr(snapshots.Snapshot, "_complete", lambda snapshot: gevent.sleep(TIMEOUT_S * 2))
    client = world.open()
    assert b"" == client.reader.read(0)

    (tail,) = world.tails
    tail.fail(tail.feeds.values(), TopicGone("The topic was deleted."))

    with pytest.raises(TopicGone):
        client.reader.read(0)


@pytest.mark.parametrize("reason", StopReason)
def test_stopping_a_reader_ends_its_wait_for_the_snapshot(
    world: World, monkeypatch: pytest.MonkeyPatch, reason: StopReason
) -> None:
    monkeypatch.setattr(snapshots.Snapshot, "_complete", lambda snapshot: gevent.sleep(TIMEOUT_S * 2))
    client = world.open()
    reading = gevent.spawn(client.reader.read, TIMEOUT_S * 2)
    gevent.sleep(0)

    client.reader.stop(reason)

    assert b"" == reading.get(timeout=TIMEOUT_S)


# Many clients.


def test_a_complete_snapshot_releases_its_slot_and_its_cursor() -> None:
    """A reader that falls behind later would wait forever for a slot that was not released."""
    world = World(max_catch_ups=1, max_ring_records=1)
    first = world.open()
    first.read()
    for n in range(3):
        world.put(n, b"%d" % n)
    world.open().read()
    assert len(world.tails) == world.log.cursors - world.log.closed

    returned = world.open(first.parser.last_event_id)

    assert [0, 1, 2] == numbers(returned.read())


def test_clients_share_a_snapshot(world: World) -> None:
    """Eight clients cause one read of the topic, and hold the same rows."""
    for n in range(10):
        world.put(n, b"%d" % n)
    clients = [world.open() for _ in range(8)]

    received = [numbers(client.read()) for client in clients]

    assert [list(range(10))] * 8 == received
    assert 1 == world.log.cursors - len(world.tails)


def test_a_later_client_receives_a_newer_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        world.put(n, b"%d" % n)
    world.open().read()
    world.put(7, b"1")
    world.delete(b"2")
    encoded: list[int] = []
    monkeypatch.setattr(world.encoder, "encode_with_values", _spy(world.encoder.encode_with_values, encoded))

    assert [0, 7] == numbers(world.open().read())
    assert [3] == encoded  # and the tombstone, which is not encoded


def test_at_most_two_versions_are_in_memory(world: World) -> None:
    """While a client still receives an old version, new clients share the newest one and receive later records as events."""
    clients, versions = [], set()
    for n in range(5):
        world.put(n, b"%d" % n)
        client = world.open()
        client.read_slowly()
        if client.reader._snapshot is not None:  # otherwise its version had one row
            versions.add(id(client.reader._snapshot._version.rows))
        clients.append(client)

    assert 2 == len(versions)
    assert [numbers(each.read())[-1:] for each in clients] == [[4]] * 5


@pytest.mark.parametrize("selector", [None, Selector.of(["bob"])])
def test_a_version_that_clients_receive_too_slowly_is_removed(
    monkeypatch: pytest.MonkeyPatch, selector: Selector | None
) -> None:
    """Their streams end with an error, and they start again. So a slow client keeps at most two versions in memory."""
    monkeypatch.setattr(snapshots, "MAX_SUPERSEDED_S", 0.0)
    world = World(Encoder(dimensions=BY_OWNER if selector else Dimensions()))
    for n in range(3):
        put_for(world, "bob", n, b"%d" % n)
    slow = world.open(selector=selector)
    slow.read_slowly()
    for n in (7, 8):
        put_for(world, "bob", n, b"2")
        world.open(selector=selector).read()

    with pytest.raises(Unavailable, match="too slowly"):
        slow.reader.read(0)
    world.feeds.close()


def test_an_idle_snapshot_is_evicted() -> None:
    """Its rows take up memory only as long as clients open it."""
    world = World(idle_feed_timeout_s=0.05)
    world.put(1, b"a")
    client = world.open()
    client.read()
    snapshot = client.reader._feed.snapshot

    wait_until(lambda: not snapshot._rows)

    assert [1] == numbers(world.open().read())


# Limits.


def test_a_snapshot_that_is_too_large_is_an_error() -> None:
    """The error names the setting. New clients receive it at once, and the snapshot is not built again for each of them."""
    world = World(max_snapshot_bytes=2000)
    for n in range(10):
        world.put(n, b"%d" % n)
    client = world.open()

    with gevent.Timeout(TIMEOUT_S), pytest.raises(ConfigurationError, match="max_snapshot_bytes=2000"):
        client.reader.read(TIMEOUT_S * 2)  # it does not wait for its timeout
    cursors = world.log.cursors
    with pytest.raises(ConfigurationError, match="max_snapshot_bytes=2000"):
        world.open()

    assert "" == client.reader.position_id
    assert cursors == world.log.cursors


def test_other_greenlets_run_while_a_snapshot_is_built(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []
    monkeypatch.setattr(snapshots, "take_turn", lambda: (turns.append(1), take_turn()))
    for n in range(1000):
        world.log.append("t", b'{"n":%d}' % n, 0, b"%d" % n)

    assert 1000 == len(numbers(world.open().read()))
    assert 15 <= len(turns)


@pytest.mark.parametrize("selector", [None, Selector.of(["key-1"])])
def test_the_limit_counts_all_memory_of_a_snapshot(selector: Selector | None) -> None:
    dimensions = Dimensions() if selector is None else Dimensions((Dimension("key"),))
    world = World(Encoder(dimensions=dimensions), max_snapshot_bytes=1 << 30)
    for n in range(5_000):
        world.log.append("t", b'{"n":%d}' % n, 0, b"key-%d" % n)
    client = world.open(selector=selector)
    client.reader._cursors = client.reader._cursors._replace(max_chunk_bytes=1)

    kept = kept_bytes(lambda: client.reader.read(TIMEOUT_S * 4))

    assert 1 / 1.5 < kept / client.reader._feed.snapshot._bytes < 1.5


def _spy(encode: Any, offsets: list[int]) -> Any:
    def spy(topic: str, partition: int, record: Any) -> Any:
        offsets.append(record.offset)
        return encode(topic, partition, record)

    return spy
