"""Decoding record batches with both decoders. The batches here are those that a current broker writes rarely or never."""

from __future__ import annotations

import contextlib
import hashlib
import struct
import zlib

import pytest
import snappy
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.record.util import calc_crc32c

from kafkasse.kafka import batches, compression
from kafkasse.kafka.batches import MAX_COST, MAX_COST_IN_PYTHON, BatchSlots, BatchTooLarge
from kafkasse.kafka.compression import DecompressedTooLarge
from kafkasse.kafka.errors import OldMessageFormat
from kafkasse.kafka.fetch_protocol import PartitionData

MAX_BYTES = 1 << 20
NO_CODEC, GZIP, SNAPPY, LZ4, ZSTD = range(5)
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20
MANY = 10_000
ABORT, COMMIT = struct.pack(">hh", 0, 0), struct.pack(">hh", 0, 1)


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def decoder(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(batches, "CompiledDecoder", None)
    else:
        assert batches.CompiledDecoder is not None


def batch(offset, *values, codec=NO_CODEC, producer=-1, key=None, control=False):
    """Encode a batch that starts at `offset`. A value of None stands for a record that compaction removed."""
    transaction = {"transactional": True, "producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
    builder = MemoryRecordsBuilder(2, codec, 1 << 22, **(transaction if producer >= 0 else {}))
    for value in values:
        _ = builder.skip(1) if value is None else builder.append(1000, key, value, [])
    builder.close()
    data = bytearray(builder.buffer())
    data[:8] = struct.pack(">q", offset)
    if control:
        data[21:23] = struct.pack(">h", CONTROL | TRANSACTIONAL)
    return with_checksum(data)


def with_checksum(data):
    data[17:21] = struct.pack(">I", calc_crc32c(bytes(data[21:])))
    return bytes(data)


def runs(data, offset=0, read_committed=True, max_bytes=MAX_BYTES, aborted=()):
    fetched = PartitionData(b"t", 0, 0, memoryview(data), aborted, None)
    return batches.decode(fetched, offset, read_committed, max_bytes, BatchSlots.create())


def decode(data, offset=0, **rest):
    """Like runs(), without the runs that make no progress."""
    at = offset
    for run in runs(data, offset, **rest):
        if run.next_offset > at:
            at = run.next_offset
            yield run


def read(data, offset=0, **rest):
    found = list(decode(data, offset, **rest))
    records = [(record.offset, bytes(record.value)) for run in found for record in run.records]
    return records, found[-1].next_offset if found else offset


@pytest.mark.parametrize("magic", [0, 1])
def test_records_from_before_kafka_0_11_are_an_error(magic):
    """The records before them are read, so that no record is skipped silently."""
    fields = struct.pack(">bb", magic, 0) + (struct.pack(">q", 1000) if magic else b"")
    body = fields + struct.pack(">ii", -1, 1) + b"b"
    message = struct.pack(">qiI", 6, 4 + len(body), zlib.crc32(body)) + body
    reading = decode(batch(5, b"a") + message)

    assert [5] == [record.offset for record in next(reading).records]
    with pytest.raises(OldMessageFormat, match=f"the batch at offset 6 has message format {magic}"):
        next(reading)


def test_omits_records_before_the_requested_offset():
    """Kafka returns complete batches, which may start earlier."""
    assert ([(6, b"b")], 7) == read(batch(5, b"a", b"b"), offset=6)


def test_moves_past_compacted_records():
    """The next fetch must not request their offsets again."""
    assert ([(5, b"a"), (7, b"c")], 8) == read(batch(5, b"a", None, b"c"))


def test_ignores_an_incomplete_last_batch():
    """The next fetch returns it again."""
    data = batch(5, b"a") + batch(6, b"b")[:-1]

    assert ([(5, b"a")], 6) == read(data)
    assert ([], 5) == read(data[:20], offset=5)


def test_hides_aborted_transactions():
    """A producer's records are hidden until its abort marker. Markers are never returned; records of other producers are."""
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
    assert ([(0, b"aborted"), *committed], 6) == read(data, read_committed=False)


def test_accepts_a_control_batch_without_its_marker():
    """Compaction may remove the marker of a control batch and keep the batch."""
    data = batch(0, b"other", producer=2) + batch(1, None, producer=1, control=True) + batch(2, b"last")

    assert ([(0, b"other"), (2, b"last")], 3) == read(data, aborted=[(1, 0)])


def test_starts_a_new_run_for_each_epoch():
    """The cursor must know where each epoch started. Transaction markers have an epoch too."""
    marker = batch(6, b"", producer=1, key=COMMIT, control=True)
    data = batch(5, b"a") + of_epoch(7, marker) + of_epoch(8, batch(7, b"b"))

    found = list(decode(data, 5))

    decoded = [([record.offset for record in run.records], run.next_offset, run.epoch) for run in found]
    assert [([5], 6, 0), ([], 7, 7), ([7], 8, 8)] == decoded


@pytest.mark.parametrize(
    ("data", "aborted"),
    [
        (batch(5, b"a", b"b"), []),
        (batch(5, b"a", None), []),
        (batch(5, None), []),
        (batch(2, b"before"), []),
        (batch(5, b"a", codec=GZIP), []),
        (batch(5, b"a", producer=1), [(1, 5)]),
        (batch(5, b"", producer=1, key=COMMIT, control=True), []),
        (batch(5, b"value").replace(b"value", b"other"), []),
        (batch(5, *[b"x"] * MANY), []),
    ],
    ids=[
        "records", "compacted end", "compacted", "before the offset", "compressed", "aborted", "control", "damaged",
        "many",
    ],
)  # fmt: skip
def test_decodes_a_batch_alone_like_one_of_several(data, aborted):
    """An only batch takes a shorter path."""

    def outcome(data):
        decoded = []
        try:
            for run in runs(data, 6, aborted=aborted):
                decoded.append(run._replace(records=[record.offset for record in run.records]))
        except CorruptRecordError as error:
            decoded.append(str(error))
        return decoded

    assert outcome(data + b"next") == outcome(data)


def of_epoch(epoch, data):
    return data[:12] + struct.pack(">i", epoch) + data[16:]


@pytest.mark.parametrize("codec", [NO_CODEC, GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("records_per_batch", [10, MANY])
def test_decodes_many_records_in_pieces(codec, records_per_batch):
    """A piece takes about a millisecond, even within a batch, so that other greenlets get their turn."""
    ends = range(0, MANY, records_per_batch)
    data = b"".join(batch(at, *[b"x"] * records_per_batch, codec=codec) for at in ends)

    pieces = [len(run.records) for run in decode(data)]

    assert MANY == sum(pieces)
    assert max(pieces) <= (MAX_COST if batches.CompiledDecoder else MAX_COST_IN_PYTHON) + records_per_batch % MANY


@pytest.mark.parametrize("codec", [NO_CODEC, GZIP, LZ4, ZSTD])
def test_decodes_large_records_in_pieces(codec):
    """A piece is limited in bytes too. A snappy block cannot be decompressed in pieces, so a thread does it."""
    incompressible = hashlib.shake_128().digest(50_000)  # the codec receives it in pieces, too
    data = batch(0, *[b"x" * 50_000] * 10, *[incompressible] * 10, codec=codec)

    pieces = list(runs(data))

    assert 20 == sum(len(run.records) for run in pieces)
    assert max(len(run.records) for run in pieces) <= 50_000 * MAX_COST // 512
    if codec:
        assert len([run for run in pieces if not run.records]) > 5  # while decompressing


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_rejects_a_batch_that_is_too_large_when_decompressed(codec):
    """The error has the offset after the batch. Records before it have been returned."""
    max_bytes, data = 10_000, b"x" * 9_000
    fits, bomb = batch(5, data, codec=codec), batch(6, data, data, codec=codec)

    assert [5] == [record.offset for record in next(decode(fits, 5, max_bytes=max_bytes)).records]
    reading = decode(fits + bomb, 5, max_bytes=max_bytes)
    assert 6 == next(reading).next_offset
    with pytest.raises(BatchTooLarge) as error:
        next(reading)
    assert 8 == error.value.next_offset


def test_decodes_a_header_name_that_is_not_utf8():
    """One such record must not end the streams of its topic. Its name is shown with escapes.

    The records before it are returned once, and the slow decoder works in pieces too.
    """
    builder = MemoryRecordsBuilder(2, NO_CODEC, 1 << 20)
    for number in range(5000):
        builder.append(1000, b"k", b"v", [("name" if number == 3210 else "more", b"1"), ("last", None)])
    builder.close()
    data = with_checksum(bytearray(builder.buffer().replace(b"name", b"n\xff\xfee")))

    found = list(decode(data))

    records = [record for run in found for record in run.records]
    one = records[3210]
    assert (b"k", b"v", [("n\\xff\\xfee", b"1"), ("last", None)]) == (one.key, one.value, list(one.headers))
    assert list(range(5000)) == [record.offset for record in records]
    assert max(len(run.records) for run in found) <= MAX_COST


def test_rejects_a_large_snappy_block_before_it_is_decompressed(monkeypatch):
    """Snappy cannot decompress a block in pieces, so its size is read first."""
    block = snappy.compress(b"x" * 10_000)
    monkeypatch.setattr(compression.snappy, "uncompress", None)

    with pytest.raises(DecompressedTooLarge, match="10000 bytes"):
        list(compression.decompress(SNAPPY, memoryview(block), 9_999))


@pytest.mark.parametrize("crc_bytes", [batches.MAX_CRC_BYTES, 50])
def test_rejects_a_damaged_batch(monkeypatch, crc_bytes):
    """Records before it are returned. Then decode() raises, and later batches are not read.

    The checksum of a large batch is computed in pieces.
    """
    monkeypatch.setattr(batches, "MAX_CRC_BYTES", crc_bytes)
    damaged = bytearray(batch(6, b"b"))
    damaged[-2] ^= 1
    reading = decode(batch(5, b"a") + damaged + batch(7, b"c"), 5)

    before = next(reading)

    assert ([5], 6) == ([record.offset for record in before.records], before.next_offset)
    with pytest.raises(CorruptRecordError):
        next(reading)


@given(data=st.data())
def test_survives_changed_bytes(data):
    codec = data.draw(st.sampled_from([NO_CODEC, GZIP, SNAPPY, LZ4, ZSTD]))
    whole = bytearray(batch(5, b"a" * 50, b"b", codec=codec) + batch(7, b"c"))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))

    with contextlib.suppress(CorruptRecordError):
        read(bytes(whole), offset=5)


@given(data=st.binary(max_size=300))
def test_survives_random_bytes(data):
    with contextlib.suppress(CorruptRecordError):
        read(data)
