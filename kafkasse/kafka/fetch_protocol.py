"""Encodes Kafka's Fetch requests and parses the responses.

These messages are too frequent for kafka-python, which encodes and decodes field by field from a schema and copies the
records three times. kafka-python handles all other messages. This module does no I/O.

Version 4 (Kafka 0.11) is the first with the current format of batches. Version 7 adds sessions, 9 leader epochs, and 11
reads from the nearest replica. From version 12 (Kafka 2.7), a broker reports a truncated log. From version 13 (Kafka 3.1),
topic IDs identify topics, so that a recreated topic is never mistaken for the old one. Later versions differ only in fields
for brokers.

Source: https://kafka.apache.org/protocol (Fetch). In flexible versions, each structure ends with tagged fields.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from kafkasse.log import UNKNOWN_EPOCH

API_KEY = 1
VERSIONS = range(4, 19)
BY_NAME, BY_TOPIC_ID = 12, 13  # the last version that identifies topics by name, and the first with topic IDs
FIRST_WITH_DIVERGENCE = 12  # the first in which a broker reports a truncated log
NO_REPLICA = -1
TOPIC_ID_CHARS = 8  # of 22 in base64url; 48 bits are enough to distinguish a recreated topic from the old one
# Session ID and epoch of a request
NO_SESSION = (0, -1)  # outside of any session, so that the response lists every partition
NEW_SESSION = (0, 0)  # opens a session

MALFORMED = (ValueError, IndexError, struct.error)  # what parse_response() raises for malformed bytes

_HEADER = struct.Struct(">ihhih")  # size, API key, version, correlation ID, length of the client ID
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_TOPIC_OF: Callable[[Any], Any] = itemgetter(0)
_ABORTED = struct.Struct(">qq")  # producer ID, first offset
_DIVERGING = struct.Struct(">iq")  # epoch, end offset
_DIVERGING_TAG = 0
_NO_DIVERGENCE = memoryview(_DIVERGING.pack(UNKNOWN_EPOCH, -1))
_NO_TAGS = b"\0"
_TOPIC_ID_BYTES = 16
_SIZE_BYTES = 4
_MAX_UVARINT_SHIFT = 28
_CONSUMER = -1  # in place of a replica's ID
_UNKNOWN_LOG_START = -1
_MIN_BYTES = 1


class Broker(NamedTuple):
    """A broker's node ID and its advertised listener."""

    node_id: int
    host: str
    port: int


class Leader(NamedTuple):
    """The leader of a partition, its epoch, and the topic's name and topic ID, as Fetch requests contain them."""

    broker: Broker
    epoch: int
    topic_name: bytes
    topic_id: bytes  # b"" if the cluster has no topic IDs


def short_topic_id(topic_id: bytes) -> str:
    """Return the first characters of a topic ID as Kafka's tools print it, or "" if the cluster has no topic IDs."""
    return base64.urlsafe_b64encode(topic_id).decode("ascii")[:TOPIC_ID_CHARS]


class FetchOptions(NamedTuple):
    """The fields that are the same in all Fetch requests of a cursor, except `max_bytes`: the brokers share it.

    Attributes:
        max_wait_ms: how long the broker may hold the request while it has no records.
        isolation_level: 0 for read_uncommitted, 1 for read_committed.
        rack: the rack of this process. The leader may name a replica in this rack to read from. "": read from leaders only.
    """

    max_wait_ms: int
    max_bytes: int
    max_partition_bytes: int
    isolation_level: int
    rack: str = ""

    def for_request(self, may_redirect: bool, max_bytes: int) -> FetchOptions:
        """Return the options of a request. Without `may_redirect`, it has no rack, so the leader names no other replica."""
        return self._replace(rack=self.rack if may_redirect else "", max_bytes=max_bytes)


class FetchPartition(NamedTuple):
    """One partition of a Fetch request. Unknown epochs are UNKNOWN_EPOCH."""

    topic: bytes  # the name in UTF-8, or the topic ID, depending on the version
    partition: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int  # of the record before `fetch_offset`


class FetchRequest(NamedTuple):
    """A request of one version.

    Attributes:
        options: the fields that do not depend on the partitions.
        session: NO_SESSION, NEW_SESSION, or the ID and the epoch of a session. Ignored before version 7.
        partitions: in a session, those that are new or have a new offset; otherwise all.
        forgotten: (topic, partition) of partitions to remove from the session.
    """

    version: int
    options: FetchOptions
    session: tuple[int, int]
    partitions: Sequence[FetchPartition]
    forgotten: Sequence[tuple[bytes, int]] = ()


