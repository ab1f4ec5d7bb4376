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
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
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
_SESSION = struct.Struct(">ii")  # ID and epoch
# The most frequent response, in versions with topic IDs: all fields before the records if it has one partition, no aborted
# transactions and no tagged fields. In flexible versions, the length of an array is sent as the length plus one.
_SINGLE = struct.Struct(">ibihiB16sBihqqqBi")
_SINGLE_END = b"\0\0\0"  # no tagged fields of the partition, of the topic and of the response
_ABORTED = struct.Struct(">qq")  # producer ID, first offset
_DIVERGING = struct.Struct(">iq")  # epoch, end offset
_DIVERGING_TAG = 0
_NO_TAGS = b"\0"
_NO_TAGGED_FIELDS: Mapping[int, memoryview] = {}
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
    """The fields of a Fetch request that do not depend on its partitions."""

    max_wait_ms: int  # how long the broker may hold the request while it has no records
    max_bytes: int  # of the response. The first batch may be larger.
    max_partition_bytes: int  # of each partition in the response, likewise
    isolation_level: int  # 0 for read_uncommitted, 1 for read_committed
    # The rack of this process. The leader may name a replica in this rack to read from. "": read from leaders only.
    rack: str = ""

    def for_request(self, may_redirect: bool, max_bytes: int) -> FetchOptions:
        """Return the options of a request. Without `may_redirect`, it has no rack, so the leader names no other replica."""
        rack = self.rack if may_redirect else ""
        is_unchanged = (rack, max_bytes) == (self.rack, self.max_bytes)
        return self if is_unchanged else self._replace(rack=rack, max_bytes=max_bytes)

    def limited(self, max_wait_ms: int, max_partition_bytes: int) -> FetchOptions:
        """Return the options with these limits, where they are smaller."""
        return self._replace(
            max_wait_ms=min(max_wait_ms, self.max_wait_ms),
            max_partition_bytes=min(max_partition_bytes, self.max_partition_bytes),
        )


class FetchPartition(NamedTuple):
    """One partition of a Fetch request. Unknown epochs are UNKNOWN_EPOCH."""

    topic: bytes  # the name in UTF-8, or the topic ID, depending on the version
    partition: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int  # of the record before `fetch_offset`


class FetchRequest(NamedTuple):
    """A request of one version."""

    version: int
    options: FetchOptions  # the fields that do not depend on the partitions
    session: tuple[int, int]  # NO_SESSION, NEW_SESSION, or the ID and the epoch of a session. Ignored before version 7.
    # In a session, those that are new, or have a new offset or another `max_partition_bytes`; otherwise all.
    partitions: Sequence[FetchPartition]
    forgotten: Sequence[tuple[bytes, int]] = ()  # (topic, partition) of partitions to remove from the session


class PartitionData(NamedTuple):
    """One partition of a Fetch response."""

    topic: bytes  # as in the request
    partition: int
    error_code: int  # Kafka's error code; 0 for success
    records: memoryview  # record batches. The last batch may be incomplete.
    aborted: Sequence[tuple[int, int]]  # (producer ID, first offset) of each aborted transaction in `records`
    # If the log was truncated, a leader epoch and its end offset on this broker. What the cursor has read agrees with the
    # log at most up to that offset. Otherwise None.
    diverging: tuple[int, int] | None
    replica: int = NO_REPLICA  # the node ID of the replica to read from instead of this broker, or NO_REPLICA
    # Kafka's last stable offset: all records before it can be read at each isolation level. -1 if it is unknown.
    stable_end: int = -1


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

    Attributes:
        pack: encodes those of the values that the version contains.
        unpack: returns the values at the start of bytes; 0 for a field that the version does not contain.
        size: the number of bytes.
    """

    def __init__(self, *fields: tuple[str, bool]) -> None:
        encoded = struct.Struct(">" + "".join(code for code, is_present in fields if is_present))
        self.size = encoded.size
        self.pack: Callable[..., bytes] = encoded.pack
        self.unpack: Callable[[memoryview], Sequence[int]] = encoded.unpack_from
        if not all(is_present for _, is_present in fields):
            present = [index for index, (_, is_present) in enumerate(fields) if is_present]
            select, count = itemgetter(*present), len(fields)
            self.pack = lambda *values: encoded.pack(*select(values))
            self.unpack = lambda data: _spread(present, encoded.unpack_from(data), count)


def _spread(indexes: Sequence[int], values: Sequence[int], count: int) -> list[int]:
    """Return `count` values: these at their indexes, and 0 elsewhere."""
    spread = [0] * count
    for index, value in zip(indexes, values, strict=True):
        spread[index] = value
    return spread


class _Layout:
    """How the messages of one version are encoded."""

    def __init__(self, version: int) -> None:
        self.is_flexible = flexible = version >= 12
        self.has_topic_ids = version >= BY_TOPIC_ID
        self.has_sessions = sessions = version >= 7
        self.has_replicas = version >= 11
        self.tags = _NO_TAGS if flexible else b""
        # replica, maximum wait, minimum and maximum bytes, isolation level
        self.request = _Fields(("i", version < 15), ("i", True), ("i", True), ("i", True), ("b", True))
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
        self.partition_data = struct.Struct(">ihqqq" if version >= 5 else ">ihqq")

    # Encoding

    def array(self, items: Sequence[bytes]) -> bytes:
        return (_uvarint(len(items) + 1) if self.is_flexible else _INT32.pack(len(items))) + b"".join(items)

    def string(self, data: bytes) -> bytes:
        return (_uvarint(len(data) + 1) if self.is_flexible else _INT16.pack(len(data))) + data

    def topics(self, partitions: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Encode an array of topics from a topic and an encoded entry for each partition. Neighbors can share a topic."""
        return self.array(
            [
                (topic if self.has_topic_ids else self.string(topic))
                + self.array([entry for _, entry in neighbors])
                + self.tags
                for topic, neighbors in groupby(partitions, key=_TOPIC_OF)
            ]
        )

    # Parsing: each method returns the offset after what it has parsed

    def parse_length(self, data: memoryview, at: int) -> tuple[int, int]:
        """Parse the length of an array or of bytes; 0 if they are null."""
        if self.is_flexible:
            length, at = _parse_uvarint(data, at)
            return (length - 1 if length else 0), at
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
        if not self.is_flexible:
            return _NO_TAGGED_FIELDS, at
        if not data[at]:
            return _NO_TAGGED_FIELDS, at + 1
        tags: dict[int, memoryview] = {}
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
    start, end = _constant_parts(version, options)
    pack, max_bytes = layout.partition.pack, options.max_partition_bytes
    topics = layout.topics([(topic, pack(*rest, _UNKNOWN_LOG_START, max_bytes, 0)) for topic, *rest in partitions])
    if not layout.has_sessions:
        return start + topics + end
    without = layout.topics([(topic, _INT32.pack(partition)) for topic, partition in forgotten])
    return b"".join((start, _SESSION.pack(*session), topics, without, end))


