"""Snapshots: a client receives the newest record of each key, then new records. All clients share one snapshot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import gevent
import pytest

from kafkasse.errors import ConfigurationError, KafkasseError, TopicGone, Unavailable
from kafkasse.feed import snapshot as snapshots
from kafkasse.feed.core.reader import StopReason
from kafkasse.feed.core.reader_states import ReaderState
from kafkasse.log import UNKNOWN_EPOCH, OffsetAndEpoch, OffsetOutOfRange, Partition
from kafkasse.log.memory import MAX_BATCH_RECORDS
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Dimension, Dimensions, Selector
from kafkasse.records.frame import JsonLines
from kafkasse.records.position import parse
from kafkasse.route import StartAt
from kafkasse_client.sse import Event
from tests.feed.world import Client, World, before_next_lookup
from tests.support.memory import kept_bytes
from tests.support.turns import turns_given_by
from tests.support.waiting import TIMEOUT_S, wait_until

AT = Partition("t", 0)


class SnapshotWorld(World):
    """A topic with two partitions, and clients of a route that starts with a snapshot."""

    def __init__(self, encoder: Encoder | None = None, **settings: Any) -> None:
        super().__init__(encoder, metadata_refresh_s=300, **settings)

    def put(self, n: int, key: bytes | None = None) -> None:
        super().put(n, key=key)

    def delete(self, key: bytes) -> None:
        """Write a tombstone, and let the tail read it."""
        self.log.append("t", None, key=key)
        self.turn()

    def client(self, *last_id: str, selector: Selector | None = None) -> Client:
        return Client(self.open(*last_id, start=StartAt.SNAPSHOT, selector=selector), *last_id)


def after_each_lookup(world: World, monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Change the log as soon as a snapshot has looked up its offsets."""
    offset_ranges = world.log.offset_ranges

    def changed_later(partitions: Any) -> Any:
        ranges = offset_ranges(partitions)
        change()
        return ranges

    monkeypatch.setattr(world.log, "offset_ranges", changed_later)


def read_slowly(client: Client) -> list[Event]:
    """Receive one row, and later one row at a time."""
    client.reader._max_chunk_bytes = 1
    return client.take(client.reader.read(TIMEOUT_S))


def numbers(events: list[Event]) -> list[int]:
    return [json.loads(event.data)["n"] for event in events if event.type == "message"]


@pytest.fixture
def world() -> Iterator[SnapshotWorld]:
    world = SnapshotWorld()
    yield world
    world.feeds.close()


# Personal streams.


BY_OWNER = Dimensions((Dimension("field", "of"),))


def put_for(world: SnapshotWorld, whose: str, n: int, key: bytes) -> None:
    world.log.append("t", b'{"n":%d,"of":"%b"}' % (n, whose.encode()), 0, key)
    world.turn()


def test_the_limit_counts_only_the_rows_that_exist():
    """A table may change for years, and rows that were replaced or deleted take up no memory."""
    used = []
    for first in (0, 98):
        world = SnapshotWorld(Encoder(dimensions=BY_OWNER))
        for n in range(first, 100):
            key = b"key-%d" % (n % 2) * 20
            put_for(world, f"customer-{n % 7}", n, key)
            if n % 10 == 0:
                world.delete(key)
        selector = Selector.of(["customer-0"], ["customer-1"])
        assert [98, 99] == numbers(world.client(selector=selector).read())
        used.append(world.feed.snapshot._bytes)

    assert used[0] == pytest.approx(used[1], rel=0.01)  # offsets have more digits in the first


# One client.


def test_a_snapshot_has_no_event_id_until_it_is_complete(world):
    """A client whose connection breaks during the snapshot has no event ID, so it receives the whole snapshot again."""
    for n in range(5):
        world.put(n, b"%d" % n)
    client = world.client()

    assert b"" == client.bytes == client.reader.id_if_moved()
    assert "" == client.reader.position_id
    *rows, last = client.read()

    assert [""] * 5 == [event.id for event in rows]
    assert ("position", '{"snapshot":"complete"}') == (last.type, last.data)
    assert [5, 0] == [start.offset for start in parse(last.id).starts.values()]