class PartitionData(NamedTuple):
    """One partition of a Fetch response.

    Attributes:
        topic: as in the request.
        error_code: Kafka's error code; 0 for success.
        records: record batches. The last batch may be incomplete.
        aborted: (producer ID, first offset) of each aborted transaction in `records`.
        diverging: if the log was truncated, a leader epoch and its end offset on this broker. What the cursor has read
            agrees with the log at most up to that offset. Otherwise None.
        replica: the node ID of the replica to read from instead of this broker, or NO_REPLICA.
    """

    topic: bytes
    partition: int
    error_code: int
    records: memoryview
    aborted: Sequence[tuple[int, int]]
    diverging: tuple[int, int] | None
    replica: int = NO_REPLICA


class FetchResponse(NamedTuple):
    """A Fetch response. In a session, it omits partitions that have not changed."""

    correlation_id: int
    throttle_ms: int
    error_code: int
    session_id: int
    partitions: list[PartitionData]


class _Fields:
    """A sequence of fields with fixed sizes, of which a version contains some.

    Args:
        fields: the format of each field in Python's struct module, and whether this version contains the field.
    """

    def __init__(self, *fields: tuple[str, bool]) -> None:
        self.struct = struct.Struct(">" + "".join(code for code, is_present in fields if is_present))
        self._present = [index for index, (_, is_present) in enumerate(fields) if is_present]
        self._select = itemgetter(*self._present)

    def pack(self, *values: int) -> bytes:
        """Encode those of the values that the version contains."""
        return self.struct.pack(*self._select(values))

    def unpack(self, data: memoryview) -> dict[int, int]:
        """Return the values at the start of `data`, by the index of their field."""
        return dict(zip(self._present, self.struct.unpack_from(data), strict=True))


class _Layout:
    """How the messages of one version are encoded."""

    def __init__(self, version: int) -> None:
        self.is_flexible = flexible = version >= 12
        self.has_topic_ids = version >= BY_TOPIC_ID
        self.has_sessions = sessions = version >= 7
        self.has_replicas = version >= 11
        # replica, maximum wait, minimum and maximum bytes, isolation level, session ID and epoch
        self.request = _Fields(
            ("i", version < 15), ("i", True), ("i", True), ("i", True), ("b", True), ("i", sessions), ("i", sessions)
        )
        # partition, leader epoch, offset, last fetched epoch, log start, maximum bytes, no tags
        self.partition = _Fields(
            ("i", True),
            ("i", version >= 9),
            ("q", True),
            ("i", flexible),
            ("q", version >= 5),
            ("i", True),
            ("b", flexible),
        )
        # correlation ID, no tags, throttle time, error code, session ID
        self.response = _Fields(("i", True), ("b", flexible), ("i", True), ("h", sessions), ("i", sessions))
        # partition, error code, high watermark, last stable offset, log start
        data = _Fields(("i", True), ("h", True), ("q", True), ("q", True), ("q", version >= 5))
        self.partition_data = data.struct

    # Encoding

    def array(self, items: Sequence[bytes]) -> bytes:
        return (_uvarint(len(items) + 1) if self.is_flexible else _INT32.pack(len(items))) + b"".join(items)

    def string(self, data: bytes) -> bytes:
        return (_uvarint(len(data) + 1) if self.is_flexible else _INT16.pack(len(data))) + data

    def topic(self, topic: bytes, partitions: Sequence[bytes]) -> bytes:
        return (topic if self.has_topic_ids else self.string(topic)) + self.array(partitions) + self.tags

    @property
    def tags(self) -> bytes:
        return _NO_TAGS if self.is_flexible else b""

    # Parsing: each method returns the offset after what it has parsed

    def parse_length(self, data: memoryview, at: int) -> tuple[int, int]:
        """Parse the length of an array or of bytes; 0 if they are null."""
        if self.is_flexible:
            length, at = _parse_uvarint(data, at)
            return max(0, length - 1), at
        (length,) = _INT32.unpack_from(data, at)
        if length < -1:
            raise ValueError("a length is negative")
        return max(0, length), at + _INT32.size

    def parse_topic(self, data: memoryview, at: int) -> tuple[bytes, int]:
        if self.has_topic_ids:
            size = _TOPIC_ID_BYTES
        elif self.is_flexible:
            size, at = self.parse_length(data, at)
        else:
            (size,) = _INT16.unpack_from(data, at)
            at += _INT16.size
            if size < 0:
                raise ValueError("the name of a topic is null")
        return bytes(data[at : at + size]), at + size

    def parse_tags(self, data: memoryview, at: int) -> tuple[Mapping[int, memoryview], int]:
        tags: dict[int, memoryview] = {}
        if not self.is_flexible:
            return tags, at
        count, at = _parse_uvarint(data, at)
        for _ in range(count):
            tag, at = _parse_uvarint(data, at)
            size, at = _parse_uvarint(data, at)
            tags[tag] = data[at : at + size]
            at += size
        return tags, at


