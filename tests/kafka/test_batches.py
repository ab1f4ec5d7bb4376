"""From a fetch's bytes to records, by both decoders: what cannot be had of a broker today, or only by waiting for it."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.record.util import calc_crc32c

from kafkasse.kafka import batches
from kafkasse.kafka.batches import MAX_RUN_RECORDS, BatchTooLarge, decode
from kafkasse.kafka.fetch_protocol import UNKNOWN_EPOCH, PartitionData

ROOM = 1 << 20
NO_CODEC, GZIP, SNAPPY, LZ4, ZSTD = range(5)
TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORT, COMMIT = struct.pack(">hh", 0, 0), struct.pack(">hh", 0, 1)


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def decoder(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(batches, "CompiledDecoder", None)
    else:
        assert batches.CompiledDecoder is not None


def batch(offset, *values, magic=2, codec=NO_CODEC, producer=-1, key=None, control=False):
    """The bytes of a batch that begins at `offset`; None stands for a record that compaction took."""
    rest = (
        {"transactional": True, "producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
        if producer >= 0
        else {}
    )
    builder = MemoryRecordsBuilder(magic, codec, 1 << 20, **rest)
    for value in values:
        _ = builder.skip(1) if value is None else builder.append(1000, key, value, [])
    builder.close()
    data = bytearray(builder.buffer())
    if magic == 2:  # the offset of an older one is that of its last record, in some codecs
        data[:8] = struct.pack(">q", offset)
        if control:
            data[21:23] = struct.pack(">h", CONTROL | TRANSACTIONAL)
        data[17:21] = struct.pack(">I", calc_crc32c(bytes(data[21:])))
    return bytes(data)


def read(data, offset=0, committed=True, aborted=()):
    found = list(decode(PartitionData(b"t", 0, 0, memoryview(data), aborted, None), offset, committed, ROOM))
    return [(each.offset, bytes(each.value)) for run in found for each in run.records], found[-1].next_offset


@pytest.mark.parametrize("codec", [NO_CODEC, GZIP, SNAPPY, LZ4, ZSTD])
def test_batches_follow_each_other(codec):
    """Offsets are those of the records, in each codec."""
    data = batch(5, b"a", b"b", codec=codec) + batch(7, b"c", codec=codec)

    assert ([(5, b"a"), (6, b"b"), (7, b"c")], 8) == read(data)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [NO_CODEC, GZIP])
def test_old_formats(magic, codec):
    """Records that were written before Kafka 0.11 are read as well, and know no epoch."""
    data = batch(0, b"a", b"b", magic=magic, codec=codec)

    assert ([(0, b"a"), (1, b"b")], 2) == read(data)
    assert UNKNOWN_EPOCH == list(decode(PartitionData(b"t", 0, 0, memoryview(data), (), None), 0, True, ROOM))[-1].epoch


def test_a_batch_that_begins_before():
    """Kafka hands out whole batches: what stands before the offset that was asked for is left out."""
    assert ([(6, b"b")], 7) == read(batch(5, b"a", b"b"), offset=6)


def test_what_compaction_took():
    """Its offsets are passed: the next fetch must not ask for them again."""
    assert ([(5, b"a"), (7, b"c")], 8) == read(batch(5, b"a", None, b"c"))


def test_a_batch_that_was_cut_short():
    """The last one may be: it comes again with the next fetch."""
    data = batch(5, b"a") + batch(6, b"b")[:-1]

    assert ([(5, b"a")], 6) == read(data)
    assert ([], 5) == read(data[:20], offset=5)


def test_transactions():
    """Aborted records are hidden up to their marker and not beyond it, others' never; markers always are."""
    data = (
        batch(0, b"aborted", producer=1)
        + batch(1, b"other", producer=2)
        + batch(2, b"plain")
        + batch(3, b"", producer=1, key=ABORT, control=True)
        + batch(4, b"committed", producer=1)
        + batch(5, b"", producer=1, key=COMMIT, control=True)
    )

    committed = [(1, b"other"), (2, b"plain"), (4, b"committed")]
    assert (committed, 6) == read(data, aborted=[(1, 0)])
    assert ([(0, b"aborted"), *committed], 6) == read(data, committed=False)


