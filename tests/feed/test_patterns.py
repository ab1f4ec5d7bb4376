"""Routes with patterns: topics that are created later join the stream, and no record is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import gevent
import pytest

from kafkasse.errors import TopicNotAvailable
from kafkasse.feed.core.reader import StopReason
from kafkasse.feed.feeds import OpenRequest
from kafkasse.feed.reader import Reader
from kafkasse.records.position import Position, parse
from kafkasse.route import Route, StartAt
from tests.feed.world import ImpatientWorld
from tests.support.turns import numbers
from tests.support.waiting import TIMEOUT_S

EVENTS = Route("events", "/events", ("orders", "events.*"))


class PatternWorld(ImpatientWorld):
    """A world with the topics of the route EVENTS."""

    def __init__(self) -> None:
        super().__init__(topics=dict.fromkeys(("orders", "events.a", "other"), 1))
        self.written = 0

    def follow(self, event_id: str = "", route: Route = EVENTS, deleted: str = "") -> Reader:
        """Open a stream as the web package does, with fresh descriptions."""
        matching = [*self.log.describe(route.matching(self.log.topic_names()))]
        position = route.adapt(parse(event_id) if event_id else Position(), matching)
        topics = self.log.describe(position.topics)
        route.check(position.topics, topics)
        if deleted:
            self.log.delete(deleted)
        return self.feeds.open(OpenRequest(route, position, topics, self.encoder))

    def next(self, topic: str) -> int:
        self.written += 1
        self.write(self.written, topic=topic)
        return self.written


@pytest.fixture
def world() -> Iterator[PatternWorld]:
    world = PatternWorld()
    with closing(world.feeds):
        yield world


def received(world: PatternWorld, reader: Reader, count: int) -> list[int]:
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


def test_a_topic_that_another_stream_reads_already_joins(world):
    """The stream ends if the tail is past the topic's first record. Its client resumes without a gap."""
    reader = world.follow()
    event_id = reader.position_id
    world.log.create("events.new")
    other = world.follow(route=Route("one", "/one", ("events.new",)))
    expected = [world.next("events.new")]
    world.turn()

    assert expected == numbers(other)
    found = numbers(reader)
    if reader.stop_reason is StopReason.ENDED:
        found += received(world, world.follow(reader.position_id if found else event_id), len(expected) - len(found))
    assert expected == found


def test_a_deleted_topic_leaves_the_stream(world):
    """Its streams end with their last event ID, and the clients resume without the topic."""
    reader = world.follow()
    world.log.delete("events.a")
    world.turn(3)
    numbers(reader)

    assert StopReason.ENDED is reader.stop_reason
    resumed = world.follow(reader.position_id)
    expected = [world.next("orders")]
    world.turn()
    assert expected == numbers(resumed)
    assert {"orders": 1} == topics_of(resumed.position_id)


@pytest.mark.parametrize("resumes", [False, True])
def test_a_topic_that_is_deleted_while_a_stream_opens_leaves_it(world, resumes):
    """A browser would never connect again after an error."""
    event_id = world.follow().position_id if resumes else ""
    world.new_feeds()

    reader = world.follow(event_id, deleted="events.a")

    expected = [world.next("orders")]
    assert expected == received(world, reader, 1)
    assert {"orders": 1} == topics_of(reader.position_id)


def test_a_deleted_topic_that_a_route_names_is_an_error(world):
    """As for a client that connects later."""
    with pytest.raises(TopicNotAvailable):
        world.follow(deleted="orders")


@pytest.mark.parametrize("start", [StartAt.LATEST, StartAt.EARLIEST])
def test_a_new_client_starts_where_the_route_says(world, start):
    """The topics that exist when it connects have not been created later."""
    before = world.next("events.a")
    reader = world.follow(route=replace(EVENTS, start=start))
    after = world.next("events.a")
    world.next("other")  # does not match
    world.turn()

    assert ([before] if start is StartAt.EARLIEST else []) + [after] == numbers(reader)