_LAYOUTS = {version: _Layout(version) for version in VERSIONS}


def newest_version(lowest: int, highest: int) -> int | None:
    """Return the newest version that we and a broker with this range support, or None."""
    return max((version for version in VERSIONS if lowest <= version <= highest), default=None)


def encode_request(request: FetchRequest) -> bytes:
    """Encode the body of a request."""
    version, options, session, partitions, forgotten = request
    layout = _LAYOUTS[version]
    pack = layout.partition.pack
    fixed = (_CONSUMER, options.max_wait_ms, _MIN_BYTES, options.max_bytes, options.isolation_level, *session)
    # Neighbors with the same topic share one topic entry.
    topics = [
        layout.topic(topic, [pack(*_fields(partition), options.max_partition_bytes, 0) for partition in group])
        for topic, group in groupby(partitions, key=_TOPIC_OF)
    ]
    parts = [layout.request.pack(*fixed), layout.array(topics)]
    if layout.has_sessions:
        without = groupby(forgotten, key=_TOPIC_OF)
        parts.append(
            layout.array([layout.topic(topic, [_INT32.pack(at) for _, at in group]) for topic, group in without])
        )
    if layout.has_replicas:
        parts.append(layout.string(options.rack.encode()))
    return b"".join((*parts, layout.tags))


def frame_request(version: int, correlation_id: int, client_id: str, body: bytes) -> bytes:
    """Prefix the body of a request with its size and header."""
    client, tags = client_id.encode(), _LAYOUTS[version].tags
    size = _HEADER.size - _SIZE_BYTES + len(client) + len(tags) + len(body)
    return b"".join((_HEADER.pack(size, API_KEY, version, correlation_id, len(client)), client, tags, body))


def parse_response(version: int, data: memoryview) -> FetchResponse:
    """Parse a complete response, without its size, to a request of this version.

    Raises:
        MALFORMED: the bytes are not a Fetch response.
    """
    layout = _LAYOUTS[version]
    fixed = layout.response.unpack(data)
    if fixed.get(1):
        raise ValueError("the header of the Fetch response has tagged fields")
    count, at = layout.parse_length(data, layout.response.struct.size)
    partitions: list[PartitionData] = []
    for _ in range(count):
        at = _parse_topic(layout, data, at, partitions)
    _, at = layout.parse_tags(data, at)
    if at != len(data):
        raise ValueError("the Fetch response is longer or shorter than its fields")
    return FetchResponse(fixed[0], fixed[2], fixed.get(3, 0), fixed.get(4, 0), partitions)


def _fields(each: FetchPartition) -> tuple[int, int, int, int, int]:
    return each.partition, each.leader_epoch, each.fetch_offset, each.last_fetched_epoch, _UNKNOWN_LOG_START


def _parse_topic(layout: _Layout, data: memoryview, at: int, partitions: list[PartitionData]) -> int:
    topic, at = layout.parse_topic(data, at)
    count, at = layout.parse_length(data, at)
    for _ in range(count):
        partition, at = _parse_partition(layout, topic, data, at)
        partitions.append(partition)
    _, at = layout.parse_tags(data, at)
    return at


def _parse_partition(layout: _Layout, topic: bytes, data: memoryview, at: int) -> tuple[PartitionData, int]:
    partition, error_code, *_ = layout.partition_data.unpack_from(data, at)
    count, at = layout.parse_length(data, at + layout.partition_data.size)
    aborted = []
    for _ in range(count):
        aborted.append(_ABORTED.unpack_from(data, at))
        _, at = layout.parse_tags(data, at + _ABORTED.size)
    replica = NO_REPLICA
    if layout.has_replicas:
        (replica,) = _INT32.unpack_from(data, at)
        at += _INT32.size
    size, at = layout.parse_length(data, at)
    end = at + size
    tags, after = layout.parse_tags(data, end)
    epoch, end_offset = _DIVERGING.unpack_from(tags.get(_DIVERGING_TAG, _NO_DIVERGENCE))
    diverging = (epoch, end_offset) if epoch != UNKNOWN_EPOCH else None
    return PartitionData(topic, partition, error_code, data[at:end], aborted, diverging, replica), after


def _parse_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > _MAX_UVARINT_SHIFT:
            raise ValueError("a length has more than 32 bits")
    return value | byte << shift, at + 1


def _uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    return bytes((value & 0x7F | 0x80,)) + _uvarint(value >> 7)
