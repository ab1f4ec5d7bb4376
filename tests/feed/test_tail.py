"""The tail of a worker: all topics share one cursor, and an error of a topic or feed does not affect the others."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import gevent
import pytest

from kafkasse.config import Config
from kafkasse.errors import (
    ConfigurationError,
    InvalidPosition,
    KafkasseError,
    KafkaUnavailable,
    ServerFull,
    TooManySelections,
    TopicGone,
    TopicNotAvailable,
)
from kafkasse.feed import feeds, tail
from kafkasse.feed.core.reader import StopReason
from kafkasse.feed.core.reader_states import ReaderState
from kafkasse.feed.feeds import Feeds, OpenRequest
from kafkasse.feed.reader import Reader
from kafkasse.feed.tail import MIN_REST_S, MIN_TURN_S, TURN_CREDIT_S
from kafkasse.log import OffsetOutOfRange, Partition
from kafkasse.process import event_loop
from kafkasse.records.encoder import Encoder
from kafkasse.records.position import IdType, of_topics
from kafkasse.records.position.position import INT32_MAX
from kafkasse.route import Route, StartAt
from kafkasse_client.sse import Parser
from tests.feed.world import Client, CountingLog, ImpatientWorld, before_next_lookup, recreate
from tests.support.parked_client import ParkedClient
from tests.support.sse import numbers_in
from tests.support.turns import numbers
from tests.support.waiting import TIMEOUT_S, wait_until

CARD_NUMBER = "4711-0815"


class TailWorld(ImpatientWorld):
    """A world with the topics a and b, which have two partitions each."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(topics={"a": 2, "b": 2}, **settings)


@pytest.fixture
def world() -> Iterator[TailWorld]:
    world = TailWorld()
    with closing(world.feeds):
        yield world


# One cursor.


def test_all_topics_share_one_cursor(world):
    """Each combination of topics is a feed of its own, and needs no cursor of its own."""
    readers = {names: world.open(*names) for names in (("a",), ("b",), ("a", "b"))}
    world.write(1, topic="a")
    world.put(2, topic="b")

    assert {("a",): [1], ("b",): [2], ("a", "b"): [1, 2]} == {
        names: numbers(reader) for names, reader in readers.items()
    }
    assert 1 == len(world.log.cursors)


def test_streams_of_selected_partitions_share_a_feed(world):
    """They receive only the records of their partitions, and need no cursor of their own."""
    entry = {"topic": "a", "partition": 1, "offset": 0}
    readers = [world.open(entry) for _ in range(3)]
    for partition in (0, 1):
        world.write(partition, topic="a", partition=partition)
    world.turn()

    assert [[1]] * 3 == [numbers(reader) for reader in readers]
    assert 1 == len(world.log.cursors)
    assert {"only": True}.items() <= json.loads(readers[0].position_id)[0].items()


def test_an_id_without_a_topic_id_that_lists_all_partitions_joins_the_feed(world):
    """KafkaSSE's event IDs are such IDs. The stream includes partitions that are added later."""
    live = world.open("a")
    returned = world.open(*({"topic": "a", "partition": n, "offset": 0} for n in (0, 1)))
    world.log.create("a", 3)
    world.turn()
    world.put(3, topic="a", partition=2)

    assert [3] == numbers(live) == numbers(returned)
    assert 1 == len(world.log.cursors) == len(world.tails[0].feeds)


def test_a_gap_reports_what_retention_removed_from_an_added_partition(world):
    reader = world.open("a")
    world.log.create("a", 3)
    world.write(1, 2, topic="a", partition=2)
    world.log.drop_before("a", 1, partition=2)
    world.turn(2)

    events = [*Parser().receive(reader.read(0))]
    assert ["gap", "message"] == [event.type for event in events if event.type != "position"]


@pytest.mark.parametrize("id_type", IdType)
def test_clients_that_resume_with_timestamps_share_the_feed(world, id_type):
    """The timestamps of idle partitions differ, but the client can be parked at once."""
    first = world.open("a", id_type=id_type)
    world.put(1, topic="a")
    numbers(first)

    returned = world.open(*json.loads(first.position_id), id_type=id_type)

    assert returned.can_park
    assert 1 == len(world.log.cursors)


