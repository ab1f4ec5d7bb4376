"""Our Fetch messages compared with those of kafka-python, whose codec is generated from Kafka's schema."""

from __future__ import annotations

import contextlib
from itertools import groupby
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest, FetchResponse

from kafkasse.kafka import fetch_protocol
from kafkasse.kafka.fetch_protocol import BY_NAME, NO_REPLICA, VERSIONS, FetchOptions, FetchPartition, PartitionData
from kafkasse.kafka.fetch_protocol import FetchResponse as ParsedResponse
from tests.support.examples import examples

NAMES = ["t", "u" * 249, "ü"]
FIRST_WITH_SESSIONS, FIRST_WITH_REPLICAS, FIRST_WITH_DIVERGENCE = 7, 11, 12
IDS = [UUID(int=number) for number in (1, 2**127, 2**128 - 1)]
INT32 = st.integers(-1, 2**31 - 1)
INT64 = st.integers(-1, 2**63 - 1)
COUNTS = st.sampled_from([0, 1, 2, 126, 127, 128, 300])  # around the values where a length takes a second byte
OPTIONS = st.builds(FetchOptions, INT32, INT32, INT32, st.integers(0, 1), st.sampled_from(["", "rack 1"]))

Topic, Response = FetchRequest.FetchTopic, FetchResponse.FetchableTopicResponse


def encoded_topic(version: int, topic: int) -> bytes:
    return NAMES[topic].encode() if version <= BY_NAME else IDS[topic].bytes


def of_topic(version: int, topic: int) -> dict:
    return {"topic": NAMES[topic]} if version <= BY_NAME else {"topic_id": IDS[topic]}


@pytest.mark.parametrize("version", VERSIONS)
@given(
    options=OPTIONS,
    session=st.tuples(INT32, INT32),
    topics=st.lists(st.tuples(st.integers(0, 2), COUNTS), max_size=3, unique_by=lambda pair: pair[0]),
    position=st.tuples(INT32, INT64, INT32),
)
@settings(max_examples=examples(30))
def test_encodes_requests_like_kafka_python(version, options, session, topics, position):
    epoch, offset, last_epoch = position
    partitions = [
        FetchPartition(encoded_topic(version, topic), number, epoch, offset, last_epoch)
        for topic, n in topics
        for number in range(n)
    ]
    forgotten = [(encoded_topic(version, topic), number) for topic, n in topics for number in range(n)]

    to_encode = fetch_protocol.FetchRequest(version, options, session, partitions, forgotten)
    written = fetch_protocol.frame_request(version, 7, b"kafkasse", fetch_protocol.encode_request(to_encode))

    def partition(number):
        return Topic.FetchPartition(
            partition=number, current_leader_epoch=epoch, fetch_offset=offset, last_fetched_epoch=last_epoch,
            log_start_offset=-1, partition_max_bytes=options.max_partition_bytes,
        )  # fmt: skip

    asked = [(topic, list(range(n))) for topic, n in topics if n]
    request = FetchRequest(
        version=version, replica_id=-1, max_wait_ms=options.max_wait_ms, min_bytes=1, max_bytes=options.max_bytes,
        isolation_level=options.isolation_level, session_id=session[0], session_epoch=session[1], rack_id=options.rack,
        topics=[Topic(**of_topic(version, topic), partitions=list(map(partition, numbers))) for topic, numbers in asked],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(**of_topic(version, topic), partitions=numbers) for topic, numbers in asked
        ],
    )  # fmt: skip
    request.API_VERSION = version
    request.with_header(correlation_id=7, client_id="kafkasse")
    assert request.encode(framed=True, header=True) == written


FETCHED = st.builds(
    PartitionData,
    topic=st.integers(0, 2),
    partition=INT32,
    error_code=st.integers(-1, 110),
    records=COUNTS.map(lambda count: b"r" * count),
    aborted=st.lists(st.tuples(INT64, INT64), max_size=3),
    replica=st.integers(-1, 5),
    diverging=st.none() | st.tuples(st.integers(0, 2**31 - 1), INT64),
    stable_end=INT64,
)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    head=st.tuples(INT32, INT32, st.integers(-1, 110), INT32),
    fetched=st.lists(FETCHED, max_size=5).map(lambda partitions: sorted(partitions, key=lambda one: one.topic)),
)
@settings(max_examples=examples(30))
def test_parses_responses_of_kafka_python(version, head, fetched):
    correlation_id, throttle_ms, error_code, session_id = head

    answer = fetch_protocol.parse_response(version, memoryview(encoded(version, head, fetched)))

    if version < FIRST_WITH_SESSIONS:
        error_code = session_id = 0
    assert ParsedResponse(correlation_id, throttle_ms, error_code, session_id, answer.partitions) == answer
    assert [in_version(version, partition) for partition in fetched] == [
        partition._replace(records=bytes(partition.records)) for partition in answer.partitions
    ]


