"""Kafka's Fetch request and its answer as bytes: the one message that is too frequent for a general codec.

kafka-python writes and reads it from a schema, field by field, and copies what was fetched three times; all other messages
are left to it. Version 12 (Kafka 2.7) is the first that tells when a log was truncated; 13 (Kafka 3.1) calls a topic by
its id, so that one that was deleted and made again is never mistaken for itself. Pure: no sockets.

Source: https://kafka.apache.org/protocol (Fetch); flexible versions end each structure with tagged fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

API_KEY = 1
BY_NAME, BY_TOPIC_ID = VERSIONS = (12, 13)  # what a topic is called in each
ANY_EPOCH = -1
NO_SESSION = (0, -1)  # session id and epoch of a request whose answer lists every partition
NEW_SESSION = (0, 0)

MALFORMED = (ValueError, IndexError, struct.error)  # what reading garbage raises

_HEADER = struct.Struct(">ihhih")  # size, API key, version, correlation id, length of the client id
_REQUEST = struct.Struct(">iiiibii")  # replica, max wait, min and max bytes, isolation level, session id and epoch
_PARTITION = struct.Struct(">iiqiqib")  # partition, leader epoch, offset, last epoch, log start, max bytes, no tags
_ANSWER = struct.Struct(">ibihi")  # correlation id, no tags, throttle time, error code, session id
_FETCHED = struct.Struct(">ihqqq")  # partition, error code, high watermark, last stable offset, log start
_ABORTED = struct.Struct(">qqb")  # producer id, first offset, no tags
_INT32 = struct.Struct(">i")
_DIVERGING = struct.Struct(">iq")  # epoch, end offset
_DIVERGING_TAG = 0
_NO_DIVERGENCE = memoryview(_DIVERGING.pack(ANY_EPOCH, -1))
_ID_BYTES = 16
_SIZE_BYTES = 4
_UVARINT_SHIFT_MAX = 28
_CONSUMER = -1  # in place of a replica's id
_UNKNOWN_LOG_START = -1
_BYTES_MIN = 1
_NO_RACK = ""


class Wanted(NamedTuple):
    """Where to read one partition. Epochs are ANY_EPOCH where unknown; `last_epoch` is that of the record before."""

    topic: bytes  # from topic_name() or topic_id(), as the version wants it
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int


class Fetched(NamedTuple):
    """What an answer holds of one partition.

    Attributes:
        topic: as in the request.
        error_code: Kafka's; 0 is none.
        records: record batches, the last one possibly cut short.
        aborted: (producer id, first offset) of aborted transactions within.
        diverging: an epoch and where it ends: up to there, at most, the log is the one that was read before; or None.
    """

    topic: bytes
    partition: int
    error_code: int
    records: memoryview
    aborted: Sequence[tuple[int, int]]
    diverging: tuple[int, int] | None


class Answer(NamedTuple):
    """What one fetch brought. In a session partitions without news are left out."""

    correlation_id: int
    throttle_ms: int
    error_code: int
    session_id: int
    partitions: list[Fetched]


class Terms(NamedTuple):
    """What holds for every fetch of one cursor: sizes in bytes, `wait_ms` how long the broker may hold an empty answer."""

    wait_ms: int
    bytes_max: int
    partition_bytes_max: int
    isolation_level: int


def topic_name(name: str) -> bytes:
    """What a topic is called in version 12."""
    return _string(name)


def topic_id(uuid: UUID) -> bytes:
    """What a topic is called in version 13."""
    return uuid.bytes


def request(
    terms: Terms,
    session: tuple[int, int],
    wanted: Iterable[Wanted],
    forgotten: Iterable[tuple[bytes, int]] = (),
) -> bytes:
    """The body of a request. `wanted` and `forgotten` are grouped by topic as far as they follow so."""
    topics = [
        topic + _array([_PARTITION.pack(*_places(each), terms.partition_bytes_max, 0) for each in group]) + b"\0"
        for topic, group in groupby(wanted, key=lambda each: each.topic)
    ]
    left = [
        topic + _array([_INT32.pack(partition) for _, partition in group]) + b"\0"
        for topic, group in groupby(forgotten, key=lambda each: each[0])
    ]
    fixed = _REQUEST.pack(_CONSUMER, terms.wait_ms, _BYTES_MIN, terms.bytes_max, terms.isolation_level, *session)
    return b"".join((fixed, _array(topics), _array(left), _string(_NO_RACK), b"\0"))


def framed(version: int, correlation_id: int, client_id: str, body: bytes) -> bytes:
    """A request as it goes to the broker: its size, its header and its body."""
    name = client_id.encode()
    size = _HEADER.size - _SIZE_BYTES + len(name) + 1 + len(body)
    return b"%b%b\0%b" % (_HEADER.pack(size, API_KEY, version, correlation_id, len(name)), name, body)


def _places(each: Wanted) -> tuple[int, int, int, int, int]:
    return each.partition, each.leader_epoch, each.offset, each.last_epoch, _UNKNOWN_LOG_START


def answer(version: int, data: memoryview) -> Answer:
    """Read a whole answer to a request of this version, without its size.

    Raises:
        MALFORMED: it is none.
    """
    correlation_id, tags, throttle_ms, error_code, session_id = _ANSWER.unpack_from(data)
    if tags:
        raise ValueError("the header of a Fetch answer has tagged fields")
    at = _ANSWER.size
    count, at = _uvarint(data, at)
    partitions: list[Fetched] = []
    for _ in range(count - 1):
        at = _topic(version, data, at, partitions)
    _, at = _tags(data, at)
    if at != len(data):
        raise ValueError("a Fetch answer is longer or shorter than it says")
    return Answer(correlation_id, throttle_ms, error_code, session_id, partitions)


def _topic(version: int, data: memoryview, at: int, partitions: list[Fetched]) -> int:
    begin = at
    if version >= BY_TOPIC_ID:
        at += _ID_BYTES
    else:
        size, at = _uvarint(data, at)
        at += size - 1
    topic = bytes(data[begin:at])
    count, at = _uvarint(data, at)
    for _ in range(count - 1):
        fetched, at = _fetched(topic, data, at)
        partitions.append(fetched)
    _, at = _tags(data, at)
    return at


def _fetched(topic: bytes, data: memoryview, at: int) -> tuple[Fetched, int]:
    partition, error_code, _, _, _ = _FETCHED.unpack_from(data, at)
    count, at = _uvarint(data, at + _FETCHED.size)
    aborted = []
    for _ in range(count - 1):
        producer_id, first_offset, _ = _ABORTED.unpack_from(data, at)
        aborted.append((producer_id, first_offset))
        at += _ABORTED.size
    size, at = _uvarint(data, at + _INT32.size)  # behind the replica that the broker would rather see asked
    end = at + max(0, size - 1)
    tags, after = _tags(data, end)
    epoch, end_offset = _DIVERGING.unpack_from(tags.get(_DIVERGING_TAG, _NO_DIVERGENCE))
    diverging = (epoch, end_offset) if epoch != ANY_EPOCH else None
    return Fetched(topic, partition, error_code, data[at:end], aborted, diverging), after


def _tags(data: memoryview, at: int) -> tuple[Mapping[int, memoryview], int]:
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
        if shift > _UVARINT_SHIFT_MAX:
            raise ValueError("a length of more than 32 bits")
    return value | byte << shift, at + 1


def _as_uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    return bytes((value & 0x7F | 0x80,)) + _as_uvarint(value >> 7)


def _string(text: str) -> bytes:
    data = text.encode()
    return _as_uvarint(len(data) + 1) + data


def _array(items: Sequence[bytes]) -> bytes:
    return _as_uvarint(len(items) + 1) + b"".join(items)