def test_stops_reading_a_topic_after_its_last_feed(world):
    """The feed is dropped after idle_feed_timeout_s. Without feeds, the tail closes, and the next stream starts another."""
    world = TailWorld(idle_feed_timeout_s=0.0)
    a, b = world.open("a"), world.open("b")
    a.close()
    world.turn()
    assert {"b"} == {partition.topic for partition in world.tails[0].partitions} == world.tails[0].topics.keys()
    world.write(0, topic="a")
    assert [] == world.log.cursors[0].poll(0)

    b.close()
    world.turn()
    assert world.tails[0].closed

    again = world.open("a")
    world.put(1, topic="a")
    assert [1] == numbers(again)


def test_keeps_a_feed_for_a_while_after_its_last_reader(world):
    """A client that reconnects within idle_feed_timeout_s finds the ring, and needs no cursor of its own."""
    world.open("a").close()

    world.turn()

    assert 1 == len(world.tails[0].feeds)


def test_opening_a_stream_takes_a_turn(monkeypatch):
    """A stream with thousands of partitions opens in two short turns. Between them, the tail does not drop the new feed."""
    world = TailWorld(idle_feed_timeout_s=0.0)
    turns = []
    monkeypatch.setattr(feeds, "take_turn", lambda: (turns.append(1), world.turn()))

    reader = world.open("a")

    assert [1] == turns
    assert [reader._feed] == list(world.tails[0].feeds.values())


def test_a_stream_that_cannot_open_is_not_counted(world):
    """A stream that stays counted would keep its feed forever."""
    live = world.open("a")
    with pytest.raises(InvalidPosition):
        world.open({"topic": "a", "partition": 0, "offset": 9}, {"topic": "a", "partition": 1, "offset": 0})

    assert 1 == live._feed.readers


def test_a_new_client_of_a_recreated_topic_does_not_join_the_feed_of_the_old_topic(world):
    """With the old topic ID in its event IDs, the client would receive records again when it resumes."""
    old = world.open("a")
    world.log.delete("a")
    world.log.create("a", 2)
    topics = world.log.describe(["a"])

    new = world.feeds.open(OpenRequest(Route("r", "/r", None), of_topics(["a"]), topics, world.encoder))
    old.read(0)

    assert StopReason.ENDED is old.stop_reason
    assert topics["a"].topic_id == json.loads(new.position_id)[0]["topic_id"]


def test_a_live_stream_of_a_former_topic_receives_no_records_of_the_recreated_one(world):
    """The topic is recreated after it was described."""
    topics = world.log.describe(["a"])
    world.log.delete("a")
    world.log.create("a", 2)
    reader = world.feeds.open(OpenRequest(Route("r", "/r", None), of_topics(["a"]), topics, world.encoder))
    reader.begin()
    world.log.append("a", b"{}")

    world.tails[0].turn(0)

    assert b"" == reader.read(0)


def test_evicts_the_oldest_idle_feed_above_the_limit(world, monkeypatch):
    """If all feeds have readers, a client can have as many as are free, and at most half, so others have a chance."""
    monkeypatch.setattr(feeds, "MAX_FEEDS", 4)
    world.open("a").close()
    world.open("b").close()
    kept = world.open("b")

    other = world.open("a", "b")

    assert [("b",), ("a", "b")] == [key.topics for key in world.tails[0].feeds]
    with pytest.raises(TooManySelections, match="half of the 4 different selections"):
        world.open("a")
    world.open("a", client="another")
    with pytest.raises(ServerFull):
        world.open("a", encoder=Encoder(), client="another")
    assert [[], []] == [numbers(kept), numbers(other)]


