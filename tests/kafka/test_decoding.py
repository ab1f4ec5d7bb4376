"""The partitions of a cursor are decoded in turn, and only a small part of their records is in memory at the same time."""

from __future__ import annotations

import gc
import struct
import tracemalloc
import weakref
from collections import Counter

import pytest
import snappy
from kafka.errors import CorruptRecordError
from kafka.record.util import calc_crc32c

from kafkasse.kafka.batches import MEDIUM_BATCH_BYTES, BatchTooLarge, RecordRun
from kafkasse.kafka.compression import PIECE_BYTES
from kafkasse.kafka.decoding import DecodingQueue, is_large
from kafkasse.kafka.fetch_position import FetchPosition
from kafkasse.kafka.fetch_protocol import PartitionData
from kafkasse.log import Partition
from tests.kafka.fake_broker import batch
from tests.support.examples import first_of

GZIP, SNAPPY, LZ4, ZSTD = range(1, 5)
MAX_BYTES = 1 << 23
VALUE = b"x" * 1000
SMALL, MEDIUM, LARGE = 100, 800, 3000  # records in a batch


def fetched(data: bytes | memoryview) -> PartitionData:
    return PartitionData(b"t", 0, 0, memoryview(data), (), None)


@pytest.fixture
def queue() -> DecodingQueue:
    return DecodingQueue(True, MAX_BYTES)


def fill(
    queue: DecodingQueue, *partitions: bytes | memoryview, topic: str = "t", first: int = 0
) -> list[FetchPosition]:
    """Add one partition for each argument, numbered from `first`."""
    states = []
    for number, data in enumerate(partitions, first):
        states.append(FetchPosition(Partition(topic, number)))
        queue.append(states[-1], fetched(data))
    return states


def next_run(queue: DecodingQueue) -> tuple[int, RecordRun]:
    """Decode one run. Return it with its partition."""
    found = queue.next_run()
    assert found is not None
    state, run = found
    assert isinstance(run, RecordRun)
    return state.partition.partition, run


def step(queue: DecodingQueue) -> tuple[int, int]:
    """Decode one run. Return its partition and its number of records."""
    number, run = next_run(queue)
    return number, len(run.records)


def steps(queue: DecodingQueue) -> list[tuple[int, int]]:
    """Decode everything. Return the partition and the number of records of each run."""
    counts = []
    while queue:
        counts.append(step(queue))
    return counts


def batches(count: int, records: int, codec: int = ZSTD) -> bytes:
    return b"".join(batch(at * records, *[VALUE] * records, codec=codec) for at in range(count))


def as_snappy_block(data: bytes, is_framed: bool) -> bytes:
    """Compress an uncompressed batch as one block: as librdkafka does, or with Java's framing."""
    block = snappy.compress(data[61:])
    frame = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(block)) if is_framed else b""
    compressed = bytearray(data[:61] + frame + block)
    compressed[8:12] = struct.pack(">i", len(compressed) - 12)
    compressed[21:23] = struct.pack(">h", SNAPPY)
    compressed[17:21] = struct.pack(">I", calc_crc32c(bytes(compressed[21:])))
    return bytes(compressed)


def turns(runs: list[tuple[int, int]]) -> list[int]:
    """Return the partitions in the order of decoding. Consecutive runs of one partition count once."""
    numbers = [number for number, count in runs if count]
    return [number for at, number in enumerate(numbers) if at == 0 or number != numbers[at - 1]]


@pytest.mark.parametrize("decoder", ["compiled", "plain"])
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_returns_all_records_of_batches_of_all_sizes_in_order(queue, codec, decoder, monkeypatch):
    if decoder == "plain":
        monkeypatch.setattr("kafkasse.kafka.batches.CompiledDecoder", None)
    sizes = [SMALL, LARGE, MEDIUM, 1, LARGE, MEDIUM]
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    data = b"".join(batch(at, *[VALUE] * size, codec=codec) for at, size in zip(starts, sizes, strict=True))
    fill(queue, data, data, data)

    offsets: dict[int, list[int]] = {0: [], 1: [], 2: []}
    while queue:
        number, run = next_run(queue)
        offsets[number] += [record.offset for record in run.records]

    assert {number: list(range(sum(sizes))) for number in range(3)} == offsets


