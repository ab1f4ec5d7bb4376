"""One client's own reader: whatever the log does, the client has exactly its records, and its id says exactly that."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkasse.errors import ConfigurationError, FilterError, KafkaUnavailable, TopicGone
from kafkasse.feed.catch_up import CatchUp
from kafkasse.feed.start import resolve
from kafkasse.feed.topic_watch import TopicWatch
from kafkasse.frame import Encoder, JsonLines
from kafkasse.log import Topic
from kafkasse.memory_log import MemoryLog
from kafkasse.position import IdType, IdWriter, of_topics, parse
from kafkasse.route import StartAt
from kafkasse.sse import Event, Parser

PATIENCE_S = 30


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create("t", 2)
    return log


class Client:
    """A client of one stream: what it was sent, and the id that it would come back with."""

    def __init__(
        self,
        log: MemoryLog,
        last_id: str = "",
        start_at: StartAt = StartAt.LATEST,
        kind: IdType = IdType.OFFSET,
        compact: bool = False,
        describe: Callable[[list[str]], Mapping[str, Topic]] | None = None,
        max_chunk_bytes: int = 262_144,
        max_snapshot_keys: int = 1000,
        **hooks: Any,
    ) -> None:
        position = parse(last_id) if last_id else of_topics(["t"])
        opening = resolve(log, position, log.describe(["t"]), start_at)
        ids = IdWriter(opening.offsets, opening.topic_ids, opening.partial_topics, kind, opening.timestamps, compact)
        watch = TopicWatch(describe or log.describe, 0, opening.partial_topics)
        keys = max_snapshot_keys if opening.snapshot else None
        self.reader = CatchUp(log, ids, Encoder(**hooks), watch, max_chunk_bytes, opening.gaps, keys)
        self.parser = Parser(last_event_id=last_id)
        self.bytes = b""
        self.events: list[Event] = []
        self.take(self.reader.begin())

    def take(self, frames: bytes) -> list[Event]:
        self.bytes += frames
        events = list(self.parser.receive(frames))
        self.events += events
        return events

    def read(self) -> list[Event]:
        """All that is ready now."""
        events: list[Event] = []
        while frames := self.reader.read(0):
            events += self.take(frames)
        return events

    @property
    def last_id(self) -> str:
        return self.parser.last_event_id


def said(events: list[Event]) -> list[Any]:
    return [json.loads(event.data)["n"] for event in events]


def not_odd(message: Any) -> bool:
    return "odd" not in message


def value(n: int) -> bytes:
    return b'{"n":%d}' % n


# Nothing lost, nothing twice.


@given(
    st.lists(st.sampled_from(["record", "odd", "broken", "marker"]), max_size=12),
    st.sampled_from([*IdType]),
    st.booleans(),
    st.integers(1, 200),
)
@settings(deadline=None)
def test_every_id_gives_the_rest(steps: list[str], kind: IdType, compact: bool, max_chunk_bytes: int) -> None:
    """From each id that a client was given it gets exactly what follows, whatever lies between."""
    log = MemoryLog()
    log.create("t", 2)

    def client(last_id: str = "") -> Client:
        return Client(log, last_id, StartAt.EARLIEST, kind, compact, None, max_chunk_bytes, filterer=not_odd)

    for n, step in enumerate(steps):
        if step == "marker":
            log.mark("t", n % 2)
        else:
            content = {"record": value(n), "odd": b'{"odd":1}', "broken": b"{"}[step]
            log.append("t", content, n % 2, timestamp=1000 + n)
    first = client()
    events = first.read()
    first.take(first.reader.id_if_moved())

    assert sorted(n for n, step in enumerate(steps) if step == "record") == sorted(said(events))
    for at, event in enumerate(events):
        assert sorted(said(events[at + 1 :])) == sorted(said(client(event.id).read()))
    assert [] == client(first.last_id).read()


@pytest.mark.parametrize("kind", IdType)
def test_a_partition_without_a_message_resumes_without_loss(log: MemoryLog, kind: IdType) -> None:
    """A client that saw nothing has an id from the start: what is written before it comes back is not lost."""
    before = Client(log, kind=kind)
    log.append("t", value(1), 1)

    assert [1] == said(Client(log, before.last_id, kind=kind).read())


def test_chunks_are_bounded(log: MemoryLog) -> None:
    """Many records come in pieces of about the size that is set, not all at once."""
    log.create("t", 1)
    for n in range(3000):
        log.append("t", value(n))
    client = Client(log, start_at=StartAt.EARLIEST, max_chunk_bytes=1024)

    sizes = []
    while frames := client.reader.read(0):
        sizes.append(len(frames))
        client.take(frames)

    assert list(range(3000)) == said(client.events)
    assert len(sizes) > 3
    assert max(sizes) < sum(sizes) / 3


# The id.


def test_a_filtered_streams_id_moves_on(log: MemoryLog) -> None:
    """Records that are not sent move the id all the same, when it is asked for, and only then and once."""
    client = Client(log, filterer=lambda message: False)
    log.append("t", value(1))
    log.mark("t")

    assert [] == client.read()
    moved = client.reader.id_if_moved()

    assert b"id: " in moved
    assert b"" == client.reader.id_if_moved()
    client.take(moved)
    assert {2, 0} == {start.offset for start in parse(client.last_id).starts.values()}


def test_what_is_hidden_behind_a_record_moves_the_id(log: MemoryLog) -> None:
    """Records that are not sent move it also where they came in one batch with one that is."""
    client = Client(log, filterer=not_odd)
    log.append("t", value(1))
    log.append("t", b'{"odd":1}')

    assert [1] == said(client.read())
    client.take(client.reader.id_if_moved())

    assert {2, 0} == {start.offset for start in parse(client.last_id).starts.values()}
    assert b"" == client.reader.id_if_moved()


def test_the_first_id_comes_before_the_first_record(log: MemoryLog) -> None:
    """A stream begins with an id of all its partitions."""
    assert {0} == {start.offset for start in parse(Client(log).last_id).starts.values()}
    assert 2 == len(parse(Client(log).last_id).starts)


# What happens to topics.


def test_retention_overtakes_a_client(log: MemoryLog) -> None:
    """What is gone is declared in its place, before what follows, and not declared again."""
    client = Client(log)
    for n in range(4):
        log.append("t", value(n))
    log.drop_before("t", 2)

    gap, *rest = client.read()

    lost = {"topic": "t", "partition": 0, "from": 0, "to": 2, "reason": "removed by retention"}
    assert ("gap", lost) == (gap.type, json.loads(gap.data))
    assert [2, 3] == said(rest)
    assert ["message"] * 2 == [event.type for event in Client(log, gap.id).read()]


def test_a_gap_at_the_beginning(log: MemoryLog) -> None:
    """A client whose id is older than the log is told of it first."""
    client = Client(log)
    for n in range(4):
        log.append("t", value(n))
    log.drop_before("t", 2)

    returned = Client(log, client.last_id)
    returned.read()

    assert ["gap", "message", "message"] == [event.type for event in returned.events]


def test_a_topic_made_again_while_it_was_away(log: MemoryLog) -> None:
    """The rest of the old topic is declared lost and all of the new one is read, wherever the old offsets point."""
    for n in range(5):
        log.append("t", value(n))
    before = Client(log)
    log.delete("t")
    log.create("t", 2)
    for n in range(7):
        log.append("t", value(10 + n))

    returned = Client(log, before.last_id)
    returned.read()

    gap, *rest = returned.events
    assert "gap" == gap.type
    assert "the topic was deleted and recreated" == json.loads(gap.data)["reason"]
    assert list(range(10, 17)) == said([event for event in rest if event.type == "message"])
    resumed = Client(log, rest[-1].id)
    assert [] == resumed.read()


def test_a_topic_made_again_under_its_eyes(log: MemoryLog) -> None:
    """The stream ends politely with an id of the old topic, so that the two are told apart when it comes back."""
    client = Client(log)
    old = client.last_id
    log.delete("t")
    log.create("t", 2)

    client.read()

    assert client.reader.ended
    assert old == client.reader.position_id


def test_a_deleted_topic(log: MemoryLog) -> None:
    """It is an error with the topic's name, and not at first sight: a broker that has just started may not know it yet."""
    client = Client(log)
    log.delete("t")

    assert b"" == client.reader.read(0)
    with pytest.raises(TopicGone) as gone:
        client.reader.read(0)

    assert ["t"] == gone.value.extra["topics"]


