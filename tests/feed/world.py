"""A log in memory, its feeds and clients. A test calls turn() in place of the greenlets of the tails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import gevent

from kafkasse.config import Config
from kafkasse.feed.core.reader_states import ReaderState
from kafkasse.feed.feeds import Feeds, OpenRequest
from kafkasse.feed.reader import Reader
from kafkasse.feed.shared_feed import SharedFeed
from kafkasse.feed.tail import Tail
from kafkasse.log import Topic
from kafkasse.log.memory import MemoryCursor, MemoryLog
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Selector
from kafkasse.records.position import of_topics, parse
from kafkasse.route import Route
from kafkasse_client.sse import Event, Parser
from tests.support import turns
from tests.support.waiting import TIMEOUT_S


class CountedCursor(MemoryCursor):
    closed = False

    def close(self) -> None:
        self.closed = True
        super().close()


class CountingLog(MemoryLog):
    """A log that keeps its cursors, and the topics of each lookup."""

    def __init__(self) -> None:
        super().__init__()
        self.cursors: list[CountedCursor] = []
        self.described: list[list[str]] = []

    def cursor(self, offsets: Any, tail: bool = False, epochs: Any = None, topic_ids: Any = None) -> MemoryCursor:
        self.cursors.append(CountedCursor(self, offsets, epochs, topic_ids))
        return self.cursors[-1]

    @property
    def open_cursors(self) -> int:
        return sum(not cursor.closed for cursor in self.cursors)

    def describe(self, topics: Any) -> dict[str, Topic]:
        self.described.append(list(topics))
        return super().describe(topics)


def before_next_lookup(log: MemoryLog, change: Callable[[], object]) -> None:
    """Change the log just before the next lookup of offsets."""

    def offset_ranges(partitions: Any) -> Any:
        patched.stop()
        change()
        return log.offset_ranges(partitions)

    patched = patch.object(log, "offset_ranges", offset_ranges)
    patched.start()


def recreate(log: MemoryLog, topic: str) -> None:
    partition_count = log.describe([topic])[topic].partitions
    log.delete(topic)
    log.create(topic, partition_count)


class World:
    """A log with some topics, and feeds with these settings. The streams share an encoder unless a test passes another."""

    def __init__(
        self, encoder: Encoder | None = None, topics: dict[str, int] | None = None, log: Any = None, **settings: Any
    ) -> None:
        self.log = log or CountingLog()
        for topic, partitions in ({"t": 2} if topics is None else topics).items():
            self.log.create(topic, partitions)
        self.tails: list[Tail] = []
        self.encoder = encoder or Encoder()
        self.new_feeds(**settings)

    def new_feeds(self, **settings: Any) -> None:
        """Continue with feeds of another process, which have read nothing."""
        self.feeds = Feeds(self.log, replace(Config().feed, **settings), self.tails.append)

    def open(
        self, *at: Any, encoder: Encoder | None = None, selector: Selector | None = None, client: str = "", **route: Any
    ) -> Reader:
        """Open a stream of these topics, or at this event ID, or at these entries of one. By default, of the topic t."""
        if at and isinstance(at[0], str):
            position = parse(at[0]) if at[0][0] in "[~" else of_topics(at)
        else:
            position = parse(json.dumps(at)) if at else of_topics(["t"])
        opened = Route("r", "/r", None, **route), position, self.log.describe(position.topics), encoder or self.encoder
        return self.feeds.open(OpenRequest(*opened, selector=selector, client=client))

    def write(self, *numbers: int, topic: str = "t", partition: int = 0, **record: Any) -> None:
        """Append a record for each number. No tail has read them yet."""
        for n in numbers:
            self.log.append(topic, b'{"n":%d}' % n, partition, **record)

    def put(self, *numbers: int, **record: Any) -> None:
        """Append records, and let the tail read them."""
        self.write(*numbers, **record)
        self.turn()

    def turn(self, times: int = 1) -> None:
        """Let the tail read the records, and do what is due."""
        for tail in self.tails[-1:] * times:
            turns.turn(tail)

    @property
    def feed(self) -> SharedFeed:
        [feed] = [feed for tail in self.tails for feed in tail.feeds.values()]
        return feed


class ImpatientWorld(World):
    """Heartbeats, and checks of the topics, are due at each turn."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"heartbeat_s": 0.001, "metadata_refresh_s": 0.0, **settings})

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            super().turn()
            gevent.sleep(0.002)
            super().turn()


class Client:
    """A client of a stream: what it received, and the event ID with which it would reconnect."""

    def __init__(self, reader: Reader, last_id: str = "") -> None:
        self.reader = reader
        self.parser = Parser(last_event_id=last_id)
        self.bytes = b""
        self.events: list[Event] = []
        self.take(reader.begin())

    def take(self, frames: bytes) -> list[Event]:
        events = list(self.parser.receive(frames))
        self.bytes += frames
        self.events += events
        return events

    def chunks(self) -> Iterator[bytes]:
        """Yield the snapshot, if the stream starts with one, and everything else that is ready."""
        while chunk := self.reader.read(TIMEOUT_S if self.reader.state is ReaderState.SNAPSHOT else 0):
            yield chunk

    def read(self) -> list[Event]:
        return [event for chunk in self.chunks() for event in self.take(chunk)]

    @property
    def last_id(self) -> str:
        return self.parser.last_event_id