@pytest.mark.parametrize("codec", [0, *first_of(ZSTD, GZIP, LZ4)])
@pytest.mark.parametrize(("records", "value_bytes"), [(5000, 0), (SMALL, 1000), (MEDIUM, 1000), (LARGE, 1000)])
def test_memory_does_not_grow_with_the_number_of_partitions(queue, codec, records, value_bytes):
    """Without slots, the 8 partitions would take up to 24 MB. The test keeps no records."""
    data = memoryview(b"".join(batch(at * records, *[b"x" * value_bytes] * records, codec=codec) for at in range(2)))
    count = 8
    fill(queue, *[data] * count)
    decoded = 0
    tracemalloc.start()
    try:
        while queue:
            decoded += step(queue)[1]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert count * 2 * records == decoded
    decompressed = records * (value_bytes + 20) if codec else 0
    large = decompressed if decompressed > MEDIUM_BATCH_BYTES else 0
    assert peak < 2 * large + 2 * MEDIUM_BATCH_BYTES


@pytest.mark.parametrize("data", [batches(3, MEDIUM), batches(3, LARGE)], ids=["medium", "large"])
def test_batches_of_one_size_take_turns(queue, data):
    """No partition has to wait until another has decoded all its batches."""
    fill(queue, *[data] * 3)

    assert [0, 1, 2] * 3 == turns(steps(queue))


@pytest.mark.parametrize("is_framed", [False, True])
def test_a_snappy_block_is_not_decompressed_before_it_has_the_slot(queue, monkeypatch, is_framed):
    """A block can only be decompressed as a whole, so it would take up memory for nothing."""
    decompressed = []
    uncompress = snappy.uncompress
    monkeypatch.setattr(snappy, "uncompress", lambda data: decompressed.append(uncompress(data)) or decompressed[-1])
    fill(queue, *[as_snappy_block(batch(0, *[VALUE] * LARGE), is_framed)] * 3)

    assert [0, 1, 2] == turns(steps(queue))
    assert 3 == len(decompressed)


@pytest.mark.parametrize("action", ["discard", "replace"])
def test_a_partition_may_be_discarded_while_a_thread_decompresses(queue, action):
    """Its records are not returned, and another partition gets the slot."""
    data = as_snappy_block(batch(0, *[VALUE] * LARGE), False)
    first, _ = fill(queue, data, data)
    block = next_run(queue)[1].block
    assert block is not None
    assert [first] == queue.discard([first.partition])
    if action == "replace":
        queue.append(first, fetched(data))

    block.decompress()
    assert ([1, 0] if action == "replace" else [1]) == turns(steps(queue))


@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("records", [1, SMALL, MEDIUM, LARGE])
def test_the_cost_of_a_run_is_that_of_its_records(queue, records, codec):
    """Waiting and decompression do not count. Otherwise, poll() would return only a few records at a time."""
    fill(queue, *[batches(2, records, codec)] * 3)
    while queue:
        _, run = next_run(queue)
        assert run.cost <= 4 * len(run.records)  # one for each record, and at most three for its bytes
        assert bool(run.cost) == bool(run.records)


def test_a_small_batch_is_decoded_in_one_turn(queue):
    """It takes several runs. No other partition is decoded between them, but the next one is decoded after them."""
    count = PIECE_BYTES // 10
    small = b"".join(batch(at * count, *[b""] * count, codec=ZSTD) for at in range(2))
    fill(queue, small, small)

    runs = steps(queue)

    assert [0, 1, 0, 1] == turns(runs)
    assert len(runs) > 20


@pytest.mark.parametrize(("records", "larger"), [(SMALL, MEDIUM), (SMALL, LARGE), (MEDIUM, LARGE)])
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_batch_does_not_wait_for_larger_ones(queue, records, larger, codec):
    fill(queue, batches(2, larger, codec), batches(2, larger, codec), batches(1, records, codec))

    done = Counter[int]()
    while done[2] < records:
        number, count = step(queue)
        done[number] += count

    assert done[0] + done[1] < larger


