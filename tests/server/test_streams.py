"""Streams as a client sees them, over real sockets from a real server and a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from kafkasse.log import Partition
from kafkasse.records.position import Place
from kafkasse.web.headers import MAX_ACCEPT_CHARS
from kafkasse_client.sse import Parser
from tests.server.conftest import metric
from tests.support.client import Client, numbers, value
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import TIMEOUT_S
from tests.web.conftest import browser as browser

Connect = Callable[..., Client]
READ = """
const [path, done] = arguments, seen = [], source = new EventSource(path);
source.onmessage = (e) => { seen.push(JSON.parse(e.data).n); if (seen.length === 3) { source.close(); done(seen); } };
"""


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    return serve(heartbeat_s=0.3, compression=["zstd", "gzip"])


def fill(cluster: Cluster, topic: str, count: int, partitions: int = 3) -> None:
    for n in range(count):
        cluster.send(topic, value(n), partition=n % partitions)


# The start of a stream.


def test_a_response_starts_with_a_comment_a_retry_time_and_an_id(connect, topic):
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
    assert {Partition(topic, index): Place(0) for index in range(3)} == stream.position


# Records.


def test_an_event_holds_the_value_and_its_metadata(connect, cluster, topic):
    stream = connect(f"/{topic}").ready()
    cluster.send(topic, b'{"name":"France","size":9007199254740993}', key=b"FR", timestamp_ms=1_790_000_000_000)

    [event] = stream.events(1)

    where = f'{{"topic":"{topic}","partition":0,"offset":0,"timestamp":1790000000000,"key":"FR"}}'
    assert ("message", f'{{"name":"France","size":9007199254740993,"_kafka":{where}}}') == (event.type, event.data)


# Resuming.


def test_resumes_after_any_event(server, connect, cluster, topic):
    fill(cluster, topic, 9)
    events = connect(f"/{topic}?timestamp=0").events(9)

    for at, event in enumerate(events):
        with Client(server.port, "/ignored", Last_Event_ID=event.id) as resumed:
            cluster.send(topic, value(100 + at))
            expected = sorted([*numbers(events[at + 1 :]), *range(100, 101 + at)])
            assert expected == sorted(numbers(resumed.events(len(expected))))


# Start positions.


def test_starts_at_a_timestamp(connect, cluster, fresh_name):
    """The stream starts at the first record at or after it, or at the end if there is none. A name may have capitals."""
    topic = cluster.create(f"A.b_C-{fresh_name}", 3)
    for n in (1, 2, 3):
        cluster.send(topic, value(n), timestamp_ms=1000 * n)
    first = {"timestamp=0": 1, "timestamp=2000": 2, "timestamp=2001": 3, "timestamp=3001": 4}
    first |= {"since=1970-01-01T00:00:02Z": 2, "since=1970-01-01T00:00:02.001Z": 3}

    streams = {query: connect(f"/{topic}?{query}").ready() for query in first}
    cluster.send(topic, value(4))

    for query, n in first.items():
        assert list(range(n, 5)) == numbers(streams[query].events(5 - n)), query


# Changes of topics.


def test_a_gap_event_reports_records_that_retention_removed(server, connect, cluster, topic):
    """The metrics count it."""
    fill(cluster, topic, 5, 1)  # before the first client: retention does not remove what the ring holds
    with connect(f"/{topic}?timestamp=0") as stream:
        before = stream.ready().events(1)[0].id
    cluster.drop_before(topic, 3)

    gap, *rest = connect(f"/{topic}", Last_Event_ID=before).events(3)

    lost = {"topic": topic, "partition": 0, "from": 1, "to": 3, "reason": "removed by retention"}
    assert ("gap", lost) == (gap.type, json.loads(gap.data))
    assert 1 <= metric(server, "gaps_total")
    assert [3, 4] == numbers(rest)
    assert [3, 4] == numbers(connect(f"/{topic}", Last_Event_ID=gap.id).events(2))


def test_resumes_at_the_start_of_a_partition_added_since(connect, cluster, topic):
    with connect(f"/{topic}") as stream:
        before = stream.ready().last_id
    cluster.grow(topic, 4)
    cluster.send(topic, value(1), partition=3)

    assert [1] == numbers(connect(f"/{topic}", Last_Event_ID=before).events(1))


def test_a_deleted_topic_ends_the_stream(connect, cluster, topic):
    """The last event is an error with status 410. KafkaSSE stays silent."""
    stream = connect(f"/{topic}").ready()
    cluster.delete(topic)

    [error] = stream.rest()

    assert ("error", 410, [topic]) == (error.type, json.loads(error.data)["status"], json.loads(error.data)["topics"])


# Compression.


@pytest.fixture
def written(cluster: Cluster, topic: str) -> str:
    """A topic whose first partition contains three records."""
    cluster.send(topic, *(b'{"n":%d}' % n for n in range(3)))
    return topic


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_an_http_client_reads_each_event_at_once(server, cluster, written, coding):
    """Stored records, and one that is written while the client waits."""
    address = f"http://127.0.0.1:{server.port}/{written}?timestamp=0"
    with httpx.stream("GET", address, headers={"Accept-Encoding": coding}, timeout=TIMEOUT_S) as response:
        seen = _numbers(response)
        first = [next(seen) for _ in range(3)]
        cluster.send(written, b'{"n":3}')
        last = next(seen)

    assert (coding, "Accept-Encoding") == (response.headers["Content-Encoding"], response.headers["Vary"])
    assert [0, 1, 2, 3] == [*first, last]


def test_a_long_list_of_codings_is_not_read(server, written):
    """Parsing 64 KB takes 50 ms."""
    headers = {"Accept-Encoding": "gzip" + ",x" * MAX_ACCEPT_CHARS}
    with httpx.stream("GET", f"http://127.0.0.1:{server.port}/{written}?timestamp=0", headers=headers) as response:
        assert 200 == response.status_code
        assert "Content-Encoding" not in response.headers


def test_a_browser_reads_a_compressed_stream(server, written, browser):
    """EventSource offers all codings, and receives zstd."""
    browser.get(f"http://127.0.0.1:{server.port}/-/health")
    browser.set_script_timeout(TIMEOUT_S)

    assert [0, 1, 2] == browser.execute_async_script(READ, f"/{written}?timestamp=0")


def _numbers(response: httpx.Response) -> Iterator[int]:
    parser = Parser()
    for chunk in response.iter_bytes():
        for event in parser.receive(chunk):
            if event.type == "message":
                yield json.loads(event.data)["n"]
