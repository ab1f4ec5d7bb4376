"""Streams as a client sees them, over real sockets from a real server and a real broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import quote

import pytest

from kafkasse.log import Partition
from kafkasse.position import PartitionStart
from tests.support.client import Client, fetch, numbers, parsers_agree
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import wait_until

Connect = Callable[..., Client]


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    return serve(heartbeat_s=0.3)


def value(n: int) -> bytes:
    return b'{"n":%d}' % n


def fill(cluster: Cluster, topic: str, count: int, partitions: int = 3) -> None:
    for n in range(count):
        cluster.send(topic, value(n), partition=n % partitions)


# The start of a stream.


def test_a_response_starts_with_a_comment_a_retry_time_and_an_id(connect: Connect, topic: str) -> None:
    """Before the first record, the client gets the header, `:ok`, a reconnection time and an event ID of all partitions."""
    stream = connect(f"/{topic}").ready()

    assert 200 == stream.status
    assert stream.body.startswith(b":ok\n\nretry: ")
    expected = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-store, no-transform",
        "x-accel-buffering": "no",
    }
    assert expected.items() <= stream.headers.items()
    assert "content-length" not in stream.headers
    assert {Partition(topic, index): PartitionStart(0) for index in range(3)} == stream.position


def test_a_client_without_an_id_starts_at_the_end(connect: Connect, cluster: Cluster, topic: str) -> None:
    """A client without an event ID gets only new records, whether other clients already read the topic or not."""
    fill(cluster, topic, 3)
    first = connect(f"/{topic}").ready()
    cluster.send(topic, value(8))
    assert [8] == numbers(first.events(1))
    second = connect(f"/{topic}").ready()

    cluster.send(topic, value(9))

    assert [9] == numbers(first.events(1)) == numbers(second.events(1))


def test_nothing_is_lost_after_ok(connect: Connect, cluster: Cluster, topic: str) -> None:
    """A record that is written right after `:ok` arrives, 20 times out of 20. KafkaSSE lost every one of them."""
    for n in range(20):
        with connect(f"/{topic}") as stream:
            stream.read_until_text(b":ok")
            cluster.send(topic, value(n), partition=n % 3)

            assert [n] == numbers(stream.events(1))


def test_sends_heartbeats(connect: Connect, topic: str) -> None:
    """While no records are written, the server sends comments, which no client takes for events."""
    stream = connect(f"/{topic}")

    stream.read_until_text(b":heartbeat\n\n", times=2)

    assert parsers_agree(stream)


# Records.


def test_an_event_holds_the_value_and_its_metadata(connect: Connect, cluster: Cluster, topic: str) -> None:
    """The data is the value with the record's topic, partition, offset, timestamp and key."""
    stream = connect(f"/{topic}").ready()
    cluster.send(topic, b'{"name":"France","size":9007199254740993}', key=b"FR", timestamp_ms=1_790_000_000_000)

    [event] = stream.events(1)

    where = f'{{"topic":"{topic}","partition":0,"offset":0,"timestamp":1790000000000,"key":"FR"}}'
    assert ("message", f'{{"name":"France","size":9007199254740993,"_kafka":{where}}}') == (event.type, event.data)


def test_a_value_cannot_add_fields_or_events(connect: Connect, cluster: Cluster, topic: str) -> None:
    """Line breaks, field names and IDs in a value stay in the data of its event."""
    stream = connect(f"/{topic}").ready()
    cluster.send(topic, b'{"n":1,\r"a":\r\r"id: 0",\n\n"event: x\\n\\ndata: y":"\xe2\x80\xa8"}', value(2))

    events = stream.events(2)

    assert [1, 2] == numbers(events)
    assert "id: 0" == json.loads(events[0].data)["a"]
    assert parsers_agree(stream)


def test_a_tombstone_is_a_delete_event_and_invalid_json_is_skipped(
    connect: Connect, cluster: Cluster, topic: str
) -> None:
    """A record without a value is a delete event. A value that is not JSON is skipped, and the next event ID passes it."""
    stream = connect(f"/{topic}").ready()
    cluster.send(topic, b"no JSON", b"\xff")
    cluster.send(topic, None, key=b"FR")

    [event] = stream.events(1)

    assert ("delete", "FR") == (event.type, json.loads(event.data)["_kafka"]["key"])
    assert 3 == stream.position[Partition(topic, 0)].offset


