"""Streams as a client sees them: a real server, a real Kafka, real sockets."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import quote

import pytest

from kafkasse.log import Partition
from kafkasse.position import PartitionStart
from tests.support.client import Client, ask, data, same_for_both
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import eventually

Connect = Callable[..., Client]


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    return serve(heartbeat_s=0.3)


def value(n: int) -> bytes:
    return b'{"n":%d}' % n


def fill(cluster: Cluster, topic: str, count: int, partitions: int = 3) -> None:
    for n in range(count):
        cluster.send(topic, value(n), partition=n % partitions)


# The beginning.


def test_the_beginning_of_a_response(connect: Connect, topic: str) -> None:
    """Before any record there are the header, a comment, the time to wait, and an id of all partitions."""
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


def test_starts_at_the_end(connect: Connect, cluster: Cluster, topic: str) -> None:
    """A client without an id gets what comes from now on, whoever came before it."""
    fill(cluster, topic, 3)
    first = connect(f"/{topic}").ready()
    cluster.send(topic, value(8))
    assert [8] == data(first.events(1))
    second = connect(f"/{topic}").ready()

    cluster.send(topic, value(9))

    assert [9] == data(first.events(1)) == data(second.events(1))


def test_nothing_is_lost_after_ok(connect: Connect, cluster: Cluster, topic: str) -> None:
    """A record that is written as soon as `:ok` is there arrives, 20 times of 20; with KafkaSSE none did."""
    for n in range(20):
        with connect(f"/{topic}") as stream:
            stream.until_said(b":ok")
            cluster.send(topic, value(n), partition=n % 3)

            assert [n] == data(stream.events(1))


def test_heartbeats(connect: Connect, topic: str) -> None:
    """Silence is broken by comments, which no client takes for events."""
    stream = connect(f"/{topic}")

    stream.until_said(b":heartbeat\n\n", times=2)

    assert same_for_both(stream)


# Records.


def test_a_record(connect: Connect, cluster: Cluster, topic: str) -> None:
    """The value, with where it comes from: topic, partition, offset, time and key."""
    stream = connect(f"/{topic}").ready()
    cluster.send(topic, b'{"name":"France","size":9007199254740993}', key=b"FR", timestamp_ms=1_790_000_000_000)

    [event] = stream.events(1)

    where = f'{{"topic":"{topic}","partition":0,"offset":0,"timestamp":1790000000000,"key":"FR"}}'
    assert ("message", f'{{"name":"France","size":9007199254740993,"_kafka":{where}}}') == (event.type, event.data)


def test_records_that_try_to_be_more(connect: Connect, cluster: Cluster, topic: str) -> None:
    """Line breaks, fields and ids within a value stay within its event."""
    stream = connect(f"/{topic}").ready()
    cluster.send(topic, b'{"n":1,\r"a":\r\r"id: 0",\n\n"event: x\\n\\ndata: y":"\xe2\x80\xa8"}', value(2))

    events = stream.events(2)

    assert [1, 2] == data(events)
    assert "id: 0" == json.loads(events[0].data)["a"]
    assert same_for_both(stream)


def test_tombstones_and_values_that_are_skipped(connect: Connect, cluster: Cluster, topic: str) -> None:
    """A record without a value is a delete event; one that is no JSON is passed over, and the id with it."""
    stream = connect(f"/{topic}").ready()
    cluster.send(topic, b"no JSON", b"\xff")
    cluster.send(topic, None, key=b"FR")

    [event] = stream.events(1)

    assert ("delete", "FR") == (event.type, json.loads(event.data)["_kafka"]["key"])
    assert PartitionStart(3) == stream.position[Partition(topic, 0)]


def test_a_heartbeat_tells_what_was_skipped(connect: Connect, cluster: Cluster, topic: str) -> None:
    """Records that are not sent move the id all the same: a client that comes back does not read them again."""
    stream = connect(f"/{topic}").ready()
    cluster.send(topic, b"no JSON")
    cluster.transaction(topic, b"{}", commit=False)

    stream.until(lambda: (stream.position[Partition(topic, 0)].offset or 0) >= 3)

    assert b"data:" not in stream.body


def test_lines(connect: Connect, cluster: Cluster, topic: str) -> None:
    """Who accepts JSON gets lines of it; between them empty ones, for heartbeats."""
    stream = connect(f"/{topic}", Accept="application/json")
    stream.until_said(b"\n")
    cluster.send(topic, b'{\n"n":1\r}')
    stream.until_said(b"}}\n")

    assert "application/json; charset=utf-8" == stream.headers["content-type"]
    assert [1] == [json.loads(line)["n"] for line in stream.body.split(b"\n") if line]


def test_every_partition_and_topic(connect: Connect, cluster: Cluster, fresh_name: str) -> None:
    """A stream of several topics holds all of their partitions, in its records and in its ids."""
    a, b = cluster.create(f"{fresh_name}-a", 2), cluster.create(f"{fresh_name}-b", 1)
    stream = connect(f"/{a},{b}").ready()
    every = [Partition(a, 0), Partition(a, 1), Partition(b, 0)]
    assert every == list(stream.position)

    for n, partition in enumerate(every):
        cluster.send(partition.topic, value(n), partition=partition.partition)

    assert {0, 1, 2} == set(data(stream.events(3)))
    assert dict.fromkeys(every, PartitionStart(1)) == stream.position


# Coming back.


def test_every_id_gives_the_rest(server: Server, connect: Connect, cluster: Cluster, topic: str) -> None:
    """From the id of each event on, a client gets exactly the others: in the partition's order, none twice."""
    fill(cluster, topic, 9)
    events = connect(f"/{topic}?timestamp=0").events(9)

    for at, event in enumerate(events):
        with Client(server.port, "/ignored", Last_Event_ID=event.id) as resumed:
            cluster.send(topic, value(100 + at))
            expected = sorted([*data(events[at + 1 :]), *range(100, 101 + at)])
            assert expected == sorted(data(resumed.events(len(expected))))