def test_only_the_end_of_a_snapshot_is_marked(world):
    """Later events, and the stream of a client that reconnects with an ID, do not contain the mark again."""
    world.put(1, b"a")
    client = world.client()
    client.read()
    world.put(2, b"a")

    later = client.read()
    returned = world.client(client.events[1].id)
    returned.read()

    assert [2] == numbers(later)
    assert ["message"] == [event.type for event in later]
    assert [2] == numbers(returned.events)
    assert b"complete" not in returned.bytes


def test_a_snapshot_contains_all_records_without_a_key(world):
    for n in range(3):
        world.put(n)

    assert [0, 1, 2] == numbers(world.client().read())


@pytest.mark.parametrize(("first", "left"), [(2, [2, 3]), (4, [])])
def test_a_snapshot_skips_records_that_retention_removes_meanwhile(world, monkeypatch, first, left):
    """The snapshot looks up the offsets before it reads."""
    for n in range(4):
        world.put(n, b"%d" % n)
    client = world.client()
    after_each_lookup(world, monkeypatch, lambda: world.log.drop_before("t", first))

    assert left == numbers(client.read())
    assert b"complete" in client.bytes


@pytest.mark.parametrize("is_pending", [True, False])
def test_a_snapshot_waits_for_a_partition_without_a_leader(monkeypatch, is_pending):
    """Otherwise the client would delete its rows when it receives the end, and then receive old records of these keys."""
    monkeypatch.setattr(snapshots, "UNAVAILABLE_BACKOFF_S", 0.0)
    world = World(metadata_refresh_s=0.0)
    world.write(1, 2, partition=1, key=b"a")
    if not is_pending:
        world.open()
    world.log.lose_leader("t", 1)
    client = Client(world.open(start=StartAt.SNAPSHOT))

    assert b"" == client.reader.read(0.05)
    world.log.elect_leader("t", 1)
    world.turn()
    wait_until(lambda: client.read() or client.events)

    assert [2] == numbers(client.events)
    assert '{"snapshot":"complete"}' == client.events[-1].data


@pytest.mark.parametrize("is_read_by_tail", [True, False])
@pytest.mark.parametrize("new", [[], [12, 13], [12, 13, 14, 15]])
def test_a_snapshot_is_read_again_after_a_truncation(world, monkeypatch, new, is_read_by_tail):
    """Its rows may contain records that the log has lost, whether the log is shorter than before or not."""
    monkeypatch.setattr(snapshots, "UNAVAILABLE_BACKOFF_S", 0.0)
    world.log.elect_leader("t")
    for n in range(4):
        world.put(n, b"%d" % n)
    world.client().read()
    world.log.truncate("t", 2)
    world.turn(2)
    world.write(*new)
    if is_read_by_tail:
        world.turn()
    client = world.client()

    wait_until(lambda: client.read() or client.events)

    assert [0, 1, *new] == numbers(client.events)


@pytest.mark.parametrize("new", [[], [12, 13]])
def test_a_snapshot_that_was_ahead_of_its_feed_is_read_again_after_a_truncation(world, monkeypatch, new):
    """The feed has read no lost record, so it does not notice the truncation."""
    monkeypatch.setattr(snapshots, "UNAVAILABLE_BACKOFF_S", 0.0)
    world.log.elect_leader("t")
    for n in range(2):
        world.put(n, b"%d" % n)
    waiting = world.client()
    world.write(2, 3)
    waiting.read()
    world.log.truncate("t", 2)
    world.write(*new)
    world.turn()
    client = world.client()

    wait_until(lambda: client.read() or client.events)

    assert [0, 1, 2, 3] == numbers(waiting.events)
    assert [0, 1, *new] == numbers(client.events)