def test_a_heartbeat_moves_the_id_past_skipped_records(connect: Connect, cluster: Cluster, topic: str) -> None:
    """Skipped records move the event ID, so a client that reconnects does not read them again."""
    stream = connect(f"/{topic}").ready()
    cluster.send(topic, b"no JSON")
    cluster.transaction(topic, b"{}", commit=False)

    stream.read_until(lambda: (stream.position[Partition(topic, 0)].offset or 0) >= 3)

    assert b"event: message" not in stream.body


def test_sends_json_lines_on_request(connect: Connect, cluster: Cluster, topic: str) -> None:
    """With `Accept: application/json` each record is a line of JSON, and an empty line is a heartbeat."""
    stream = connect(f"/{topic}", Accept="application/json")
    stream.read_until_text(b"\n")
    cluster.send(topic, b'{\n"n":1\r}')
    stream.read_until_text(b"}}\n")

    assert "application/json; charset=utf-8" == stream.headers["content-type"]
    assert [1] == [json.loads(line)["n"] for line in stream.body.split(b"\n") if line]


def test_a_stream_of_several_topics(connect: Connect, cluster: Cluster, fresh_name: str) -> None:
    """The records and the event IDs cover all partitions of all topics of the stream."""
    a, b = cluster.create(f"{fresh_name}-a", 2), cluster.create(f"{fresh_name}-b", 1)
    stream = connect(f"/{a},{b}").ready()
    every = [Partition(a, 0), Partition(a, 1), Partition(b, 0)]
    assert every == list(stream.position)

    for n, partition in enumerate(every):
        cluster.send(partition.topic, value(n), partition=partition.partition)

    assert {0, 1, 2} == set(numbers(stream.events(3)))
    assert dict.fromkeys(every, 1) == {partition: start.offset for partition, start in stream.position.items()}


# Resuming.


def test_resumes_after_any_event(server: Server, connect: Connect, cluster: Cluster, topic: str) -> None:
    """With the ID of any event, a client gets exactly the following events, in order and none twice."""
    fill(cluster, topic, 9)
    events = connect(f"/{topic}?timestamp=0").events(9)

    for at, event in enumerate(events):
        with Client(server.port, "/ignored", Last_Event_ID=event.id) as resumed:
            cluster.send(topic, value(100 + at))
            expected = sorted([*numbers(events[at + 1 :]), *range(100, 101 + at)])
            assert expected == sorted(numbers(resumed.events(len(expected))))


def test_resumes_in_a_partition_without_events(server: Server, connect: Connect, cluster: Cluster, topic: str) -> None:
    """A record in a partition that was empty when the client left is not lost. KafkaSSE starts at that partition's end."""
    with connect(f"/{topic}") as stream:
        cluster.send(topic, value(1))
        [event] = stream.ready().events(1)
    cluster.send(topic, value(2), partition=2)

    assert [2] == numbers(connect(f"/{topic}", Last_Event_ID=event.id).events(1))


def test_resumes_from_the_first_id(connect: Connect, cluster: Cluster, topic: str) -> None:
    """A client that has received no event resumes without a gap."""
    with connect(f"/{topic}") as stream:
        first = stream.ready().last_id
    fill(cluster, topic, 3)

    assert {0, 1, 2} == set(numbers(connect(f"/{topic}", Last_Event_ID=first).events(3)))


@pytest.mark.parametrize("name", ["last_event_id", "lastEventId"])
def test_an_id_in_the_url(connect: Connect, cluster: Cluster, topic: str, name: str) -> None:
    """A client that cannot set the header sends the event ID as a parameter. The header takes precedence."""
    fill(cluster, topic, 2, 1)
    entry = '[{"topic":"%s","partition":0,"offset":%d}]'
    path = f"/{topic}?{name}={quote(entry % (topic, 1))}"

    assert [1] == numbers(connect(path).events(1))
    assert [0] == numbers(connect(path, Last_Event_ID=entry % (topic, 0)).events(1))


@pytest.fixture(scope="module")
def other(serve: Callable[..., Server]) -> Server:
    """A server whose event IDs are compact and contain timestamps."""
    return serve(id_type="timestamp", compact_ids=True)