@pytest.mark.parametrize(("partition_turn_s", "reader_turn_s"), [(0, 0), (2 * MIN_TURN_S, 0), (0, MIN_TURN_S)])
def test_turns_have_a_minimum_distance_on_average(world, monkeypatch, partition_turn_s, reader_turn_s):
    """Records that arrive one by one are sent together. With many partitions or readers, there are fewer fetches."""
    monkeypatch.setattr(tail, "PARTITION_TURN_S", partition_turn_s)
    monkeypatch.setattr(tail, "READER_TURN_S", reader_turn_s)
    count = 50
    world.open("a")
    turn_s = max(MIN_TURN_S, partition_turn_s * len(world.tails[0].partitions)) + reader_turn_s
    began_at = time.monotonic()
    for n in range(count):
        world.write(n, topic="a")
        gevent.sleep(world.tails[0].turn(0))

    assert time.monotonic() - began_at >= count * turn_s - TURN_CREDIT_S - MIN_REST_S


@pytest.mark.parametrize("others", ["in the same topic", "in another topic"])
def test_a_long_turn_sends_the_records_of_the_first_feeds_before_it_encodes_the_last(world, monkeypatch, others):
    """Even within one batch, if many feeds have different filters."""
    monkeypatch.setattr(tail, "MAX_UNSENT_S", -1.0)  # the clock may not advance between two feeds
    world.open("a").park(client := ParkedClient())
    received = []

    class Late(Encoder):
        def encode_piece(self, *args: Any) -> Any:
            received.append(numbers_in(client.received))
            return super().encode_piece(*args)

    topic = "a" if others == "in the same topic" else "b"
    for _ in range(2):
        world.open(topic, encoder=Late())
    world.write(1, topic="a")
    if topic == "b":
        world.write(2, topic=topic)
    world.tails[0].turn(0)

    assert [[], [1]] == received


# Isolation.


def rejects_text(message: Mapping[str, Any]) -> bool:
    if "secret" in message:
        raise ValueError(message["secret"])
    return True


def times_out(message: Mapping[str, Any]) -> bool:
    if "secret" in message:
        raise gevent.Timeout(0)
    return True


@pytest.mark.parametrize("filterer", [rejects_text, times_out])
def test_a_failing_filter_ends_only_its_own_feed(world, filterer, caplog):
    """The error is logged once, with the offset and without the record's data. The records before it are delivered."""
    broken, healthy = world.open("a", encoder=Encoder(filterer=filterer)), world.open("a")
    world.put(1, topic="a")
    world.log.append("a", b'{"secret":"%s","n":2}' % CARD_NUMBER.encode())
    with caplog.at_level(logging.ERROR):
        world.turn()
    world.put(3, topic="a")

    assert [1, 2, 3] == numbers(healthy)
    assert [1] == numbers_in(broken.read(0))
    with pytest.raises(KafkasseError):
        broken.read(0)
    [logged] = caplog.messages
    assert logged.startswith("a/0 offset 1 cannot be encoded")
    assert CARD_NUMBER not in logged


@pytest.mark.parametrize("error", [TopicNotAvailable("Not authorized."), TopicGone("", topics=["a"])], ids=repr)
def test_an_error_of_one_topic_ends_only_the_feeds_that_contain_it(world, error):
    a, b, both = world.open("a"), world.open("b"), world.open("a", "b")
    _ = world.log.delete("a") if isinstance(error, TopicGone) else world.log.fail_partition("a", error)
    world.turn(3)
    world.put(1, topic="b")

    assert [1] == numbers(b)
    for reader in (a, both):
        with pytest.raises(type(error)) as raised:
            reader.read(0.01)
        assert error.extra.get("topics") == raised.value.extra.get("topics")
    assert {"b"} == world.tails[0].topics.keys()


def test_a_recreated_topic_ends_only_the_feeds_that_contain_it(world):
    """Their clients reconnect with an event ID of the old topic, and receive the new one."""
    a, b = world.open("a"), world.open("b")
    world.log.delete("a")
    world.log.create("a", 1)
    world.turn()
    world.put(1, topic="b")

    assert [1] == numbers(b)
    assert b"" == a.read(0.01)
    assert StopReason.ENDED is a.stop_reason


