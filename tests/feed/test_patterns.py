"""Routes with patterns: topics that are created later join the stream, and no record is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import gevent
import pytest

from kafkasse.config import Config
from kafkasse.errors import TopicGone
from kafkasse.feed import Feeds, Reader, StopReason
from kafkasse.feed.tail import Tail
from kafkasse.frame import Encoder
from kafkasse.memory_log import MemoryLog
from kafkasse.position import Position, parse
from kafkasse.route import Route, StartAt
from tests.support.turns import numbers, turn
from tests.support.waiting import TIMEOUT_S

EVENTS = Route("events", "/events", ("orders", "events.*"))


class World:
    """A log with the topics of the route EVENTS, and feeds. The test calls turn() of the tail."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        for topic in ("orders", "events.a", "other"):
            self.log.create(topic)
        self.tails: list[Tail] = []
        settings = replace(Config(heartbeat_s=0.001).feed, metadata_refresh_s=0.0)
        self.feeds = Feeds(self.log, settings, self.tails.append)
        self.encoder = Encoder()
        self.written = 0

    def open(self, event_id: str = "", route: Route = EVENTS) -> Reader:
        """Open a stream as the web package does, with fresh descriptions."""
        matching = [*self.log.describe(route.matching(self.log.topic_names()))]
        position = route.adapt(parse(event_id) if event_id else Position(), matching)
        topics = self.log.describe(position.topics)
        route.check(position.topics, topics)
        return self.feeds.open(route, position, topics, self.encoder)

    def turn(self) -> None:
        turn(self.tails[-1])
        gevent.sleep(0.002)
        turn(self.tails[-1])

    def write(self, topic: str, partition: int = 0) -> int:
        """Append a record. Return its number."""
        self.written += 1
        self.log.append(topic, b'{"n":%d}' % self.written, partition)
        return self.written


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with closing(world.feeds):
        yield world


def received(world: World, reader: Reader, count: int) -> list[int]:
    """Return the next `count` numbers, sorted: partitions have no common order, and a reader needs time to catch up."""
    found: list[int] = []
    with gevent.Timeout(TIMEOUT_S):
        while len(found) < count:
            found += numbers(reader)
            world.turn()
    return sorted(found)


def topics_of(event_id: str) -> dict[str, int]:
    """Return the offset of each topic in an event ID, all of whose topics must have a topic ID."""
    entries = json.loads(event_id)
    assert all(entry["topic_id"] for entry in entries if not entry["partition"])
    return {entry["topic"]: entry["offset"] for entry in entries}


def test_a_topic_that_another_stream_reads_already_joins(world: World) -> None:
    """The stream ends if the tail is past the topic's first record. Its client resumes without a gap."""
    reader = world.open()
    event_id = reader.position_id
    world.log.create("events.new")
    other = world.open(route=Route("one", "/one", ("events.new",)))
    expected = [world.write("events.new")]
    world.turn()

    assert expected == numbers(other)
    found = numbers(reader)
    if reader.stop_reason is StopReason.ENDED:
        found += received(world, world.open(reader.position_id if found else event_id), len(expected) - len(found))
    assert expected == found


def test_a_deleted_topic_leaves_the_stream(world: World) -> None:
    """Its streams end with their last event ID, and the clients resume without the topic."""
    reader = world.open()
    world.log.delete("events.a")
    for _ in range(3):
        world.turn()
    numbers(reader)

    assert StopReason.ENDED is reader.stop_reason
    resumed = world.open(reader.position_id)
    expected = [world.write("orders")]
    world.turn()
    assert expected == numbers(resumed)
    assert {"orders": 1} == topics_of(resumed.position_id)


def test_a_deleted_topic_ends_the_streams_of_a_route_without_patterns(world: World) -> None:
    """The route contains no other topic."""
    reader = world.open(route=Route("one", "/one", ("events.a",)))
    world.log.delete("events.a")
    for _ in range(3):
        world.turn()

    with pytest.raises(TopicGone):
        numbers(reader)


@pytest.mark.parametrize("start", [StartAt.LATEST, StartAt.EARLIEST])
def test_a_new_client_starts_where_the_route_says(world: World, start: StartAt) -> None:
    """The topics that exist when it connects have not been created later."""
    before = world.write("events.a")
    reader = world.open(route=replace(EVENTS, start=start))
    after = world.write("events.a")
    world.write("other")  # does not match
    world.turn()

    assert ([before] if start is StartAt.EARLIEST else []) + [after] == numbers(reader)