def test_a_waiting_partition_is_skipped_until_the_slot_is_free(queue):
    """A partition waits at most once for each of its batches."""
    count = 50
    fill(queue, *[batches(2, MEDIUM)] * count)

    assert len([run for run in steps(queue) if not run[1]]) <= count * 2 * (MEDIUM_BATCH_BYTES // PIECE_BYTES + 3)


@pytest.mark.parametrize("records", [MEDIUM, LARGE])
def test_a_discarded_partition_frees_its_slot(queue, records):
    """The partition that waits for it continues."""
    first, _ = fill(queue, *[batches(1, records)] * 2)
    while not step(queue)[1]:
        pass

    assert [first] == queue.discard([first.partition])
    assert records == sum(count for _, count in steps(queue))


def test_a_discarded_partition_does_not_get_a_slot(queue):
    """Partition 1 waits for the slot when it is discarded, so partition 2 gets the slot."""
    _, second, _ = fill(queue, *[batches(1, LARGE)] * 3)
    while not step(queue)[1]:
        pass

    assert [second] == queue.discard([second.partition])
    assert [0, 2] == turns(steps(queue))


@pytest.mark.parametrize(
    ("data", "error"),
    [(b"\0" * 100, CorruptRecordError), (batches(1, 2 * MAX_BYTES // len(VALUE)), BatchTooLarge)],
    ids=["damaged", "too-large"],
)
def test_a_partition_that_cannot_be_decoded_leaves_the_queue(queue, data, error):
    """Records before the error are returned. Other partitions continue, and get the slot."""
    fill(queue, batches(1, SMALL) + data, batches(1, LARGE))
    records = Counter[int]()
    errors = []
    while queue:
        found = queue.next_run()
        assert found is not None
        state, run = found
        if isinstance(run, RecordRun):
            records[state.partition.partition] += len(run.records)
        else:
            errors.append((state.partition.partition, type(run)))

    assert {0: SMALL, 1: LARGE} == records
    assert [(0, error)] == errors


@pytest.mark.parametrize("data", [b"\0" * 100, batches(1, 2 * MAX_BYTES // len(VALUE))], ids=["damaged", "too-large"])
def test_an_error_does_not_keep_the_response_in_memory(data):
    """A reference cycle would keep it until the next garbage collection, which is rare."""
    response = Response(data)
    gone = weakref.ref(response)
    queue = DecodingQueue(True, MAX_BYTES)
    queue.append(FetchPosition(Partition("t", 0)), fetched(memoryview(response)))
    del response
    gc.disable()
    try:
        while queue:
            queue.next_run()
        assert gone() is None
    finally:
        gc.enable()


class Response(bytearray):
    """Supports weak references."""


def test_counts_each_response_until_its_last_partition_is_decoded(queue):
    """One undecoded partition keeps the whole response in memory: its records are a slice of the response's buffer."""
    other = batch(0, VALUE)
    first, half = memoryview(other * 2), len(other)
    fill(queue, first[:half], first[half:], other)

    sizes = [queue.response_bytes]
    while queue:
        step(queue)
        sizes.append(queue.response_bytes)

    assert [len(first) + len(other)] * 2 + [len(other), 0] == sizes


MANY_SMALL = batch(0, *[b""] * 5000, codec=ZSTD)  # few bytes, several runs


@pytest.mark.parametrize("is_small_first", [True, False])
def test_a_discarded_partition_loses_its_turn(queue, is_small_first):
    """If it is added again with more or fewer bytes, it is decoded."""
    large = MANY_SMALL + batch(5000, *[VALUE] * SMALL)
    before, after = (MANY_SMALL, large) if is_small_first else (large, MANY_SMALL)
    [position] = fill(queue, before)
    while not next_run(queue)[1].keeps_turn:
        pass
    queue.discard([position.partition])
    queue.append(position, fetched(after))

    found = steps(queue)

    assert is_large(memoryview(large))
    assert not is_large(memoryview(MANY_SMALL))
    assert sum(count for _, count in found) == 5000 + is_small_first * SMALL


def test_partitions_with_few_bytes_take_turns_with_the_others(queue):
    """Each of them waits for one of the others, and the others do not wait for all of them."""
    large = batches(4, SMALL, codec=0)
    few = batch(0, b"a")
    fill(queue, large, large, *[few] * 4)

    assert [2, 0, 3, 1, 4, 5] == turns(steps(queue))


@pytest.mark.parametrize(
    "data", [batch(0, b"a"), batches(2, MEDIUM), batches(2, LARGE)], ids=["few", "medium", "large"]
)
def test_topics_take_turns(queue, data):
    """A topic with one partition does not wait for all partitions of another topic."""
    fill(queue, *[data] * 3)
    fill(queue, data, first=3, topic="u")

    assert [0, 3, 1, 2] == turns(steps(queue))[:4]