def test_resumes_from_a_compact_id_of_timestamps(connect: Connect, cluster: Cluster, other: Server, topic: str) -> None:
    """The compact ID has no quotes in it, and any server resumes after the last record."""
    with Client(other.port, f"/{topic}") as stream:
        stream.ready()
        cluster.send(topic, value(1), partition=1)
        stream.events(1)
    cluster.send(topic, value(2), partition=1)
    compact = stream.last_id

    assert re.fullmatch("~~[A-Za-z0-9_-]+~", compact)
    # Partitions from which the stream has read no record have an offset, because their timestamp is not known.
    assert [0, None, 0] == [stream.position[Partition(topic, index)].offset for index in range(3)]
    assert [2] == numbers(connect(f"/{topic}", Last_Event_ID=compact).events(1))
    with Client(other.port, f"/{topic}", Last_Event_ID=compact) as resumed:
        assert [2] == numbers(resumed.events(1))


def test_an_id_of_120_partitions_fits_in_a_header(connect: Connect, cluster: Cluster, fresh_name: str) -> None:
    """The event ID of a topic with 120 partitions fits in a header field. Zilla's engine fails on such a topic."""
    cluster.create(fresh_name, 120)
    with connect(f"/{fresh_name}") as stream:
        stream.ready()
    cluster.send(fresh_name, value(1), partition=119)

    assert 120 == len(stream.position)
    assert len(stream.last_id) < 4096
    assert [1] == numbers(connect(f"/{fresh_name}", Last_Event_ID=stream.last_id).events(1))


