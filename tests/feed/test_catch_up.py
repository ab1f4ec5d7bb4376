"""Catching up: whatever happens to the log, a client receives each record exactly once, and its event ID is its position."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gevent
import pytest

from kafkasse.errors import FilterError, KafkaUnavailable, TopicGone
from kafkasse.feed import catch_up
from kafkasse.feed.catch_up import CatchUp
from kafkasse.feed.core.feed import FeedKey
from kafkasse.feed.core.reader import StopReason
from kafkasse.feed.core.ring import RingLimits
from kafkasse.feed.reader import Cursors, Reader
from kafkasse.feed.shared_feed import SharedFeed
from kafkasse.feed.slots import CatchUpSlots
from kafkasse.feed.start import resolve
from kafkasse.feed.topic_watch import TopicWatch
from kafkasse.log import Topic
from kafkasse.log.memory import MemoryLog
from kafkasse.records.encoder import Encoder
from kafkasse.records.position import IdType, IdWriter, of_topics, parse
from kafkasse.route import StartAt
from kafkasse_client.sse import Event
from tests.feed.world import Client, before_next_lookup, recreate
from tests.support.waiting import wait_until

TIMEOUT_S = 30
CHUNK = 262_144


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create("t", 2)
    return log


class Behind(Client):
    """A client that catches up. Its feed is one of another topic, which it never joins."""

    def __init__(self, log, last_id="", start_at=StartAt.LATEST, id_type=IdType.OFFSET, describe=None, **hooks):
        position = parse(last_id) if last_id else of_topics(["t"])
        start = resolve(log, position, log.describe(["t"]), start_at)
        named = {"id_type": id_type, "timestamps": start.timestamps, "pending": start.pending}
        ids = IdWriter(start.offsets, start.topic_ids, start.partial_topics, **named)
        watch, encoder = TopicWatch(describe or log.describe, 0, start.partial_topics), Encoder(**hooks)
        feed = SharedFeed(FeedKey(encoder, ("u",)), ids.copy_at({}), RingLimits(1, 1, 1), 300.0)
        cursors = Cursors(lambda _, ids, __: CatchUp(log, ids, encoder, watch, CHUNK), CatchUpSlots(1), CHUNK)
        super().__init__(Reader(ids, feed, cursors, "", start.gaps), last_id)


def numbers(events: list[Event]) -> list[Any]:
    return [json.loads(event.data)["n"] for event in events if event.type == "message"]


def not_odd(message: Any) -> bool:
    return "odd" not in message


def value(n: int) -> bytes:
    return b'{"n":%d}' % n


# Event IDs.


def test_records_filtered_after_a_sent_record_move_the_event_id(log):
    """A sent record and a filtered record in one batch: the client still receives the event ID after the second one."""
    client = Behind(log, filterer=not_odd)
    log.append("t", value(1))
    log.append("t", b'{"odd":1}')

    assert [1] == numbers(client.read())
    client.take(client.reader.id_if_moved())

    assert {2, 0} == {start.offset for start in parse(client.last_id).starts.values()}
    assert b"" == client.reader.id_if_moved()


# Changes of topics.


def test_ends_when_a_topic_is_recreated(log):
    """The stream ends with an event ID of the old topic, so that the server notices the change on reconnect."""
    client = Behind(log)
    old = client.last_id
    log.delete("t")
    log.create("t", 2)

    client.read()

    assert StopReason.ENDED is client.reader.stop_reason
    assert old == client.reader.position_id


def test_does_not_read_a_topic_that_is_recreated_before_the_first_read(log):
    """The client would receive the record with an event ID of the old topic, and again after it reconnects."""
    log.append("t", value(1))
    client = Behind(log, start_at=StartAt.EARLIEST)
    log.delete("t")
    log.create("t", 2)
    log.append("t", value(2))

    events = client.read()

    assert [] == numbers(events)
    assert StopReason.ENDED is client.reader.stop_reason


def test_a_log_that_starts_after_its_end_has_one_gap(log):
    """Its start and end may be looked up before and after it loses records. The reader waits at the start."""
    for n in range(3):
        log.append("t", value(n))
    client = Behind(log)
    log.drop_before("t", 5)

    read = b"".join(client.reader.read(0) for _ in range(5))

    assert 1 == read.count(b"event: gap")
    assert b'"from":3,"to":5' in read


def test_a_topic_that_is_recreated_while_its_offsets_are_looked_up_has_no_gap(log):
    """The log of the new topic looks like one that has lost all records."""
    log.append("t", value(1))
    log.append("t", value(2))
    client = Behind(log, start_at=StartAt.EARLIEST)
    assert [1, 2] == numbers(client.read())
    old = client.last_id
    log.truncate("t", 1)
    before_next_lookup(log, lambda: recreate(log, "t"))

    assert [] == client.read()
    assert old == client.reader.position_id
    assert [] == client.read()
    assert StopReason.ENDED is client.reader.stop_reason


def test_reports_a_deleted_topic_after_two_refreshes(log):
    """The error names the topic. One refresh is not enough: a broker that has just started may not know the topic yet."""
    client = Behind(log)
    log.delete("t")

    assert b"" == client.reader.read(0)
    with pytest.raises(TopicGone) as gone:
        client.reader.read(0)

    assert ["t"] == gone.value.extra["topics"]


@pytest.mark.parametrize(("start_at", "first"), [(StartAt.EARLIEST, 0), (StartAt.LATEST, 1)])
def test_reads_a_partition_as_soon_as_it_has_a_leader(log, monkeypatch, start_at, first):
    """The partition starts where the client asked for, even if a refresh of the topics finds it first."""
    monkeypatch.setattr(catch_up, "FIND_PENDING_S", 0.0)
    log.append("t", value(1), timestamp=1000)
    log.lose_leader("t")
    client = Behind(log, start_at=start_at)
    assert [] == numbers(client.read())

    log.elect_leader("t")
    log.append("t", value(2))

    wait_until(lambda: numbers(client.read()) or numbers(client.events))
    assert [1, 2][first:] == numbers(client.events)


def test_the_event_id_has_the_offset_of_a_partition_as_soon_as_it_has_a_leader(log, monkeypatch):
    """This applies before the first record, too. Otherwise, a client that reconnects would search by time again."""
    monkeypatch.setattr(catch_up, "FIND_PENDING_S", 0.0)
    log.lose_leader("t")
    client = Behind(log)
    client.read()
    assert "timestamp" in client.reader.position_id

    log.elect_leader("t")
    wait_until(lambda: [client.read(), "timestamp" not in client.reader.position_id][-1])

    assert [0, 0] == [entry["offset"] for entry in json.loads(client.reader.position_id)]


def test_a_gap_reports_what_retention_removed_from_an_added_partition(log):
    client = Behind(log)
    log.create("t", 3)
    for n in range(3):
        log.append("t", value(n), 2)
    log.drop_before("t", 2, 2)

    wait_until(lambda: numbers([*client.read(), *client.events]))
    assert ["gap", "message"] == [event.type for event in client.events if event.type != "position"]
    assert [2] == numbers(client.events)


def test_a_stream_of_one_partition_ignores_the_others(log):
    """The client receives no records of other or new partitions, and its event ID contains only its own partition."""
    client = Behind(log, '[{"topic":"t","partition":1,"offset":0}]')
    log.create("t", 3)
    for partition in range(3):
        log.append("t", value(partition), partition)

    assert [1] == numbers(client.read())
    assert [1] == [key.partition for key in parse(client.last_id).starts]
    assert [] == Behind(log, client.last_id).read()


def test_continues_while_the_topics_cannot_be_described(log):
    def unavailable(topics: list[str]) -> Mapping[str, Topic]:
        raise KafkaUnavailable("Gone.")

    client = Behind(log, describe=unavailable)
    log.append("t", value(1))

    assert [1] == numbers(client.read())


# Waiting and closing.


def test_a_read_that_waits_returns_with_the_next_record(log):
    client = Behind(log)
    reading = gevent.spawn(client.reader.read, TIMEOUT_S)

    log.append("t", value(1))

    assert [1] == numbers(client.take(reading.get(timeout=TIMEOUT_S)))


def test_a_read_returns_after_its_timeout(log, monkeypatch):
    """A longer read would delay heartbeats."""
    monkeypatch.setattr(catch_up, "MAX_POLL_S", 3600.0)  # longer than a test may take
    client = Behind(log)

    assert b"" == client.reader.read(0.01)


def test_a_read_that_waits_returns_as_soon_as_it_is_stopped(log):
    client = Behind(log)
    reading = gevent.spawn(client.reader.read, TIMEOUT_S * 2)
    gevent.sleep(0)  # let it start to wait

    client.reader.stop(StopReason.ENDED)

    assert b"" == reading.get(timeout=TIMEOUT_S)


@pytest.mark.parametrize("id_type", IdType)
def test_sends_the_records_before_one_at_which_the_filter_fails(log, id_type):
    """The event ID points to the record at which the filter failed, so that no record is lost."""
    client = Behind(log, id_type=id_type, filterer=lambda message: message["n"] >= 0)
    for at in range(10):
        log.append("t", value(at) if at != 7 else b"{}", timestamp=1000 + at)

    with pytest.raises(FilterError):
        client.read()

    resumed = Behind(log, client.reader.position_id, id_type=id_type, filterer=lambda message: "n" in message)
    assert list(range(7)) == numbers(client.events)
    assert [8, 9] == numbers(resumed.read())