def test_a_marker_that_compaction_took():
    """Its batch stays, without a record."""
    data = batch(0, b"other", producer=2) + batch(1, None, producer=1, control=True) + batch(2, b"last")

    assert ([(0, b"other"), (2, b"last")], 3) == read(data, aborted=[(1, 0)])


def test_a_run_is_of_one_epoch():
    """So that it is known where each epoch began; markers have one, too."""
    data = (
        batch(5, b"a") + of_epoch(7, batch(6, b"", producer=1, key=COMMIT, control=True)) + of_epoch(8, batch(7, b"b"))
    )

    found = list(decode(PartitionData(b"t", 0, 0, memoryview(data), (), None), 5, True, ROOM))

    told = [([each.offset for each in run.records], run.next_offset, run.epoch) for run in found]
    assert [([5], 6, 0), ([], 7, 7), ([7], 8, 8)] == told


def of_epoch(epoch, data):
    return data[:12] + struct.pack(">i", epoch) + data[16:]


def test_runs_have_a_bound():
    """A large fetch comes in runs, so that others get their turn."""
    data = b"".join(batch(at, *[b"x"] * 100) for at in range(0, 3 * MAX_RUN_RECORDS, 100))

    found = list(decode(PartitionData(b"t", 0, 0, memoryview(data), (), None), 0, True, ROOM))

    assert [MAX_RUN_RECORDS] * 3 == [len(each.records) for each in found]


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_batch_that_would_become_too_large(codec):
    """It is named with what follows it, and what stands before it is handed on."""
    room, data = 10_000, b"x" * 9_000
    fits = PartitionData(b"t", 0, 0, memoryview(batch(5, data, codec=codec)), (), None)
    bomb = fits._replace(records=memoryview(batch(5, data, codec=codec) + batch(6, data, data, codec=codec)))

    assert [5] == [record.offset for record in next(decode(fits, 5, True, room)).records]
    reading = decode(bomb, 5, True, room)
    assert 6 == next(reading).next_offset
    with pytest.raises(BatchTooLarge) as error:
        next(reading)
    assert 8 == error.value.next_offset


def test_a_header_that_is_not_utf8():
    """Whoever may write to a topic must not be able to end its streams: the name is shown as well as it can be."""
    builder = MemoryRecordsBuilder(2, NO_CODEC, 1 << 20)
    builder.append(1000, b"k", b"v", [("name", b"1"), ("more", None)])
    builder.close()
    data = bytearray(builder.buffer().replace(b"name", b"n\xff\xfee"))
    data[17:21] = struct.pack(">I", calc_crc32c(bytes(data[21:])))

    ((record,), _, _) = next(decode(PartitionData(b"t", 0, 0, memoryview(data), (), None), 0, True, ROOM))

    assert (b"k", b"v", [("n\\xff\\xfee", b"1"), ("more", None)]) == (record.key, record.value, list(record.headers))


def test_a_damaged_batch():
    """What stands before it is handed on; then it is said, for all later ones too."""
    damaged = bytearray(batch(6, b"b"))
    damaged[-2] ^= 1
    reading = decode(
        PartitionData(b"t", 0, 0, memoryview(batch(5, b"a") + damaged + batch(7, b"c")), (), None), 5, True, ROOM
    )

    before = next(reading)

    assert ([5], 6) == ([each.offset for each in before.records], before.next_offset)
    with pytest.raises(CorruptRecordError):
        next(reading)


@given(data=st.data())
def test_garbage(data):
    """Bytes that were changed anywhere give records, or one known error: never a crash, never a hang."""
    codec = data.draw(st.sampled_from([NO_CODEC, GZIP, SNAPPY, LZ4, ZSTD]))
    whole = bytearray(batch(5, b"a" * 50, b"b", codec=codec) + batch(7, b"c"))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))

    with contextlib.suppress(CorruptRecordError):
        read(bytes(whole), offset=5)


@given(data=st.binary(max_size=300))
def test_what_is_no_batch(data):
    """Random bytes as well."""
    with contextlib.suppress(CorruptRecordError):
        read(data)