def test_a_new_partition(log: MemoryLog) -> None:
    """It is read from its first record, and stands in the next id."""
    client = Client(log)
    log.create("t", 3)
    log.append("t", value(1), 2)

    events = client.read()

    assert [1] == said(events)
    assert 3 == len(parse(events[0].id).starts)


def test_a_client_of_one_partition_stays_with_it(log: MemoryLog) -> None:
    """Who asked for one partition by hand gets no other, not even a new one, and neither does its id."""
    client = Client(log, '[{"topic":"t","partition":1,"offset":0}]')
    log.create("t", 3)
    for partition in range(3):
        log.append("t", value(partition), partition)

    assert [1] == said(client.read())
    assert [1] == [each.partition for each in parse(client.last_id).starts]
    assert [] == Client(log, client.last_id).read()


def test_kafka_away_for_a_while(log: MemoryLog) -> None:
    """A look at the topics that fails is no reason to end a stream."""

    def away(topics: list[str]) -> Mapping[str, Topic]:
        raise KafkaUnavailable("Gone.")

    client = Client(log, describe=away)
    log.append("t", value(1))

    assert [1] == said(client.read())


# Waiting and ending.


def test_a_record_ends_the_wait(log: MemoryLog) -> None:
    """A reader that waits returns with the record, not with its time."""
    client = Client(log)
    reading = gevent.spawn(client.reader.read, PATIENCE_S)

    log.append("t", value(1))

    assert [1] == said(client.take(reading.get(timeout=PATIENCE_S)))


