"""The ring: which segments it holds, where a reader joins, and how much memory it takes up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasse.feed.core.feed import FeedKey
from kafkasse.feed.core.reader import ReaderCore
from kafkasse.feed.core.reader_states import FEED_END
from kafkasse.feed.core.ring import INDEX_ENTRY_BYTES, RingLimits
from kafkasse.feed.shared_feed import SharedFeed
from kafkasse.log import UNKNOWN_EPOCH, Batch, Partition
from kafkasse.log.memory import MemoryRecord
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Dimension, Dimensions, Selector
from kafkasse.records.position import IdType, IdWriter, Place
from tests.support.memory import kept_bytes
from tests.support.parked_client import ParkedClient

NO_LIMIT = 1 << 40
KEY = Dimensions((Dimension("key"),))


def feed(partitions=3, max_bytes=NO_LIMIT, max_records=NO_LIMIT, limits=None, id_type=IdType.OFFSET, dimensions=None):
    ids = IdWriter(
        {Partition("t", number): 0 for number in range(partitions)}, {"t": "x"}, id_type=id_type, compact=True
    )
    key = FeedKey(Encoder(dimensions=dimensions), ("t",))
    return SharedFeed(key, ids, limits or RingLimits(max_bytes, max_records, NO_LIMIT), 300.0)


def append(feed, partition, count=1, value=b'{"n":1}', epoch=UNKNOWN_EPOCH, keys=0):
    """Append one batch, and flush the feed. The records have no key, or in turn one of `keys` keys."""
    where = Partition("t", partition)
    start = feed.ids.offsets[where]
    records = [
        MemoryRecord(offset, 1000 + offset, b"customer-%d" % (offset % keys) if keys else None, value)
        for offset in range(start, start + count)
    ]
    feed.append(Batch(where, records, start + count, epoch))
    feed.flush()


# Joining.


def test_a_reader_within_a_segment_starts_with_this_segment():
    shared = feed(2)
    append(shared, 0, 3)
    append(shared, 1, 4)

    assert shared.ring.head - 1 == shared.ring.find({Partition("t", 0): 3, Partition("t", 1): 2})


@pytest.mark.parametrize("skips", [False, True])
def test_a_reader_that_was_ahead_of_the_feed_at_a_truncation_does_not_join(skips):
    """It has read records that the feed has not, and the log has lost. The feed has read only those that replaced them."""
    shared = feed(1)
    partition = Partition("t", 0)
    append(shared, 0, 5, epoch=3)
    lost, kept = (shared.ids.copy_at({partition: Place(offset, None, 3)}) for offset in (8, 5))
    if skips:
        shared.skip_to({partition: Place(7, None, 4)}, {})
    append(shared, 0, 5, epoch=4)

    assert not shared.covers(lost)
    assert shared.covers(kept) is not skips  # after the skip, the ring lacks records


# Limits.


@pytest.mark.parametrize("id_type", IdType)
@pytest.mark.parametrize(("partitions", "records", "value"), [
    (1, 1, b'{"n":1}'), (3, 64, b'{"n":1}'), (100, 1, b'{"n":1}'), (3, 1, b'{"n":"%b"}' % (b"x" * 1000)),
])  # fmt: skip
def test_the_limit_counts_all_memory_of_the_ring(id_type, partitions, records, value):
    shared = feed(partitions, id_type=id_type)
    append(shared, 0)
    before = shared.ring._bytes

    kept = kept_bytes(lambda: [append(shared, number % partitions, records, value) for number in range(30)])

    assert 1 / 1.5 < kept / (shared.ring._bytes - before) < 1.5


@pytest.mark.parametrize(("records", "keys"), [(1, 1), (64, 1), (1, 1_000_000), (64, 1_000_000)])
def test_the_limit_counts_the_index_of_the_dispatch_values(records, keys):
    """The estimate is right within a factor of 1.5 if all records have the same key, and if each has its own."""
    shared = feed(1, dimensions=KEY)
    append(shared, 0, keys=keys)
    before = shared.ring._bytes

    kept = kept_bytes(lambda: [append(shared, 0, records, keys=keys) for _ in range(100)])

    assert 1 / 1.5 < kept / (shared.ring._bytes - before) < 1.5


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 5)), min_size=1, max_size=30), st.integers(1, 30))
def test_the_index_contains_exactly_the_segments_that_the_ring_holds(batches, max_records):
    """Eviction removes segments from the index and gives back the bytes of the values that no record has any more."""
    shared = feed(1, max_records=max_records, dimensions=KEY)
    for count, keys in batches:
        append(shared, 0, count, keys=keys)
    ring = shared.ring
    held = {number: set(ring[number].values) for number in range(ring.first, ring.head)}
    selectors = {values: Selector(frozenset([values])) for values in ring._index}

    assert set().union(*held.values()) == selectors.keys()
    for values, selector in selectors.items():
        numbers = [number for number, contents in held.items() if values in contents]
        assert numbers == ring.find_selected(selector, 0, 1000)
        assert numbers[1:3] == ring.find_selected(selector, numbers[0] + 1, 2)
    sizes = [ring[number].size for number in held]
    index = sum(entry.size + INDEX_ENTRY_BYTES * len(entry.numbers) for entry in ring._index.values())
    assert sum(sizes) + index == ring._bytes


def test_a_batch_larger_than_the_ring_is_evicted_while_it_is_appended():
    """The ring exceeds its limit by at most one piece, even before the batch is flushed."""
    shared = feed(1, max_bytes=100_000)
    sizes: list[int] = []
    ring_append = shared.ring.append
    shared.ring.append = lambda segment: (ring_append(segment), sizes.append(shared.ring._bytes))

    append(shared, 0, 5_000, b'{"n":"%b"}' % (b"x" * 100))

    assert 100_000 < max(sizes) < 100_000 + 65_536 + 10_000


def test_a_full_ring_is_not_flushed_for_each_segment():
    """It evicts the segments that it has flushed, so that parked clients receive the records of a turn in one chunk."""
    shared = feed(1, max_records=100)
    append(shared, 0, 100)
    client = ParkedClient()
    ReaderCore(FEED_END, shared, NO_LIMIT).park(client)

    for offset in range(100, 105):
        shared.append(Batch(Partition("t", 0), [MemoryRecord(offset, 1000, None, b'{"n":1}')], offset + 1, 0))
    before_flush = client.received
    shared.flush()

    assert b"" == before_flush
    assert 5 == client.received.count(b"event: message")


def test_rings_share_the_limit_of_the_worker():
    """A new ring makes the others smaller at once."""
    limits = RingLimits(100_000, NO_LIMIT, 150_000)
    first = feed(1, limits=limits)
    append(first, 0, 5_000)
    alone = first.ring._bytes

    second = feed(1, limits=limits)
    append(second, 0, 5_000)

    assert 90_000 < alone <= 100_000
    assert first.ring._bytes <= 75_000 >= second.ring._bytes > 60_000


def test_a_feed_that_was_dropped_leaves_its_share_to_the_others():
    """The limit of the worker is divided by the number of the rings that exist."""
    limits = RingLimits(100_000, NO_LIMIT, 150_000)
    rings = [feed(1, limits=limits) for _ in range(3)]

    del rings[1:]

    assert 100_000 == limits.max_bytes