@pytest.mark.parametrize("error", [TopicNotAvailable("Not authorized."), KafkaUnavailable("An election.")])
def test_a_topic_that_cannot_be_described_is_not_deleted(world, error):
    """The stream continues. A new stream gets the error, or 404 if the server may not read the topic."""
    a = world.open("a")
    world.log.fail_topic("a", error)
    world.turn(3)
    world.put(1, topic="a")

    assert [1] == numbers(a)
    if isinstance(error, TopicNotAvailable):
        assert {} == world.feeds.describe(["a"], 0)
    else:
        with pytest.raises(KafkaUnavailable):
            world.feeds.describe(["a"], 0)


@pytest.mark.parametrize(
    ("error", "received"),
    [
        (AssertionError("a bug"), KafkaUnavailable("Reading from Kafka failed. Reconnect with your last event ID.")),
        (ConfigurationError("wrong password"), ConfigurationError("wrong password")),
    ],
)
def test_a_tail_that_fails_ends_its_streams_with_an_error(error, received):
    """No stream ends silently, and the next stream starts another tail."""
    log = CountingLog()
    log.create("a")
    feeds = Feeds(log, Config().feed)
    route, topics = Route("r", "/r", None), log.describe(["a"])
    reader = feeds.open(OpenRequest(route, of_topics(["a"]), topics, Encoder()))
    gevent.sleep(0)

    def fail(timeout_s: float) -> Any:
        raise error

    closed: list[bool] = []
    log.cursors[0].poll = fail  # type: ignore[method-assign]
    log.cursors[0].close = lambda: closed.append(True)  # type: ignore[method-assign]
    log.append("a", b'{"n":1}')
    assert [1] == numbers_in(reader.read(TIMEOUT_S))
    with pytest.raises(type(received), match=received.detail):
        reader.read(TIMEOUT_S)
    wait_until(lambda: closed)

    again = feeds.open(OpenRequest(route, of_topics(["a"]), topics, Encoder()))
    log.append("a", b'{"n":2}')
    wait_until(lambda: 2 in numbers(again))
    feeds.close()


# Partitions without a leader.


def test_a_topic_opens_although_a_partition_has_no_leader(world):
    """The event ID contains a timestamp for that partition until it has a leader. No record is lost."""
    world.log.lose_leader("a")
    reader = world.open("a")
    reader.begin()
    first = {entry["partition"]: entry for entry in json.loads(reader.position_id)}
    world.log.elect_leader("a")
    world.turn()
    world.write(1, topic="a")
    world.put(2, topic="a", partition=1)

    assert [1, 2] == sorted(numbers(reader))
    assert ({"timestamp"}, {"offset"}) == tuple(first[n].keys() & {"offset", "timestamp"} for n in (0, 1))
    assert {1} == {entry["offset"] for entry in json.loads(reader.position_id)}


def test_a_partition_that_had_no_leader_starts_where_the_client_asked_for(world):
    """It is not a partition that was added to the topic, so a client that starts at the end receives no older records."""
    world.log.append("a", b'{"n":1}', timestamp=1000)
    world.log.lose_leader("a")
    reader = world.open("a")

    world.log.elect_leader("a")
    world.turn()
    world.put(2, topic="a")

    assert [2] == numbers(reader)


def test_catches_up_although_a_partition_has_no_leader(world):
    """A client that starts at the first record reads the other partitions at once, and this one when it has a leader."""
    world.write(1, topic="a")
    world.write(2, topic="a", partition=1)
    world.log.lose_leader("a")
    reader = world.open("a", start=StartAt.EARLIEST)
    assert [2] == numbers(reader)

    world.log.elect_leader("a")
    world.turn()

    wait_until(lambda: [1] == numbers(reader))


def test_clients_that_resume_share_the_feed_of_a_partition_without_a_leader(world):
    """An event ID with the timestamp of the feed needs no cursor."""
    world.log.lose_leader("a")
    first = world.open("a")

    returned = world.open(*json.loads(first.position_id))

    assert returned.can_park
    assert 1 == len(world.log.cursors)


# Clients that join.