def test_a_read_that_waits_returns_as_soon_as_it_is_stopped(log: MemoryLog) -> None:
    """read() checks its `until` while it waits for records."""
    client = Client(log)
    stopped: list[bool] = []
    reading = gevent.spawn(client.reader.read, PATIENCE_S * 2, lambda: bool(stopped))
    gevent.sleep(0)  # let it start to wait

    stopped.append(True)

    assert b"" == reading.get(timeout=PATIENCE_S)


def test_closing_twice(log: MemoryLog) -> None:
    """close() may be called again, and a closed reader has nothing to read."""
    client = Client(log)
    log.append("t", value(1))

    client.reader.close()
    client.reader.close()

    assert b"" == client.reader.read(0)


@pytest.mark.parametrize("kind", IdType)
def test_a_filter_that_fails(log: MemoryLog, kind: IdType) -> None:
    """All before the record that it fails at is sent, and the id stands at that record: nothing is lost to anybody."""
    client = Client(log, kind=kind, filterer=lambda message: message["n"] >= 0)
    for at in range(10):
        log.append("t", value(at) if at != 7 else b"{}", timestamp=1000 + at)

    with pytest.raises(FilterError):
        client.read()

    resumed = Client(log, client.reader.position_id, kind=kind, filterer=lambda message: "n" in message)
    assert list(range(7)) == said(client.events)
    assert [8, 9] == said(resumed.read())


# Snapshots.


def snapshot(log: MemoryLog, **rest: Any) -> Client:
    return Client(log, start_at=StartAt.SNAPSHOT, **rest)


def test_a_snapshot_is_the_table_then_live(log: MemoryLog) -> None:
    """The newest record of each key that still has one, the id after them, and from then on what comes."""
    for n, key in enumerate((b"DE", b"FR", b"DE", b"NL")):
        log.append("t", value(n), n % 2, key)
    log.append("t", None, 1, b"NL")
    client = snapshot(log)

    table = client.read()
    log.append("t", value(9), 0, b"DE")

    assert [1, 2] == sorted(said(table))
    assert [9] == said(client.read())
    assert [9] == said(Client(log, re.findall(rb"id: (.*)\n", client.bytes)[0].decode()).read())


def test_a_snapshot_has_no_id_until_it_is_whole(log: MemoryLog) -> None:
    """A client that is cut off during the table has no id to come back with, so it gets the whole table again."""
    for n in range(5):
        log.append("t", value(n), key=b"%d" % n)
    client = snapshot(log)

    assert "" == client.last_id
    assert b"" == client.reader.id_if_moved()
    client.read()

    assert {""} == {event.id for event in client.events}
    assert {5, 0} == {start.offset for start in parse(client.last_id).starts.values()}


def test_an_empty_table(log: MemoryLog) -> None:
    """A topic without records is a table without rows: the client has its id at once."""
    assert "" != snapshot(log).last_id


def test_records_without_a_key_all_stand(log: MemoryLog) -> None:
    """What has no key replaces nothing."""
    for n in range(3):
        log.append("t", value(n))

    assert [0, 1, 2] == said(snapshot(log).read())


def test_markers_at_the_end_of_a_table(log: MemoryLog) -> None:
    """A table whose topic ends in markers is whole when they are reached."""
    log.append("t", value(1), key=b"a")
    log.mark("t")

    client = snapshot(log)
    client.read()

    assert [1] == said(client.events)
    assert client.last_id


def test_a_table_that_is_too_large(log: MemoryLog) -> None:
    """More keys than may be held is an error that names the setting."""
    for n in range(4):
        log.append("t", value(n), key=b"%d" % n)

    client = snapshot(log, max_snapshot_keys=3)

    with pytest.raises(ConfigurationError, match="max_snapshot_keys"):
        client.read()

    assert "" == client.reader.position_id  # an id from the middle of a table would lose its beginning


def test_retention_during_a_snapshot(log: MemoryLog) -> None:
    """A table whose beginning retention takes meanwhile is that of the records that are left."""
    for n in range(3):
        log.append("t", value(n), key=b"%d" % n)
    client = snapshot(log)
    log.drop_before("t", 2)

    events = client.read()

    assert [2] == said([event for event in events if event.type == "message"])
    assert client.last_id


def test_a_table_as_lines(log: MemoryLog) -> None:
    """As newline-delimited JSON it is the same rows."""
    log.append("t", value(1), key=b"a")

    client = snapshot(log, wire=JsonLines())
    client.read()

    assert [1] == [json.loads(line)["n"] for line in client.bytes.splitlines() if line]
