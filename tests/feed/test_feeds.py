"""What a client of a shared feed is told before any record has come. Joining and falling behind: see test_joins.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from kafkasse.config import Config
from kafkasse.feed import Feeds
from kafkasse.feed.memory import MemoryLog
from kafkasse.feed.own import OwnReader
from kafkasse.feed.follower import Follower
from kafkasse.feed.shared import SharedReader
from kafkasse.frame import Encoder
from kafkasse.position import IdKind, of_topics, parse
from kafkasse.route import Route
from kafkasse.sse import Parser


class World:
    """A log that holds a record, and feeds whose followers are turned by hand."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.log.create("t", 2)
        self.log.append("t", b'{"n":0}', timestamp=1000)
        self.followers: list[Follower] = []
        self.feeds = Feeds(self.log, Config(), self.followers.append)

    def open(self, kind: IdKind, encoder: Encoder, last_id: str = "") -> OwnReader | SharedReader:
        position = parse(last_id) if last_id else of_topics(["t"])
        route = Route("topics", "/<topics>", None, id=kind)
        return self.feeds.open(route, position, self.log.describe(["t"]), encoder)

    def first_id(self, kind: IdKind, encoder: Encoder) -> str:
        """The id that a client which starts at the end gets at once."""
        parser = Parser()
        assert [] == list(parser.receive(self.open(kind, encoder).begin()))
        return parser.last_event_id


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with closing(world.feeds):
        yield world


@pytest.mark.parametrize("kind", IdKind)
def test_who_comes_back_without_a_record_gets_no_old_ones(world: World, kind: IdKind) -> None:
    """The first id of a client that starts at the end leaves out what was there, in ids of time, too."""
    first = world.first_id(kind, Encoder())

    assert b"" == world.open(kind, Encoder(), first).read(0)


@pytest.mark.parametrize("kind", [IdKind.TIMESTAMP, IdKind.BOTH])
def test_ids_of_time_can_go_on_elsewhere(world: World, kind: IdKind) -> None:
    """A client that takes its first id to a copy of the topic gets what is written there from now on, and no more."""
    before = time.time_ns() // 1_000_000

    first = parse(world.first_id(kind, Encoder()))

    assert all(before <= (start.timestamp or 0) <= time.time_ns() // 1_000_000 for start in first.starts.values())


@pytest.mark.parametrize("kind", IdKind)
def test_who_joins_a_feed_later_gets_no_old_ones_either(world: World, kind: IdKind) -> None:
    """The same for a client of another format, when the topic has moved on since it was first followed."""
    world.first_id(kind, Encoder())
    world.log.append("t", b'{"n":1}')
    world.followers[0].turn(0)

    first = world.first_id(kind, Encoder("envelope"))

    assert b"" == world.open(kind, Encoder("envelope"), first).read(0)