@pytest.mark.parametrize(("new", "first"), [(0, 0), (4 * MAX_BATCH_RECORDS, 3 * MAX_BATCH_RECORDS + 1)])
def test_a_log_that_is_truncated_while_the_snapshot_reads_it(world, monkeypatch, new, first):
    """The snapshot is read again from the log's start, even if retention has moved it past the snapshot's position."""
    monkeypatch.setattr(snapshots, "UNAVAILABLE_BACKOFF_S", 0.0)
    world.log.elect_leader("t")
    world.write(*range(3 * MAX_BATCH_RECORDS))

    def truncate(urgent: bool) -> None:
        feeds = [feed for tail in world.tails for feed in tail.feeds.values() if feed.snapshot is not None]
        if any(feed.snapshot.ids.offsets.get(AT) == MAX_BATCH_RECORDS for feed in feeds):
            world.log.truncate("t", 10)
            world.write(*range(10, 10 + new))
            before_next_lookup(world.log, lambda: world.log.drop_before("t", first))

    with turns_given_by(truncate):
        client = world.client()
        wait_until(lambda: client.read() or client.events)

    assert [*range(first, 10 + new)] == numbers(client.events)


def test_a_truncation_counts_even_if_the_partition_has_no_leader(world):
    """Its bounds are then unknown, and other partitions could complete the snapshot."""
    world.put(1, b"a")
    client = world.client()
    wait_until(lambda: client.read() or client.events)
    (snapshot,) = [feed.snapshot for tail in world.tails for feed in tail.feeds.values()]

    with pytest.raises(Unavailable):
        snapshot.resume(OffsetOutOfRange([AT], {AT: OffsetAndEpoch(0, UNKNOWN_EPOCH)}), {})

    assert {} == snapshot.ids.offsets


def test_a_snapshot_does_not_wait_for_records_that_the_log_has_lost(world, monkeypatch):
    """The log is truncated before the snapshot has read the lost records."""
    for n in range(4):
        world.put(n, b"%d" % n)
    client = world.client()
    after_each_lookup(world, monkeypatch, lambda: world.log.truncate("t", 2))

    wait_until(lambda: client.take(client.reader.read(0.05)) or client.events)

    assert [0, 1] == numbers(client.events)
    assert '{"snapshot":"complete"}' == client.events[-1].data


def test_a_snapshot_as_json_lines_has_the_same_rows():
    world = SnapshotWorld(Encoder(wire=JsonLines()))
    world.put(1, b"a")
    client = world.client()
    client.read()

    row, end = [json.loads(line) for line in client.bytes.splitlines() if line]
    assert 1 == row["n"]
    assert {"event": "position", "snapshot": "complete"} == end


def test_a_snapshot_is_sent_in_chunks():
    world = SnapshotWorld(max_chunk_bytes=1024)
    for n in range(100):
        world.put(n, b"%d" % n)
    client = world.client()

    chunks = list(client.chunks())

    assert 10 < len(chunks)
    assert max(map(len, chunks)) < 1500
    assert len(numbers(list(client.parser.receive(b"".join(chunks))))) == client.reader.totals()[0]


def test_a_failing_filter_ends_the_stream():
    """The client receives the error instead of a part of the table."""
    world = SnapshotWorld(Encoder(filterer=lambda message: message["missing"]))
    world.put(1, b"a")

    with pytest.raises(Exception, match="The filter of this stream failed"):
        world.client().read()


def test_a_timeout_that_escapes_from_a_hook_ends_the_stream():
    """A gevent.Timeout is not an Exception. The client would wait for ever, and keep the worker busy."""
    world = SnapshotWorld(Encoder(deserializer=mock.Mock(side_effect=gevent.Timeout(1))))
    world.put(1, b"a")

    with pytest.raises(KafkasseError, match="could not read the snapshot"):
        world.client().read()


def test_a_client_that_waits_for_a_snapshot_receives_the_error_of_its_feed(world, monkeypatch):
    """The topic may be deleted while its snapshot is read."""
    monkeypatch.setattr(snapshots.Snapshot, "_complete", lambda snapshot: gevent.sleep(TIMEOUT_S * 2))
    client = world.client()
    assert b"" == client.reader.read(0)

    world.tails[0].fail([world.feed], TopicGone("The topic was deleted."))

    with pytest.raises(TopicGone):
        client.reader.read(0)