@lru_cache(maxsize=256)
def _constant_parts(version: int, options: FetchOptions) -> tuple[bytes, bytes]:
    """Return the start and the end of all requests with these options."""
    layout = _LAYOUTS[version]
    start = layout.request.pack(_CONSUMER, options.max_wait_ms, _MIN_BYTES, options.max_bytes, options.isolation_level)
    return start, (layout.string(options.rack.encode()) if layout.has_replicas else b"") + layout.tags


def frame_request(version: int, correlation_id: int, client_id: bytes, body: bytes) -> bytes:
    """Prefix the body of a request with its size and header."""
    tags = _LAYOUTS[version].tags
    size = _HEADER.size - _SIZE_BYTES + len(client_id) + len(tags) + len(body)
    return b"".join((_HEADER.pack(size, API_KEY, version, correlation_id, len(client_id)), client_id, tags, body))


def parse_throttle_ms(version: int, data: memoryview) -> int:
    """Return the throttle time of a response, without parsing the rest. Raises MALFORMED if the response is too short."""
    return _LAYOUTS[version].response.unpack(data)[2]


def parse_response(version: int, data: memoryview) -> FetchResponse:
    """Parse a complete response, without its size, to a request of this version. Raise MALFORMED for other bytes."""
    layout = _LAYOUTS[version]
    if layout.has_topic_ids and (response := _parse_single(data)) is not None:
        return response
    correlation_id, tags, throttle_ms, error_code, session_id = layout.response.unpack(data)
    if tags:
        raise ValueError("the header of the Fetch response has tagged fields")
    count, at = layout.parse_length(data, layout.response.size)
    partitions: list[PartitionData] = []
    for _ in range(count):
        at = _parse_topic(layout, data, at, partitions)
    _, at = layout.parse_tags(data, at)
    if at != len(data):
        raise ValueError("the Fetch response is longer or shorter than its fields")
    return FetchResponse(correlation_id, throttle_ms, error_code, session_id, partitions)


def _parse_single(data: memoryview) -> FetchResponse | None:
    """Parse the most frequent response with two calls instead of twenty. Return None if this is another one."""
    if len(data) < _SINGLE.size:
        return None
    fields = _SINGLE.unpack_from(data)
    correlation_id, tags, throttle_ms, error_code, session_id, topics, topic, count, partition, code, *_ = fields
    stable_end, _, aborted, replica = fields[-4:]
    if tags or topics != 2 or count != 2 or aborted > 1:
        return None
    length, at = _parse_uvarint(data, _SINGLE.size)
    end = at + length - 1
    if not length or data[end:] != _SINGLE_END:  # a length of 0: the records are null
        return None
    only = PartitionData(topic, partition, code, data[at:end], [], None, replica, stable_end)
    return FetchResponse(correlation_id, throttle_ms, error_code, session_id, [only])


def _parse_topic(layout: _Layout, data: memoryview, at: int, partitions: list[PartitionData]) -> int:
    topic, at = layout.parse_topic(data, at)
    count, at = layout.parse_length(data, at)
    for _ in range(count):
        partition, at = _parse_partition(layout, topic, data, at)
        partitions.append(partition)
    _, at = layout.parse_tags(data, at)
    return at


def _parse_partition(layout: _Layout, topic: bytes, data: memoryview, at: int) -> tuple[PartitionData, int]:
    partition, error_code, _, stable_end, *_ = layout.partition_data.unpack_from(data, at)
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
    diverging = None
    if _DIVERGING_TAG in tags:
        epoch, end_offset = _DIVERGING.unpack_from(tags[_DIVERGING_TAG])
        diverging = (epoch, end_offset) if epoch != UNKNOWN_EPOCH else None
    records = data[at:end]
    return PartitionData(topic, partition, error_code, records, aborted, diverging, replica, stable_end), after


def _parse_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    if (byte := data[at]) < 0x80:
        return byte, at + 1
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