def test_two_hundred_clients_get_every_record(server: Server, cluster: Cluster, topic: str) -> None:
    """Each of 200 clients gets every record. Of 500 clients of KafkaSSE, each got a third."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server.port, f"/{topic}")).ready() for _ in range(200)]
        for n in range(10):
            cluster.send(topic, value(n))

        assert [list(range(10))] * 200 == [numbers(client.events(10)) for client in clients]


# Start positions.


@pytest.fixture
def timed(cluster: Cluster, topic: str) -> str:
    """A topic whose first partition has records with the timestamps 1000, 2000 and 3000."""
    for n in (1, 2, 3):
        cluster.send(topic, value(n), timestamp_ms=1000 * n)
    return topic


@pytest.mark.parametrize(
    ("query", "records"),
    [
        ("timestamp=0", [1, 2, 3]),
        ("timestamp=2000", [2, 3]),
        ("timestamp=2001", [3]),
        ("timestamp=3001", []),
        ("since=1970-01-01T00:00:02Z", [2, 3]),
        ("since=1970-01-01T00:00:02.001Z", [3]),
    ],
)
def test_starts_at_a_timestamp(connect: Connect, cluster: Cluster, timed: str, query: str, records: list[int]) -> None:
    """The stream starts at the first record at or after the timestamp, or at the end if there is none."""
    stream = connect(f"/{timed}?{query}").ready()
    cluster.send(timed, value(9))

    assert [*records, 9] == numbers(stream.events(len(records) + 1))


def test_an_offset_takes_precedence_over_a_timestamp(connect: Connect, cluster: Cluster, timed: str) -> None:
    """An entry with a timestamp starts at that time. An entry that also has an offset starts at the offset."""
    cluster.send(timed, value(10), value(11), partition=1)
    entries = [
        {"topic": timed, "partition": 0, "timestamp": 2000},
        {"topic": timed, "partition": 1, "offset": 1, "timestamp": 0},
    ]

    assert {2, 3, 11} == set(numbers(connect("/ignored", Last_Event_ID=json.dumps(entries)).events(3)))


def test_a_topic_name_in_an_id_stands_for_all_its_partitions(
    connect: Connect, cluster: Cluster, timed: str, fresh_name: str
) -> None:
    """The stream of a topic that is given by name starts at its end."""
    other = cluster.create(f"{fresh_name}-other", 2)
    cluster.send(other, value(0))
    entries = [other, {"topic": timed, "partition": 0, "offset": 2}]
    stream = connect("/ignored", Last_Event_ID=json.dumps(entries)).ready()
    cluster.send(other, value(5), partition=1)

    assert {3, 5} == set(numbers(stream.events(2)))
    assert {Partition(timed, 0), Partition(other, 0), Partition(other, 1)} == set(stream.position)


def test_a_topic_name_with_capitals_dots_and_underscores(connect: Connect, cluster: Cluster, fresh_name: str) -> None:
    """Every name that is valid in Kafka is valid in a URL."""
    name = cluster.create(f"A.b_C-{fresh_name}")
    cluster.send(name, value(1))

    assert [1] == numbers(connect(f"/{name}?timestamp=0").events(1))


# Changes of topics.


def test_a_gap_event_reports_records_that_retention_removed(connect: Connect, cluster: Cluster, topic: str) -> None:
    """A client whose next record was removed gets a gap event with the lost offsets, and resumes after them."""
    fill(cluster, topic, 5, 1)  # before the first client: retention does not remove what the ring holds
    with connect(f"/{topic}?timestamp=0") as stream:
        before = stream.ready().events(1)[0].id
    cluster.drop_before(topic, 3)

    gap, *rest = connect(f"/{topic}", Last_Event_ID=before).events(3)

    lost = {"topic": topic, "partition": 0, "from": 1, "to": 3, "reason": "removed by retention"}
    assert ("gap", lost) == (gap.type, json.loads(gap.data))
    assert [3, 4] == numbers(rest)
    assert [3, 4] == numbers(connect(f"/{topic}", Last_Event_ID=gap.id).events(2))


def test_reads_a_new_partition_from_its_first_record(connect: Connect, cluster: Cluster, topic: str) -> None:
    """A partition that is added while the stream is open is read from its first record."""
    stream = connect(f"/{topic}").ready()
    cluster.grow(topic, 4)
    cluster.send(topic, value(1), partition=3)

    assert [1] == numbers(stream.events(1))
    assert 1 == stream.position[Partition(topic, 3)].offset


def test_resumes_at_the_start_of_a_partition_added_since(connect: Connect, cluster: Cluster, topic: str) -> None:
    """A partition that was added while the client was disconnected is read from its first record, not from its end."""
    with connect(f"/{topic}") as stream:
        before = stream.ready().last_id
    cluster.grow(topic, 4)
    cluster.send(topic, value(1), partition=3)

    assert [1] == numbers(connect(f"/{topic}", Last_Event_ID=before).events(1))


def test_a_deleted_topic_ends_the_stream(connect: Connect, cluster: Cluster, topic: str) -> None:
    """The last event is an error with status 410. KafkaSSE stays silent."""
    stream = connect(f"/{topic}").ready()
    cluster.delete(topic)

    [error] = stream.rest()

    assert ("error", 410, [topic]) == (
        error.type,
        json.loads(error.data)["status"],
        json.loads(error.data)["topics"],
    )


def test_resumes_in_a_recreated_topic_after_a_gap(connect: Connect, cluster: Cluster, topic: str) -> None:
    """The last ID of the deleted topic gives a gap and then all records of the new topic. No old offset is used."""
    fill(cluster, topic, 2, 1)
    stream = connect(f"/{topic}?timestamp=0")
    stream.events(2)
    cluster.delete(topic)
    cluster.create(topic, 3)
    fill(cluster, topic, 5, 1)
    stream.rest()

    events = connect(f"/{topic}", Last_Event_ID=stream.last_id).events(8)
    gaps, rest = events[:3], events[3:]

    assert {("gap", "the topic was deleted and recreated")} == {(e.type, json.loads(e.data)["reason"]) for e in gaps}
    assert [0, 1, 2, 3, 4] == numbers(rest)


# Other methods.


def test_head_and_options_open_no_connection_to_kafka(serve: Callable[..., Server], topic: str) -> None:
    """HEAD and OPTIONS open no connection. A GET of the same topic opens one, so the test would see it."""
    server = serve()
    with Client(server.port, f"/{topic}", "HEAD") as first:
        before = server.sockets()
        first.close()

    answers = [fetch(server.port, f"/{topic}", method) for method in ("HEAD", "OPTIONS", "HEAD")]
    with Client(server.port, f"/{topic}", "HEAD"):
        after = server.sockets()
    with Client(server.port, f"/{topic}") as stream:
        stream.ready()

        assert [200, 204, 200] == [answer.status for answer in answers]
        assert [b""] * 3 == [answer.body for answer in answers]
        assert before == after
        wait_until(lambda: server.sockets() > after)
