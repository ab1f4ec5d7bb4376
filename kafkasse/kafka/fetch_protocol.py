"""Encodes Kafka's Fetch requests and parses the responses.

These messages are too frequent for kafka-python, which encodes and decodes field by field from a schema and copies the
records three times. kafka-python handles all other messages. Version 12 (Kafka 2.7) is the first in which a broker reports a
truncated log. Version 13 (Kafka 3.1) identifies a topic by its ID, so that a recreated topic is never mistaken for the old
one. This module does no I/O.

Source: https://kafka.apache.org/protocol (Fetch). In flexible versions, each structure ends with tagged fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

API_KEY = 1
BY_NAME, BY_TOPIC_ID = VERSIONS = (12, 13)  # how each version identifies a topic
UNKNOWN_EPOCH = -1
# Session ID and epoch of a request
NO_SESSION = (0, -1)  # outside of any session, so that the response lists every partition
NEW_SESSION = (0, 0)  # that opens a session

MALFORMED = (ValueError, IndexError, struct.error)  # what parse_response() raises for malformed bytes

_HEADER = struct.Struct(">ihhih")  # size, API key, version, correlation ID, length of the client ID
_REQUEST = struct.Struct(">iiiibii")  # replica, max wait, min and max bytes, isolation level, session ID and epoch
_PARTITION = struct.Struct(">iiqiqib")  # partition, leader epoch, offset, last epoch, log start, max bytes, no tags
_RESPONSE = struct.Struct(">ibihi")  # correlation ID, no tags, throttle time, error code, session ID
_PARTITION_DATA = struct.Struct(">ihqqq")  # partition, error code, high watermark, last stable offset, log start
_ABORTED = struct.Struct(">qqb")  # producer ID, first offset, no tags
_INT32 = struct.Struct(">i")
_DIVERGING = struct.Struct(">iq")  # epoch, end offset
_DIVERGING_TAG = 0
_NO_DIVERGENCE = memoryview(_DIVERGING.pack(UNKNOWN_EPOCH, -1))
_TOPIC_ID_BYTES = 16
_SIZE_BYTES = 4
_MAX_UVARINT_SHIFT = 28
_CONSUMER = -1  # in place of a replica's ID
_UNKNOWN_LOG_START = -1
_MIN_BYTES = 1
_NO_RACK = ""


class FetchOptions(NamedTuple):
    """The fields that are the same in all Fetch requests of a cursor.

    Attributes:
        max_wait_ms: how long the broker may hold the request while it has no records.
        isolation_level: 0 for read_uncommitted, 1 for read_committed.
    """

    max_wait_ms: int
    max_bytes: int
    max_partition_bytes: int
    isolation_level: int


class FetchPartition(NamedTuple):
    """One partition of a Fetch request. Unknown epochs are UNKNOWN_EPOCH."""

    topic: bytes  # from topic_name() or topic_id(), depending on the version
    partition: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int  # of the record before `fetch_offset`


class PartitionData(NamedTuple):
    """One partition of a Fetch response.

    Attributes:
        topic: as in the request.
        error_code: Kafka's error code; 0 for success.
        records: record batches. The last batch may be incomplete.
        aborted: (producer ID, first offset) of each aborted transaction in `records`.
        diverging: if the log was truncated, a leader epoch and its end offset on this broker. What the cursor has read
            agrees with the log at most up to that offset. Otherwise None.
    """

    topic: bytes
    partition: int
    error_code: int
    records: memoryview
    aborted: Sequence[tuple[int, int]]
    diverging: tuple[int, int] | None


class FetchResponse(NamedTuple):
    """A Fetch response. In a session, it omits partitions that have not changed."""

    correlation_id: int
    throttle_ms: int
    error_code: int
    session_id: int
    partitions: list[PartitionData]


def topic_name(name: str) -> bytes:
    """Encode a topic for version 12."""
    return _string(name)


def topic_id(uuid: UUID) -> bytes:
    """Encode a topic for version 13."""
    return uuid.bytes


def newest_version(lowest: int, highest: int) -> int | None:
    """Return the newest version that we and a broker with this range support, or None."""
    return max((version for version in VERSIONS if lowest <= version <= highest), default=None)


def encode_request(
    options: FetchOptions,
    session: tuple[int, int],
    partitions: Iterable[FetchPartition],
    forgotten: Iterable[tuple[bytes, int]] = (),
) -> bytes:
    """Encode the body of a request.

    Args:
        options: the fields that all requests share.
        session: NO_SESSION, NEW_SESSION, or the ID and the epoch of a session.
        partitions: in a session, those that are new or have a new offset; otherwise all. Neighbors with the same topic
            share one topic entry.
        forgotten: (topic, partition) of partitions to remove from the session.
    """
    topics = [
        topic + _array([_PARTITION.pack(*_fields(each), options.max_partition_bytes, 0) for each in group]) + b"\0"
        for topic, group in groupby(partitions, key=lambda each: each.topic)
    ]
    forgotten_topics = [
        topic + _array([_INT32.pack(partition) for _, partition in group]) + b"\0"
        for topic, group in groupby(forgotten, key=lambda each: each[0])
    ]
    fixed = _REQUEST.pack(
        _CONSUMER, options.max_wait_ms, _MIN_BYTES, options.max_bytes, options.isolation_level, *session
    )
    return b"".join((fixed, _array(topics), _array(forgotten_topics), _string(_NO_RACK), b"\0"))


def frame_request(version: int, correlation_id: int, client_id: str, body: bytes) -> bytes:
    """Prefix the body of a request with its size and header."""
    client = client_id.encode()
    size = _HEADER.size - _SIZE_BYTES + len(client) + 1 + len(body)
    return b"%b%b\0%b" % (_HEADER.pack(size, API_KEY, version, correlation_id, len(client)), client, body)


def parse_response(version: int, data: memoryview) -> FetchResponse:
    """Parse a complete response, without its size, to a request of this version.

    Raises:
        MALFORMED: the bytes are not a Fetch response.
    """
    correlation_id, tags, throttle_ms, error_code, session_id = _RESPONSE.unpack_from(data)
    if tags:
        raise ValueError("the header of the Fetch response has tagged fields")
    at = _RESPONSE.size
    count, at = _uvarint(data, at)
    partitions: list[PartitionData] = []
    for _ in range(count - 1):
        at = _parse_topic(version, data, at, partitions)
    _, at = _parse_tags(data, at)
    if at != len(data):
        raise ValueError("the Fetch response is longer or shorter than its fields")
    return FetchResponse(correlation_id, throttle_ms, error_code, session_id, partitions)


def _fields(each: FetchPartition) -> tuple[int, int, int, int, int]:
    return each.partition, each.leader_epoch, each.fetch_offset, each.last_fetched_epoch, _UNKNOWN_LOG_START


def _parse_topic(version: int, data: memoryview, at: int, partitions: list[PartitionData]) -> int:
    begin = at
    if version >= BY_TOPIC_ID:
        at += _TOPIC_ID_BYTES
    else:
        size, at = _uvarint(data, at)
        at += size - 1
    topic = bytes(data[begin:at])
    count, at = _uvarint(data, at)
    for _ in range(count - 1):
        partition, at = _parse_partition(topic, data, at)
        partitions.append(partition)
    _, at = _parse_tags(data, at)
    return at


def _parse_partition(topic: bytes, data: memoryview, at: int) -> tuple[PartitionData, int]:
    partition, error_code, _, _, _ = _PARTITION_DATA.unpack_from(data, at)
    count, at = _uvarint(data, at + _PARTITION_DATA.size)
    aborted = []
    for _ in range(count - 1):
        producer_id, first_offset, _ = _ABORTED.unpack_from(data, at)
        aborted.append((producer_id, first_offset))
        at += _ABORTED.size
    size, at = _uvarint(data, at + _INT32.size)  # skips the preferred read replica
    end = at + max(0, size - 1)
    tags, after = _parse_tags(data, end)
    epoch, end_offset = _DIVERGING.unpack_from(tags.get(_DIVERGING_TAG, _NO_DIVERGENCE))
    diverging = (epoch, end_offset) if epoch != UNKNOWN_EPOCH else None
    return PartitionData(topic, partition, error_code, data[at:end], aborted, diverging), after


def _parse_tags(data: memoryview, at: int) -> tuple[Mapping[int, memoryview], int]:
    count, at = _uvarint(data, at)
    tags = {}
    for _ in range(count):
        tag, at = _uvarint(data, at)
        size, at = _uvarint(data, at)
        tags[tag] = data[at : at + size]
        at += size
    return tags, at


def _uvarint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > _MAX_UVARINT_SHIFT:
            raise ValueError("a length has more than 32 bits")
    return value | byte << shift, at + 1


def _encode_uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    return bytes((value & 0x7F | 0x80,)) + _encode_uvarint(value >> 7)


def _string(text: str) -> bytes:
    data = text.encode()
    return _encode_uvarint(len(data) + 1) + data


def _array(items: Sequence[bytes]) -> bytes:
    return _encode_uvarint(len(items) + 1) + b"".join(items)