def test_a_snapshot_of_a_recreated_topic_ends_with_its_feed(world):
    """The snapshot releases its cursor and slot."""
    world.put(1, b"a")
    client = world.client()
    world.log.delete("t")
    world.log.create("t", 2)
    world.log.append("t", b"{}", key=b"a")
    assert b"" == client.reader.read(0.1)

    world.tails[0].fail([world.feed], None)

    wait_until(lambda: not world.feeds._slots._held and 1 == world.log.open_cursors)  # that of the tail
    assert [] == client.read()


@pytest.mark.parametrize("reason", [StopReason.ENDED, StopReason.CLIENT_LEFT])
def test_stopping_a_reader_ends_its_wait_for_the_snapshot(world, monkeypatch, reason):
    monkeypatch.setattr(snapshots.Snapshot, "_complete", lambda snapshot: gevent.sleep(TIMEOUT_S * 2))
    client = world.client()
    reading = gevent.spawn(client.reader.read, TIMEOUT_S * 2)
    gevent.sleep(0)

    client.reader.stop(reason)

    assert b"" == reading.get(timeout=TIMEOUT_S)


# Many clients.


def test_a_complete_snapshot_releases_its_slot_and_its_cursor():
    """A reader that falls behind later would wait forever for a slot that was not released."""
    world = SnapshotWorld(max_catch_ups=1, max_ring_records=1)
    first = world.client()
    first.read()
    for n in range(3):
        world.put(n, b"%d" % n)
    world.client().read()
    assert len(world.tails) == world.log.open_cursors

    returned = world.client(first.parser.last_event_id)

    assert [0, 1, 2] == numbers(returned.read())


def test_clients_share_a_snapshot(world):
    """Eight clients cause one read of the topic, and hold the same rows."""
    for n in range(10):
        world.put(n, b"%d" % n)
    clients = [world.client() for _ in range(8)]

    received = [numbers(client.read()) for client in clients]

    assert [list(range(10))] * 8 == received
    assert 1 == len(world.log.cursors) - len(world.tails)


def test_a_later_client_receives_a_newer_snapshot(world, monkeypatch):
    for n in range(3):
        world.put(n, b"%d" % n)
    world.client().read()
    world.put(7, b"1")
    world.delete(b"2")
    encoded: list[int] = []
    monkeypatch.setattr(world.encoder, "encode", _spy(world.encoder.encode, encoded))

    assert [0, 7] == numbers(world.client().read())
    assert [3] == encoded  # and the tombstone, which is not encoded


def test_clients_of_a_table_that_has_not_changed_share_its_rows(world):
    for n in range(2):
        world.put(n, b"%d" % n)
    clients = []

    for _ in range(3):
        clients.append(world.client())
        read_slowly(clients[-1])
        world.delete(b"not in the table")

    assert 1 == len({id(client.reader.core_state.version.rows) for client in clients})


def test_at_most_two_versions_are_in_memory(world):
    """While a client still receives an old version, new clients share the newest one and receive later records as events."""
    clients, versions = [], set()
    for n in range(5):
        world.put(n, b"%d" % n)
        client = world.client()
        read_slowly(client)
        if client.reader.state is ReaderState.SNAPSHOT:  # otherwise its version had one row
            versions.add(id(client.reader.core_state.version.rows))
        clients.append(client)

    assert 2 == len(versions)
    assert [numbers(reader.read())[-1:] for reader in clients] == [[4]] * 5


