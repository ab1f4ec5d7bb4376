"""The fuzz targets. Each takes any bytes and raises an exception if kafkasse breaks a guarantee.

The test suite runs them briefly with hypothesis; `make fuzz SECONDS=600` runs them with atheris.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kafka.errors import CorruptRecordError
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.record.util import calc_crc32c

from kafkasse.config import Config
from kafkasse.errors import ConfigurationError, InvalidPosition
from kafkasse.kafka.batches import BatchSlots, BatchTooLarge, decode
from kafkasse.kafka.fetch_protocol import MALFORMED, VERSIONS, PartitionData, parse_response
from kafkasse.log import Batch, Partition
from kafkasse.records.encoder import Encoder
from kafkasse.records.frame import FORMATS, JsonLines
from kafkasse.records.position import IdWriter, parse
from kafkasse.schemas import first_error, read
from kafkasse_client.sse import Parser
from tests.config.conftest import settings_of
from tests.support.sse import read_blocks, read_events

MAX_SENTENCE_CHARS = 600  # of an error message
CRC_AT, SUMMED_FROM = 17, 21  # in a record batch
CODECS = 5
WHERE = Partition("t", 3)
PASSWORD = "s3cret-of-the-fuzzer"  # noqa: S105 - must appear nowhere
PASSWORD_LINE = b"kafka: {ssl_password: %b}\n" % PASSWORD.encode()
OTHER_VARIABLES = (
    "KAFKASSE_KAFKA_SECURITY_PROTOCOL",
    "KAFKASSE_KAFKA_REQUEST_TIMEOUT_MS",
    "KAFKASSE_BOOTSTRAP_SERVERS",
    "KAFKA_URL",
)
SETTINGS = sorted(read("config")["properties"])


class Record(NamedTuple):
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def position(data: bytes) -> None:
    """Any text is a position, or is rejected with an error that can be sent."""
    try:
        found = parse(data.decode("utf-8", "surrogateescape"))
    except InvalidPosition as rejected:
        json.dumps(rejected.problem(), ensure_ascii=False).encode()
    else:
        assert found.topics


def frames(data: bytes) -> None:
    """Any records give at most one event each, two parsers agree, and both wire formats show the same records."""
    format, compact, records = (
        list(FORMATS)[data[0] % len(FORMATS)] if data else "kafkasse",
        len(data) % 2 == 0,
        _records(data[1:]),
    )
    ids = IdWriter({Partition("t", 2): 1, WHERE: 0}, {"t": "x"}, compact=compact)
    slow = ids.copy_at(ids.places())
    wire = Encoder(format)
    batch = Batch(WHERE, records, len(records))
    sent, offsets, *_ = wire.encode_piece(batch, 0, ids)

    blocks = read_blocks(b"".join(sent))

    assert [offset + 1 for offset in offsets] == [parse(block.last_id).starts[WHERE].offset for block in blocks]
    assert all(
        (block.names[0], set(block.names[1:-1]), block.names[-1]) == ("event", {"data"}, "id") for block in blocks
    )
    assert read_events(b"".join(sent)) == list(Parser().receive(b"".join(sent)))
    assert sent == list(_one_by_one(wire, records, slow))
    lines, shown, *_ = Encoder(format, JsonLines()).encode_piece(batch, 0, slow)
    assert offsets == shown
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 and b"\r" not in line for line in lines)


def batches(data: bytes) -> None:
    """Any bytes instead of record batches give records, or the error for damaged records."""
    try:
        for run in decode(
            PartitionData(b"t", 0, 0, memoryview(data), (), None),
            0,
            read_committed=True,
            max_decompressed_bytes=1 << 20,
            slots=BatchSlots.create(),
        ):
            for record in run.records:
                assert record.value is None or isinstance(record.value, bytes)
    except (CorruptRecordError, BatchTooLarge):
        pass


def forged_batches(data: bytes) -> None:
    """The same for batches with a correct checksum, because a forger can compute it."""
    if not data:
        return
    codec, changes = data[0] % CODECS, data[1:]
    batch = bytearray(_batch(codec))
    for at in range(0, len(changes) - 1, 2):
        batch[changes[at] % len(batch)] = changes[at + 1]
    batch[CRC_AT:SUMMED_FROM] = struct.pack(">I", calc_crc32c(bytes(batch[SUMMED_FROM:])))
    batches(bytes(batch))


def answers(data: bytes) -> None:
    """Any bytes instead of a broker's response are parsed, or rejected as malformed."""
    for version in VERSIONS:
        with suppress(*MALFORMED):
            parse_response(version, memoryview(data))


def file(data: bytes) -> None:
    """Any file gives a valid configuration, or an error that names the file and contains no password."""
    with tempfile.NamedTemporaryFile(suffix=".yaml") as written:
        written.write(data if len(data) % 2 else PASSWORD_LINE + data)
        written.flush()
        _check_load({}, Path(written.name), source=written.name)


def environment(data: bytes) -> None:
    """Any value of any environment variable gives a valid configuration, or an error that names the variable."""
    setting, value = (
        SETTINGS[data[0] % len(SETTINGS)] if data else SETTINGS[0],
        data[1:].decode("utf-8", "surrogateescape").replace("\0", ""),
    )
    for name in (f"KAFKASSE_{setting.upper()}", *OTHER_VARIABLES):
        _check_load({name: value}, None, source=name)


def _check_load(environ: dict[str, str], file: Path | None, source: str) -> None:
    """Load a configuration. It must be valid, or every sentence of the error must name the source."""
    try:
        config = Config.load({"KAFKASSE_KAFKA_SSL_PASSWORD": PASSWORD, **environ}, file)
    except ConfigurationError as rejected:
        _check_rejection(rejected.detail, source)
        return
    assert first_error("config", settings_of(config)) is None
    assert PASSWORD == config.kafka.kafka["ssl_password"]
    assert PASSWORD not in repr(config)


def _check_rejection(detail: str, source: str) -> None:
    assert PASSWORD not in detail
    assert detail
    for sentence in detail.split("\n"):
        assert source in sentence
        assert len(sentence) < MAX_SENTENCE_CHARS


def _records(data: bytes) -> list[Record]:
    """Cut records out of `data`. A byte that is rare in text separates keys, values and headers."""
    parts = data.split(b"\x1e")
    triples = zip(parts[::3], [*parts[1::3], None], [*parts[2::3], None], strict=False)
    return [
        Record(at, at - 1, key or None, value, [(part.decode("utf-8", "replace"), part)] if part else ())
        for at, (value, key, part) in enumerate(triples)
    ]


def _one_by_one(encoder: Encoder, records: list[Record], ids: IdWriter) -> Iterator[bytes]:
    for record in records:
        ids.set(WHERE, record.offset + 1, record.timestamp)
        if encoded := encoder.encode(*WHERE, record):
            yield encoder.wire.frame(encoded[0], ids.render(), encoded[1])


def _batch(codec: int) -> bytes:
    builder = MemoryRecordsBuilder(2, codec, 1 << 16)
    for n in range(3):
        builder.append(1000, b"key", b'{"n":%d,"x":"%b"}' % (n, b"x" * 40), [("header", b"value")])
    builder.close()
    return bytes(builder.buffer())


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (position, frames, batches, forged_batches, answers, file, environment)
}