def test_a_partition_without_a_message(server: Server, connect: Connect, cluster: Cluster, topic: str) -> None:
    """What is written to an idle partition while the client is away is not lost: KafkaSSE goes on at its end."""
    with connect(f"/{topic}") as stream:
        cluster.send(topic, value(1))
        [event] = stream.ready().events(1)
    cluster.send(topic, value(2), partition=2)

    assert [2] == data(connect(f"/{topic}", Last_Event_ID=event.id).events(1))


def test_the_first_id_will_do(connect: Connect, cluster: Cluster, topic: str) -> None:
    """A client that saw no event at all comes back without a gap."""
    with connect(f"/{topic}") as stream:
        first = stream.ready().last_id
    fill(cluster, topic, 3)

    assert {0, 1, 2} == set(data(connect(f"/{topic}", Last_Event_ID=first).events(3)))


@pytest.mark.parametrize("name", ["last_event_id", "lastEventId"])
def test_an_id_in_the_address(connect: Connect, cluster: Cluster, topic: str, name: str) -> None:
    """Where the header cannot be set, a parameter stands in for it; and the header wins over it."""
    fill(cluster, topic, 2, 1)
    entry = '[{"topic":"%s","partition":0,"offset":%d}]'
    path = f"/{topic}?{name}={quote(entry % (topic, 1))}"

    assert [1] == data(connect(path).events(1))
    assert [0] == data(connect(path, Last_Event_ID=entry % (topic, 0)).events(1))


@pytest.fixture(scope="module")
def other(serve: Callable[..., Server]) -> Server:
    """A server that writes its ids otherwise."""
    return serve(id_type="timestamp", compact_ids=True)


def test_ids_of_any_kind(connect: Connect, cluster: Cluster, other: Server, topic: str) -> None:
    """Compact ids of times have no quotes in them, and go on behind the last record, at any server."""
    with Client(other.port, f"/{topic}") as stream:
        stream.ready()
        cluster.send(topic, value(1), partition=1)
        stream.events(1)
    cluster.send(topic, value(2), partition=1)
    compact = stream.last_id

    assert "~" == compact[0]
    assert compact[1:].replace("-", "").replace("_", "").isalnum()
    assert {Partition(topic, index): None for index in range(3)} == {p: s.offset for p, s in stream.position.items()}
    assert [2] == data(connect(f"/{topic}", Last_Event_ID=compact).events(1))
    with Client(other.port, f"/{topic}", Last_Event_ID=compact) as resumed:
        assert [2] == data(resumed.events(1))


def test_an_id_of_many_partitions(connect: Connect, cluster: Cluster, fresh_name: str) -> None:
    """A topic of 120 partitions has ids that fit into a header, and that go on; Zilla's engine ends with it."""
    cluster.create(fresh_name, 120)
    with connect(f"/{fresh_name}") as stream:
        stream.ready()
    cluster.send(fresh_name, value(1), partition=119)

    assert 120 == len(stream.position)
    assert len(stream.last_id) < 4096
    assert [1] == data(connect(f"/{fresh_name}", Last_Event_ID=stream.last_id).events(1))


