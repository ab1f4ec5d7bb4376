"""Fake brokers on real sockets. A test writes the response to each Fetch request.

A fake broker responds at once to requests for versions, metadata and offsets, from what the test has set. A Fetch request
waits until the test takes it with FakeBroker.next_fetch(), and responds late, with an error, or not at all. kafka-python
encodes and decodes the messages. Fake brokers store no records and do not depend on kafkasse.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import gevent
from gevent import socket
from gevent.queue import Queue
from gevent.server import StreamServer
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.record.memory_records import MemoryRecordsBuilder

HOST = "127.0.0.1"
FETCH_TIMEOUT_S = 120.0
NO_LEADER = -1
EARLIEST = -2
UNKNOWN_TOPIC_OR_PARTITION = 3
NO_SESSION, SESSION_ID = -1, 77
TOPIC_ID = UUID(int=7)

FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, OFFSET_FOR_LEADER_EPOCH = 1, 2, 3, 18, 23
REQUESTS = {
    FETCH: FetchRequest,
    LIST_OFFSETS: ListOffsetsRequest,
    METADATA: MetadataRequest,
    API_VERSIONS: ApiVersionsRequest,
    OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpochRequest,
}
VERSIONS = {FETCH: 13, LIST_OFFSETS: 7, METADATA: 12, API_VERSIONS: 3, OFFSET_FOR_LEADER_EPOCH: 4}

TopicData = FetchResponse.FetchableTopicResponse
PartitionData = TopicData.PartitionData


def batch(offset: int, *values: bytes, epoch: int = 0, codec: int = 0) -> bytes:
    """Encode a record batch that starts at `offset`, written in this leader epoch."""
    return batch_of(offset, [(1000, None, value) for value in values], epoch, codec)


def batch_of(
    offset: int, records: Iterable[tuple[int, bytes | None, bytes | None]], epoch: int = 0, codec: int = 0
) -> bytes:
    """As batch(), for records with a timestamp, a key and a value."""
    builder = MemoryRecordsBuilder(2, codec, 1 << 26)
    for timestamp, key, value in records:
        builder.append(timestamp, key, value, [])
    builder.close()
    data = bytearray(builder.buffer())
    data[:8] = struct.pack(">q", offset)
    data[12:16] = struct.pack(">i", epoch)
    return bytes(data)


@dataclass
class FakeTopic:
    """A topic in the metadata.

    Attributes:
        leaders: for each partition, the node ID of its leader, or NO_LEADER.
        offset_range: log start offset and log end offset of each partition.
        epoch_ends: by partition, the error code, epoch and end offset in each OffsetForLeaderEpoch response.
        error: the error code in the metadata. With an error, the response contains no partitions.
    """

    leaders: list[int]
    id: UUID = TOPIC_ID
    epochs: dict[int, int] = field(default_factory=dict)
    offset_range: tuple[int, int] = (0, 0)
    list_offsets_error: int = 0
    epoch_ends: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    error: int = 0


class PendingFetch:
    """A Fetch request that waits for its response.

    Attributes:
        forgotten: the partitions to remove from the session.
        topics: the names or topic IDs in the request.
    """

    def __init__(self, sock: socket.socket, request: FetchRequest) -> None:
        self.sock = sock
        self.request = request
        self.partitions = {partition.partition: partition for topic in request.topics for partition in topic.partitions}
        self.offsets = {number: partition.fetch_offset for number, partition in self.partitions.items()}
        self.topics = [topic.topic_id if request.API_VERSION >= 13 else topic.topic for topic in request.topics]
        self.forgotten = [partition for topic in request.forgotten_topics_data for partition in topic.partitions]

    def respond(self, *partitions: PartitionData, **rest: Any) -> None:
        name = TOPIC_ID if self.request.API_VERSION >= 13 else "t"
        self.respond_with({name: partitions} if partitions else {}, **rest)

    def respond_with(self, topics: Mapping[UUID | str, Sequence[PartitionData]], **rest: Any) -> None:
        """Send a response with these partitions. The keys are the names or topic IDs, as in the request."""
        self.sock.sendall(self._response(topics, **rest))

    def respond_in_parts(self, count: int, pause_s: float, *partitions: PartitionData) -> None:
        """Send a response in about this many parts, with a pause before each."""
        data = self._response({TOPIC_ID: partitions})
        size = len(data) // count + 1
        for start in range(0, len(data), size):
            gevent.sleep(pause_s)
            self.sock.sendall(data[start : start + size])

    def _response(self, topics: Mapping[UUID | str, Sequence[PartitionData]], **rest: Any) -> bytes:
        name = "topic_id" if self.request.API_VERSION >= 13 else "topic"
        responses = [TopicData(**{name: topic}, partitions=list(partitions)) for topic, partitions in topics.items()]
        session = 0 if self.request.session_epoch == NO_SESSION else SESSION_ID
        rest = {"throttle_time_ms": 0, "error_code": 0, **rest}
        return _encoded(self.request, FetchResponse(version=0, session_id=session, responses=responses, **rest))

    def disconnect(self) -> None:
        """Close the connection instead of responding."""
        self.sock.shutdown(socket.SHUT_RDWR)


def partition_data(
    partition: int,
    records: bytes = b"",
    error: int = 0,
    replica: int = NO_LEADER,
    diverging: tuple[int, int] | None = None,
    aborted: Sequence[tuple[int, int]] = (),
) -> PartitionData:
    """Return one partition of a Fetch response. `diverging` is an epoch and its end offset."""
    rest = {}
    if diverging is not None:
        rest["diverging_epoch"] = PartitionData.EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
    return PartitionData(
        partition_index=partition, error_code=error, high_watermark=0, last_stable_offset=0, log_start_offset=0,
        preferred_read_replica=replica, records=records,
        aborted_transactions=[PartitionData.AbortedTransaction(producer_id=a, first_offset=b) for a, b in aborted], **rest,
    )  # fmt: skip


class FakeBroker:
    """One broker of a FakeCluster.

    Attributes:
        silent: the API keys of requests that get no response.
        disconnects: the API keys of requests that end their connection once.
        connections: the connections that sent a Fetch request.
    """

    def __init__(self, cluster: FakeCluster, node_id: int, port: int = 0) -> None:
        self.node_id = node_id
        self._cluster = cluster
        self._fetches: Queue[PendingFetch] = Queue()
        self._server = StreamServer((HOST, port), self._serve)
        self._server.start()
        self.port = self._server.server_port
        self.silent: set[int] = set()
        self.disconnects: set[int] = set()
        self.connections: list[socket.socket] = []
        self._accepted: list[socket.socket] = []

    def next_fetch(self) -> PendingFetch:
        return self._fetches.get(timeout=FETCH_TIMEOUT_S)

    def fetch_at(self, partition: int, offset: int) -> PendingFetch:
        """Wait for a Fetch request of this partition at this offset. Respond to others without records."""
        while (fetch := self.next_fetch()).offsets.get(partition) != offset:
            fetch.respond()
        return fetch

    def respond(self, *partitions: PartitionData, **rest: Any) -> PendingFetch:
        fetch = self.next_fetch()
        fetch.respond(*partitions, **rest)
        return fetch

    @property
    def pending_fetches(self) -> int:
        """The number of Fetch requests that no test has taken."""
        return self._fetches.qsize()

    def close(self) -> None:
        self._server.stop()
        for sock in self._accepted:
            with suppress(OSError):  # closed already
                sock.shutdown(socket.SHUT_RDWR)

    def _serve(self, sock: socket.socket, _: object) -> None:
        self._accepted.append(sock)
        with suppress(OSError):  # the client disconnected, or the test is over
            self._respond_to_all(sock)

    def _respond_to_all(self, sock: socket.socket) -> None:
        reader = sock.makefile("rb")
        while len(head := reader.read(4)) == 4:
            data = reader.read(struct.unpack(">i", head)[0])
            key, version = struct.unpack_from(">hh", data)
            request = REQUESTS[key].decode(data, version=version, header=True)
            request.API_VERSION = version
            self._cluster.requests[key] += 1
            if key in self.disconnects:
                self.disconnects.remove(key)
                sock.shutdown(socket.SHUT_RDWR)
            elif key == FETCH:
                if sock not in self.connections:
                    self.connections.append(sock)
                self._fetches.put(PendingFetch(sock, request))
            elif key not in self.silent:
                sock.sendall(_encoded(request, self._cluster.respond(key, request)))
                self._cluster.on_request.get(key, lambda: None)()


class FakeCluster:
    """Brokers and topics.

    Attributes:
        topics: by name. A test may change them at any time.
        on_request: called after the response to each request, by API key.
        advertised: the host and the port of the brokers in the metadata, instead of their own.
    """

    def __init__(self, brokers: int = 1) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.requests: Counter[int] = Counter()
        self.on_request: dict[int, Callable[[], object]] = {}
        self.versions = dict(VERSIONS)
        self.advertised: tuple[str, int] | None = None
        self.brokers = [FakeBroker(self, node_id) for node_id in range(brokers)]

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.brokers[0].port}"

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()

    def restart(self, node_id: int) -> None:
        """Start a closed broker again, at the same port."""
        self.brokers[node_id] = FakeBroker(self, node_id, self.brokers[node_id].port)

    def respond(self, key: int, request: Any) -> Any:
        if key == API_VERSIONS:
            return self._versions()
        respond = {
            METADATA: self._metadata,
            LIST_OFFSETS: self._list_offsets,
            OFFSET_FOR_LEADER_EPOCH: self._epoch_ends,
        }
        return respond[key](request)

    def _versions(self) -> ApiVersionsResponse:
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=last)
            for key, last in self.versions.items()
        ]
        return ApiVersionsResponse(version=0, error_code=0, api_keys=keys, throttle_time_ms=0)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        names = [topic.name for topic in request.topics] if request.topics is not None else list(self.topics)
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=broker.node_id, host=host, port=port, rack=None)
            for broker in self.brokers
            for host, port in [self.advertised or (HOST, broker.port)]
        ]
        return MetadataResponse(
            version=0, throttle_time_ms=0, brokers=brokers, cluster_id="fake", controller_id=0,
            topics=[self._topic(name) for name in names], authorized_operations=set(), error_code=0,
        )  # fmt: skip

    def _topic(self, name: str) -> Any:
        response_class = MetadataResponse.MetadataResponseTopic
        rest = {"name": name, "is_internal": False, "authorized_operations": set()}
        topic = self.topics.get(name)
        if topic is None or topic.error:
            error = topic.error if topic else UNKNOWN_TOPIC_OR_PARTITION
            return response_class(error_code=error, topic_id=UUID(int=0), partitions=[], **rest)
        partitions = [
            response_class.MetadataResponsePartition(
                error_code=5 if leader == NO_LEADER else 0, partition_index=number, leader_id=leader,
                leader_epoch=topic.epochs.get(number, 0), replica_nodes=[0], isr_nodes=[0], offline_replicas=[],
            )
            for number, leader in enumerate(topic.leaders)
        ]  # fmt: skip
        return response_class(error_code=0, topic_id=topic.id, partitions=partitions, **rest)

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        response_class = ListOffsetsResponse.ListOffsetsTopicResponse
        topics = []
        for requested in request.topics:
            topic = self.topics[requested.name]
            partitions = [
                response_class.ListOffsetsPartitionResponse(
                    partition_index=partition.partition_index, error_code=topic.list_offsets_error, timestamp=-1,
                    leader_epoch=0, offset=topic.offset_range[0 if partition.timestamp == EARLIEST else 1],
                )
                for partition in requested.partitions
            ]  # fmt: skip
            topics.append(response_class(name=requested.name, partitions=partitions))
        return ListOffsetsResponse(version=0, throttle_time_ms=0, topics=topics)

    def _epoch_ends(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        response_class = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        topics = []
        for requested in request.topics:
            ends = self.topics[requested.topic].epoch_ends
            partitions = [
                response_class.EpochEndOffset(
                    partition=partition.partition, error_code=error, leader_epoch=epoch, end_offset=end_offset
                )
                for partition in requested.partitions
                for error, epoch, end_offset in [ends[partition.partition]]
            ]  # fmt: skip
            topics.append(response_class(topic=requested.topic, partitions=partitions))
        return OffsetForLeaderEpochResponse(version=0, throttle_time_ms=0, topics=topics)


def _encoded(request: Any, response: Any) -> bytes:
    response.API_VERSION = request.API_VERSION
    response.with_header(correlation_id=request.header.correlation_id)
    data: bytes = response.encode(header=True, framed=True)
    return data