def test_a_client_that_joins_receives_a_gap(world):
    """The event ID of the gap is the client's own, because the feed has never been at its position."""
    position = json.loads(world.open("a").position_id)
    world.put(1, topic="a")
    world.write(3, 4, 5, topic="a")
    world.log.drop_before("a", 3)
    world.turn(3)
    world.put(2, topic="a", partition=1)
    position[1]["offset"] = 1

    reader = world.open(*position)

    assert ReaderState.JOINING is reader.state
    [before, gap, after] = Parser().receive(b"".join(iter(lambda: reader.read(0), b"")))
    assert ["message", "gap", "message"] == [event.type for event in (before, gap, after)]
    assert {"from": 1, "to": 3}.items() <= json.loads(gap.data).items()
    assert [3, 1] == [entry["offset"] for entry in json.loads(gap.id)]
    assert 5 == json.loads(after.data)["n"]


# Opening.


def test_caches_topics_that_do_not_exist(world):
    """A client that repeats a request for an unknown topic costs Kafka one lookup per second."""
    for _ in range(10):
        assert {} == world.feeds.describe(["unknown"])

    assert [["unknown"]] == world.log.described


def test_forgets_the_oldest_descriptions(monkeypatch):
    """Requests for random names do not fill the memory."""
    monkeypatch.setattr(feeds, "MAX_DESCRIPTIONS", 3)
    world = TailWorld()
    for n in range(5):
        world.feeds.describe([f"unknown{n}"])
    for n in (4, 0):
        world.feeds.describe([f"unknown{n}"])

    assert [[f"unknown{n}"] for n in (0, 1, 2, 3, 4, 0)] == world.log.described


def test_the_checks_of_many_topics_take_turns(monkeypatch):
    """A tail may read thousands of topics, and must not delay the other greenlets while it checks them."""
    world = TailWorld()
    names = [f"many-{n}" for n in range(50)]
    for name in names:
        world.log.create(name)
        world.open(name)
    monkeypatch.setattr(event_loop, "MAX_TURN_S", 1e-6)
    others = 0

    checking = gevent.spawn(world.tails[0]._check_topics)
    while not checking.ready():
        gevent.sleep(0)
        others += 1

    assert others >= 2 * len(names)  # once for the topic, and once for its partition
    world.feeds.close()


# Truncation.


@pytest.mark.parametrize("new_records", [2, 4])
@pytest.mark.parametrize("is_live", [True, False])
def test_a_client_that_missed_a_truncation_receives_a_gap(world, is_live, new_records):
    """The log contains the client's offset again, so only the leader epoch shows that other records replaced its own."""
    returning = resumed_after_truncation(world, is_live, new_records)

    frames = b"".join([returning.begin(), *(returning.read(0) for _ in range(5))])
    [gap, *messages] = Parser().receive(frames)

    lost = {"topic": "a", "partition": 0, "from": 4, "to": 2, "reason": "the log was truncated"}
    assert ("gap", lost) == (gap.type, json.loads(gap.data))
    expected = [12, 13, 14, 15][:new_records]
    assert expected == [json.loads(message.data)["n"] for message in messages if message.type == "message"]


def test_a_truncation_is_reported_although_retention_has_removed_the_records_that_replaced_the_lost_ones(world):
    """A client that still has to read the ring receives no lost record."""
    live = reader_of_four_records(world)
    joins = world.open(
        {"topic": "a", "partition": 0, "offset": 1, "leader_epoch": 0}, {"topic": "a", "partition": 1, "offset": 0}
    )
    world.log.truncate("a", 2)
    world.write(*range(12, 18), topic="a")
    before_next_lookup(world.log, lambda: world.log.drop_before("a", 6))
    world.turn(2)

    received = [
        [json.loads(event.data) for event in Parser().receive(b"".join(reader.read(0) for _ in range(5)))]
        for reader in (live, joins)
    ]

    gaps = [[(event["from"], event["to"]) for event in events if "from" in event] for events in received]
    assert [[(4, 2), (2, 6)], [(1, 6)]] == gaps
    assert [[16, 17]] * 2 == [[event["n"] for event in events if "n" in event] for events in received]