def test_many_clients(server: Server, cluster: Cluster, topic: str) -> None:
    """Two hundred clients at once each get every record; of KafkaSSE's five hundred each got a third."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(server.port, f"/{topic}")).ready() for _ in range(200)]
        for n in range(10):
            cluster.send(topic, value(n))

        assert [list(range(10))] * 200 == [data(client.events(10)) for client in clients]


# Beginning elsewhere.


@pytest.fixture
def timed(cluster: Cluster, topic: str) -> str:
    """A topic whose first partition has records of the times 1000, 2000 and 3000."""
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
def test_since_a_time(connect: Connect, cluster: Cluster, timed: str, query: str, records: list[int]) -> None:
    """The first record at or after the time, and the end after the last one."""
    stream = connect(f"/{timed}?{query}").ready()
    cluster.send(timed, value(9))

    assert [*records, 9] == data(stream.events(len(records) + 1))


def test_entries_with_times_and_offsets(connect: Connect, cluster: Cluster, timed: str) -> None:
    """Times find their records; an entry with both goes by its offset, whatever stands beside it."""
    cluster.send(timed, value(10), value(11), partition=1)
    entries = [
        {"topic": timed, "partition": 0, "timestamp": 2000},
        {"topic": timed, "partition": 1, "offset": 1, "timestamp": 0},
    ]

    assert {2, 3, 11} == set(data(connect("/ignored", Last_Event_ID=json.dumps(entries)).events(3)))


def test_names_and_entries(connect: Connect, cluster: Cluster, timed: str, fresh_name: str) -> None:
    """A name in an id stands for all partitions of its topic, from the end."""
    other = cluster.create(f"{fresh_name}-other", 2)
    cluster.send(other, value(0))
    entries = [other, {"topic": timed, "partition": 0, "offset": 2}]
    stream = connect("/ignored", Last_Event_ID=json.dumps(entries)).ready()
    cluster.send(other, value(5), partition=1)

    assert {3, 5} == set(data(stream.events(2)))
    assert {Partition(timed, 0), Partition(other, 0), Partition(other, 1)} == set(stream.position)


def test_a_topic_in_capitals_and_dots(connect: Connect, cluster: Cluster, fresh_name: str) -> None:
    """Every name that Kafka takes can be asked for."""
    name = cluster.create(f"A.b_C-{fresh_name}")
    cluster.send(name, value(1))

    assert [1] == data(connect(f"/{name}?timestamp=0").events(1))


# What happens to topics.


def test_records_that_retention_took(connect: Connect, cluster: Cluster, topic: str) -> None:
    """A client whose next record is gone is told which are lost, and goes on behind them."""
    fill(cluster, topic, 5, 1)  # before anybody follows: what the ring holds is not lost to retention
    with connect(f"/{topic}?timestamp=0") as stream:
        before = stream.ready().events(1)[0].id
    cluster.drop_before(topic, 3)

    gap, *rest = connect(f"/{topic}", Last_Event_ID=before).events(3)

    lost = {"topic": topic, "partition": 0, "from": 1, "to": 3, "reason": "removed by retention"}
    assert ("gap", lost) == (gap.type, json.loads(gap.data))
    assert [3, 4] == data(rest)
    assert [3, 4] == data(connect(f"/{topic}", Last_Event_ID=gap.id).events(2))


def test_a_new_partition(connect: Connect, cluster: Cluster, topic: str) -> None:
    """A partition that is added under a stream's eyes is read from its first record."""
    stream = connect(f"/{topic}").ready()
    cluster.grow(topic, 4)
    cluster.send(topic, value(1), partition=3)

    assert [1] == data(stream.events(1))
    assert PartitionStart(1) == stream.position[Partition(topic, 3)]


def test_a_partition_that_was_added_while_one_was_away(connect: Connect, cluster: Cluster, topic: str) -> None:
    """It is read from its first record, too, and not from its end."""
    with connect(f"/{topic}") as stream:
        before = stream.ready().last_id
    cluster.grow(topic, 4)
    cluster.send(topic, value(1), partition=3)

    assert [1] == data(connect(f"/{topic}", Last_Event_ID=before).events(1))


def test_a_topic_that_is_deleted(connect: Connect, cluster: Cluster, topic: str) -> None:
    """The stream ends with an error that says so; KafkaSSE is silent for ever."""
    stream = connect(f"/{topic}").ready()
    cluster.delete(topic)

    [error] = stream.rest()

    assert ("error", 410, [topic]) == (
        error.type,
        json.loads(error.data)["status"],
        json.loads(error.data)["topics"],
    )


def test_a_topic_that_is_made_again(connect: Connect, cluster: Cluster, topic: str) -> None:
    """The stream ends with an id of the old topic, which gives a gap and then all of the new one: no old offset is used."""
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
    assert [0, 1, 2, 3, 4] == data(rest)


# Other methods.


def test_head_and_options_make_no_consumer(serve: Callable[..., Server], topic: str) -> None:
    """They open no connection to Kafka; a GET of the same topic does, so that one would see it."""
    server = serve()
    with Client(server.port, f"/{topic}", "HEAD") as first:
        before = server.sockets()
        first.close()

    answers = [ask(server.port, f"/{topic}", method) for method in ("HEAD", "OPTIONS", "HEAD")]
    with Client(server.port, f"/{topic}", "HEAD"):
        after = server.sockets()
    with Client(server.port, f"/{topic}") as stream:
        stream.ready()

        assert [200, 204, 200] == [answer.status for answer in answers]
        assert [b""] * 3 == [answer.body for answer in answers]
        assert before == after
        eventually(lambda: server.sockets() > after)