def in_version(version: int, partition: PartitionData) -> PartitionData:
    """Return what a response of this version can contain."""
    return partition._replace(
        topic=encoded_topic(version, partition.topic),
        replica=partition.replica if version >= FIRST_WITH_REPLICAS else NO_REPLICA,
        diverging=partition.diverging if version >= FIRST_WITH_DIVERGENCE else None,
    )


def encoded(version: int, head: tuple[int, int, int, int], fetched: list[PartitionData]) -> bytes:
    correlation_id, throttle_ms, error_code, session_id = head
    response = FetchResponse(
        version=version, throttle_time_ms=throttle_ms, error_code=error_code, session_id=session_id,
        responses=[
            Response(**of_topic(version, topic), partitions=[data(version, one) for one in group])
            for topic, group in groupby(fetched, key=lambda one: one.topic)
        ],
    )  # fmt: skip
    response.API_VERSION = version
    response.with_header(correlation_id=correlation_id)
    return response.encode(header=True)


def data(version: int, fetched: PartitionData) -> Response.PartitionData:
    response_class = Response.PartitionData
    rest = {}
    if fetched.diverging is not None and version >= FIRST_WITH_DIVERGENCE:
        rest["diverging_epoch"] = response_class.EpochEndOffset(
            epoch=fetched.diverging[0], end_offset=fetched.diverging[1]
        )
    aborted = [response_class.AbortedTransaction(producer_id=one, first_offset=two) for one, two in fetched.aborted]
    return response_class(
        partition_index=fetched.partition, error_code=fetched.error_code, high_watermark=9,
        last_stable_offset=fetched.stable_end, log_start_offset=0, preferred_read_replica=fetched.replica,
        records=fetched.records, aborted_transactions=aborted,
        **rest,
    )  # fmt: skip


@given(version=st.sampled_from(VERSIONS), garbage=st.binary(max_size=200))
def test_survives_random_bytes(version, garbage):
    """Random bytes result in a response or in one of the errors in MALFORMED, and never in a hang."""
    with contextlib.suppress(fetch_protocol.MALFORMED):
        fetch_protocol.parse_response(version, memoryview(garbage))


@given(version=st.sampled_from(VERSIONS), changes=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4))
def test_survives_changed_bytes(version, changes):
    """The same is true of a response with some wrong bytes: no length makes the parser go backwards or loop."""
    whole = bytearray(encoded(version, (1, 0, 0, 5), [PartitionData(0, 0, 0, b"r" * 20, [(1, 2)], (7, 8))] * 2))
    for at, byte in changes:
        whole[at % len(whole)] = byte

    with contextlib.suppress(fetch_protocol.MALFORMED):
        fetch_protocol.parse_response(version, memoryview(whole))


@pytest.mark.parametrize("version", VERSIONS[FIRST_WITH_DIVERGENCE - VERSIONS[0] :])
def test_rejects_tagged_fields_in_the_header(version):
    """No version has any."""
    whole = bytearray(encoded(version, (1, 0, 0, 5), [PartitionData(0, 0, 0, b"r", [], None)]))
    whole[4] = 1

    with pytest.raises(fetch_protocol.MALFORMED):
        fetch_protocol.parse_response(version, memoryview(whole))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("contents", [(b"r" * 200, [(1, 2)], (7, 8)), (b"r", [], None), (None, [], None)])
def test_rejects_a_truncated_response(version, contents):
    whole = encoded(version, (1, 0, 0, 5), [PartitionData(0, 0, 0, *contents)])

    for size in range(len(whole)):
        with pytest.raises(fetch_protocol.MALFORMED):
            fetch_protocol.parse_response(version, memoryview(whole[:size]))