@pytest.mark.parametrize("is_live", [True, False])
def test_a_client_that_received_a_gap_notices_the_next_truncation(world, is_live):
    """The log was truncated twice without a record in between, and has grown past the end of the first gap again."""
    reader = reader_of_four_records(world)
    world.log.truncate("a", 3)
    world.turn(2)
    parser = Parser()
    first = list(parser.receive(reader.read(0)))
    world.log.truncate("a", 1)
    world.write(11, 12, 13, topic="a")
    if is_live:
        world.turn(2)
    else:
        world.new_feeds()
        reader = world.open(*json.loads(parser.last_event_id))
    frames = b"".join([reader.begin(), *(reader.read(0) for _ in range(5))])
    second, *messages = Parser().receive(frames)

    gaps = [json.loads(event.data) for event in (*first, second) if event.type == "gap"]
    assert [(4, 3), (3, 1)] == [(gap["from"], gap["to"]) for gap in gaps]
    assert [11, 12, 13] == [json.loads(message.data)["n"] for message in messages if message.type == "message"]


def test_a_client_that_is_ahead_of_the_feed_notices_a_truncation(world):
    """Its own cursor has read a record that the log then loses. The tail reads only the record that replaced it."""
    world.log.elect_leader("a")
    world.write(0, topic="a")
    world.open("a")  # the feed starts at offset 1
    ahead = world.open({"topic": "a", "partition": 0, "offset": 0}, {"topic": "a", "partition": 1, "offset": 0})
    world.write(1, 2, topic="a")
    assert [0, 1, 2] == numbers(ahead)
    world.log.truncate("a", 2)
    world.write(12, 13, topic="a")
    world.turn(2)

    gap, *messages = Parser().receive(b"".join(ahead.read(0) for _ in range(5)))

    assert ("gap", 3, 2) == (gap.type, json.loads(gap.data)["from"], json.loads(gap.data)["to"])
    assert [12, 13] == [json.loads(message.data)["n"] for message in messages if message.type == "message"]


def test_a_client_that_is_ahead_does_not_join_a_feed_that_was_truncated(world):
    """No newer leader epoch shows yet that the log has lost the client's last records."""
    world.log.elect_leader("a")
    world.write(0, 1, 2, 3, topic="a")
    world.open("a")  # the feed starts at offset 4
    ahead = world.open({"topic": "a", "partition": 0, "offset": 0}, {"topic": "a", "partition": 1, "offset": 0})
    world.write(4, 5, topic="a")
    assert [0, 1, 2, 3, 4, 5] == numbers(ahead)
    world.log.truncate("a", 2)
    world.turn(2)

    [gap] = Parser().receive(b"".join(ahead.read(0) for _ in range(5)))

    assert ("gap", 6, 2) == (gap.type, json.loads(gap.data)["from"], json.loads(gap.data)["to"])


def test_a_feed_notices_a_truncation_before_it_has_read_a_record(world):
    """It starts at the end of the log. Before its first fetch, the log is truncated, and grows past that offset again."""
    position = json.loads(reader_of_four_records(world).position_id)
    world.new_feeds()
    returned = world.open(*position)
    world.log.truncate("a", 2)
    world.write(12, 13, 14, topic="a")
    world.turn(2)

    frames = b"".join([returned.begin(), *(returned.read(0) for _ in range(5))])
    _, gap, *messages = Parser().receive(frames)

    assert ("gap", 4, 2) == (gap.type, json.loads(gap.data)["from"], json.loads(gap.data)["to"])
    assert [12, 13, 14] == [json.loads(message.data)["n"] for message in messages if message.type == "message"]


@pytest.mark.parametrize("continues", [False, True])
def test_a_client_of_a_quiet_partition_notices_a_truncation_when_it_returns(world, continues):
    """Its feed has read no record of the partition: the records are older, or an earlier worker has sent them."""
    before = reader_of_four_records(world)
    world.new_feeds()
    client = Client(world.open(*json.loads(before.position_id)) if continues else world.open("a"))
    client.read()
    world.put(5, topic="a", partition=1)
    client.read()
    world.log.truncate("a", 2)
    world.write(12, 13, 14, topic="a")
    world.new_feeds()

    returned = Client(world.open(client.last_id))
    returned.read()

    gap, *messages = returned.events
    assert ("gap", 4, 2) == (gap.type, json.loads(gap.data)["from"], json.loads(gap.data)["to"])
    assert [12, 13, 14] == [json.loads(message.data)["n"] for message in messages if message.type == "message"]