@pytest.mark.parametrize("selector", [None, Selector.of(["bob"])])
def test_a_version_that_clients_receive_too_slowly_is_removed(monkeypatch, selector):
    """Their streams end with an error, and they start again. So a slow client keeps at most two versions in memory."""
    monkeypatch.setattr("kafkasse.feed.core.snapshot.MAX_SUPERSEDED_S", 0.0)
    world = SnapshotWorld(Encoder(dimensions=BY_OWNER if selector else Dimensions()))
    for n in range(3):
        put_for(world, "bob", n, b"%d" % n)
    slow = world.client(selector=selector)
    read_slowly(slow)
    for n in (7, 8):
        put_for(world, "bob", n, b"2")
        world.client(selector=selector).read()

    with pytest.raises(Unavailable, match="too slowly"):
        slow.reader.read(0)
    world.feeds.close()


def test_an_idle_snapshot_is_evicted():
    """Its rows take up memory only as long as clients open it."""
    world = SnapshotWorld(idle_feed_timeout_s=0.05)
    world.put(1, b"a")
    client = world.client()
    client.read()
    snapshot = client.reader._feed.snapshot

    wait_until(lambda: not snapshot._rows)

    assert [1] == numbers(world.client().read())


def test_clients_that_receive_an_idle_snapshot_slowly_share_its_rows(monkeypatch):
    """Otherwise, each slow client that opens it after the timeout would keep another version in memory."""
    monkeypatch.setattr(snapshots, "MAX_POLL_S", 0.0)
    world = SnapshotWorld(idle_feed_timeout_s=0.001)
    for n in range(2):
        world.put(n, b"%d" % n)
    first = world.client()
    read_slowly(first)
    snapshot = first.reader._feed.snapshot
    check = mock.Mock(wraps=snapshot.is_in_use)
    monkeypatch.setattr(snapshot, "is_in_use", check)
    wait_until(lambda: check.call_count > 1 or not snapshot._rows)

    read_slowly(second := world.client())

    assert first.reader.core_state.version.rows is second.reader.core_state.version.rows
    assert [1] == numbers(first.read())
    assert [1] == numbers(second.read())
    wait_until(lambda: not snapshot._rows)


# Limits.


def test_a_snapshot_that_is_too_large_is_an_error():
    """The error names the setting. New clients receive it at once, and the snapshot is not built again for each of them."""
    world = SnapshotWorld(max_snapshot_bytes=2000)
    for n in range(10):
        world.put(n, b"%d" % n)
    client = world.client()

    with gevent.Timeout(TIMEOUT_S), pytest.raises(ConfigurationError, match="max_snapshot_bytes=2000"):
        client.reader.read(TIMEOUT_S * 2)  # it does not wait for its timeout
    cursors = len(world.log.cursors)
    with pytest.raises(ConfigurationError, match="max_snapshot_bytes=2000"):
        world.client()

    assert "" == client.reader.position_id
    assert cursors == len(world.log.cursors)


def test_other_greenlets_run_while_a_snapshot_is_built(world):
    """All turns of the stream itself are fewer."""
    turns: list[bool] = []
    for n in range(1000):
        world.log.append("t", b'{"n":%d}' % n, 0, b"%d" % n)

    with turns_given_by(turns.append):
        assert 1000 == len(numbers(world.client().read()))

    assert 15 <= len(turns)


@pytest.mark.parametrize("selector", [None, Selector.of(["key-1"])])
def test_the_limit_counts_all_memory_of_a_snapshot(selector):
    dimensions = Dimensions() if selector is None else Dimensions((Dimension("key"),))
    world = SnapshotWorld(Encoder(dimensions=dimensions), max_snapshot_bytes=1 << 30)
    for n in range(1_500):
        world.log.append("t", b'{"n":%d}' % n, 0, b"key-%d" % n)
    client = world.client(selector=selector)
    client.reader._max_chunk_bytes = 1

    kept = kept_bytes(lambda: client.reader.read(TIMEOUT_S * 4))

    assert 1 / 1.5 < kept / client.reader._feed.snapshot._bytes < 1.5


def _spy(encode: Any, offsets: list[int]) -> Any:
    def spy(topic: str, partition: int, record: Any) -> Any:
        offsets.append(record.offset)
        return encode(topic, partition, record)

    return spy
