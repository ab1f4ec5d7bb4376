"""Writes record batches that no client library would write: one batch of very many records."""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Sequence

from kafka.record.memory_records import MemoryRecordsBuilder

UNCOMPRESSED, ZSTD = 0, 4
ANSWER_TIMEOUT_S = 60
PRODUCE = 0
VERSION = 7  # the first that may contain zstd


def produce(bootstrap_servers: str, topic: str, records: Sequence[tuple[bytes | None, bytes | None]]) -> None:
    """Append records, each a key and a value, to partition 0 of a topic, as one batch that is compressed with zstd."""
    produce_batch(bootstrap_servers, topic, 0, encode_batch(records, ZSTD))


def produce_batch(bootstrap_servers: str, topic: str, partition: int, batch: bytes) -> None:
    data = struct.pack(">ii", partition, len(batch)) + batch
    name = topic.encode()
    topics = struct.pack(">ih", 1, len(name)) + name + struct.pack(">i", 1) + data
    body = struct.pack(">hhihhhi", PRODUCE, VERSION, 1, -1, -1, 1, ANSWER_TIMEOUT_S * 1000) + topics
    host, _, port = bootstrap_servers.partition(":")
    with socket.create_connection((host, int(port)), ANSWER_TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        response = connection.makefile("rb")
        (size,) = struct.unpack(">i", response.read(4))
        answer = response.read(size)
    (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(name) + 4 + 4)
    assert error == 0, f"Kafka rejected the batch with error {error}"


def encode_batch(records: Sequence[tuple[bytes | None, bytes | None]], codec: int) -> bytes:
    """Encode records as one batch of any size. `codec` is UNCOMPRESSED or ZSTD."""
    builder = MemoryRecordsBuilder(2, codec, batch_size=sys.maxsize)
    now_ms = time.time_ns() // 1_000_000
    for key, value in records:
        builder.append(now_ms, key, value)
    builder.close()
    return bytes(builder.buffer())