def test_a_truncation_right_after_another_client_returned_is_reported(world):
    """Each client causes a lookup of its leader epoch."""
    live = reader_of_four_records(world)
    position = json.loads(live.position_id)
    world.new_feeds()
    world.open(*position)
    world.log.truncate("a", 2)
    world.put(12, 13, 14, topic="a")

    returning = world.open(*position)

    [gap, *_] = Parser().receive(returning.begin() + returning.read(0))
    assert ("gap", 4, 2) == (gap.type, json.loads(gap.data)["from"], json.loads(gap.data)["to"])


def test_a_topic_that_is_recreated_while_the_tail_looks_up_its_offsets_has_no_gap(world):
    """The log of the new topic looks like one that has lost all records."""
    reader = reader_of_four_records(world)
    world.log.truncate("a", 2)
    before_next_lookup(world.log, lambda: recreate(world.log, "a"))
    world.turn(2)

    assert b"" == reader.read(0)
    assert StopReason.ENDED is reader.stop_reason


def test_a_stream_that_opens_while_gaps_are_sent_receives_only_the_records_after_them(world, monkeypatch):
    """Sending to parked clients lets other greenlets run, and one of them may open another feed with the same partitions."""
    opened: list[Reader] = []

    class Opening(ParkedClient):
        def try_send(self, chunk: bytes, data: bytes = b"") -> bool:
            if b"event: gap" in data:
                opened.append(world.open("a", encoder=Encoder("envelope")))
            return super().try_send(chunk)

    reader, client = reader_of_four_records(world), Opening()
    world.put(5, topic="a", partition=1)
    numbers(reader)
    reader.begin()
    reader.park(client)
    both = [Partition("a", 0), Partition("a", 1)]
    for partition in both:
        world.log.truncate("a", 0, partition.partition)
    [cursor] = world.log.cursors
    with monkeypatch.context() as patch:
        patch.setattr(cursor, "poll", Mock(side_effect=OffsetOutOfRange(both)))
        world.turn(2)
    world.put(12, topic="a")

    assert 2 == client.received.count(b"event: gap")
    [event] = Parser().receive(opened[0].read(0))
    assert ("message", 0) == (event.type, json.loads(event.data)["offset"])


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("epoch", [{"leader_epoch": INT32_MAX}, {}])
def test_a_client_with_an_epoch_that_the_log_does_not_know_joins(world, epoch, truncated):
    """A forged or foreign leader epoch counts as unknown. Otherwise its client would have a slot until the next record."""
    world.log.elect_leader("a")
    world.open("a")
    world.put(0, topic="a")
    if truncated:
        world.log.truncate("a", 0)
        world.put(0, topic="a")
    reader = world.open(
        {"topic": "a", "partition": 0, "offset": 1, **epoch}, {"topic": "a", "partition": 1, "offset": 0}
    )

    assert b"" == b"".join(reader.read(0) for _ in range(5))
    assert ReaderState.LIVE is reader.state
    assert str(INT32_MAX) not in reader.position_id


def reader_of_four_records(world: TailWorld) -> Reader:
    """Return a live reader that has received four records with a leader epoch."""
    world.log.elect_leader("a")
    live = world.open("a")
    world.put(0, 1, 2, 3, topic="a")
    numbers(live)
    return live


def resumed_after_truncation(world: TailWorld, is_live: bool, new_records: int) -> Reader:
    """Return the reader of a client at offset 4 of a log that has lost the records from offset 2 on, and has grown."""
    live = reader_of_four_records(world)
    position = json.loads(live.position_id)
    world.log.truncate("a", 2)
    for n in range(12, 12 + new_records):
        world.write(n, topic="a")
    if is_live:
        world.turn()
    else:
        world.new_feeds()
    return world.open(*position)
