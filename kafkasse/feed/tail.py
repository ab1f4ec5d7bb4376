"""Tails some topics: one cursor at their end, for all shared feeds of these topics in this worker."""

from __future__ import annotations

import time
from collections.abc import Mapping

import gevent

from kafkasse.errors import KafkasseError, KafkaUnavailable, Unavailable
from kafkasse.feed.shared_feed import SharedFeed
from kafkasse.feed.start import ResolvedPosition
from kafkasse.feed.topic_watch import TopicWatch
from kafkasse.log import Batch, Log, OffsetOutOfRange, Partition, known_offset_ranges

MAX_POLL_S = (
    1.0  # how often a tail of silent topics sends heartbeats, checks its topics, and checks whether it is needed
)
UNAVAILABLE_BACKOFF_S = 0.5
# Each turn that brings records costs at least 0.3 ms of CPU, so a short rest that lets records gather saves CPU. A rest
# costs a wake-up too, so it must save turns.
MIN_TURN_S = 0.002  # on average, one turn with records in this time
TURN_CREDIT_S = 0.02  # the time over which this average holds
MIN_REST_S = 0.001
PUSH_REST_RATIO = 2.0  # with many readers: rest this many times as long as sending to them took
MAX_PUSH_REST_S = 0.02


class Tail:
    """Tails some topics for all shared feeds of them, in a greenlet of its own.

    Args:
        log: the log to read.
        start: the end of all partitions of the topics.
        watch: notices changes of the topics.
        idle_timeout_s: a feed is dropped this many seconds after its last reader left; without feeds, the tail closes.
        heartbeat_s: how often the feeds send heartbeats.

    Attributes:
        feeds: the feeds, by their encoder.
        offsets: the next offset to fetch.
        timestamps: one more than the timestamp of the last record, for the event IDs of feeds that are opened later.
    """

    def __init__(
        self, log: Log, start: ResolvedPosition, watch: TopicWatch, idle_timeout_s: float, heartbeat_s: float
    ) -> None:
        self.topic_ids = start.topic_ids
        self.offsets = dict(start.offsets)
        self.timestamps = dict(start.timestamps)
        self.feeds: dict[object, SharedFeed] = {}
        self.closed = False
        self._log = log
        self._watch = watch
        self._idle_timeout_s = idle_timeout_s
        self._poll_s = min(MAX_POLL_S, heartbeat_s)
        self._next_turn_at = 0.0
        self._cursor = log.cursor(start.offsets, tail=True, shared=True)

    def start(self) -> None:
        """Tail from now on, in a greenlet."""
        gevent.spawn(self._run)

    def close(self) -> None:
        """Stop, and end all streams so that their clients reconnect."""
        self.closed = True
        self._fail(None)

    @property
    def idle(self) -> bool:
        """Whether the tail is open, although no feed has a reader."""
        return not self.closed and not any(feed.readers for feed in self.feeds.values())

    def _run(self) -> None:
        try:
            while not self.closed:
                gevent.sleep(self.turn(self._poll_s))
                self._drop_idle_feeds()
                if self.feeds:
                    self._check_topics()
                else:
                    self.closed = True
        except KafkasseError as error:
            self._fail(error)
        except Exception:
            self._fail(KafkaUnavailable("Reading from Kafka failed. Reconnect with your last event ID."))
            raise
        finally:
            self.closed = True
            self._cursor.close()

    def turn(self, timeout_s: float) -> float:
        """Append the next records to all feeds, and send them. Returns how many seconds to rest before the next turn."""
        batches = self._poll(timeout_s)
        for batch in batches:
            self.offsets[batch.partition] = batch.next_offset
            if batch.records:
                self.timestamps[batch.partition] = (batch.records[-1].timestamp or 0) + 1
            for feed in list(self.feeds.values()):  # a hook may switch greenlets, and another greenlet may add a feed
                feed.append(batch)
        began_at = time.monotonic()
        for feed in self.feeds.values():
            feed.flush()
        return self._rest_s(began_at, bool(batches))

    def _rest_s(self, began_at: float, had_records: bool) -> float:
        now = time.monotonic()
        rest_s = min(MAX_PUSH_REST_S, (now - began_at) * PUSH_REST_RATIO)
        if had_records:
            self._next_turn_at = max(self._next_turn_at, now - TURN_CREDIT_S) + MIN_TURN_S
            rest_s = max(rest_s, self._next_turn_at - now)
        return rest_s if rest_s >= MIN_REST_S else 0.0

    def _poll(self, timeout_s: float) -> list[Batch]:
        try:
            return self._cursor.poll(timeout_s)
        except OffsetOutOfRange as error:
            self._recover(error)
        except Unavailable:
            gevent.sleep(UNAVAILABLE_BACKOFF_S)  # streams stay open, and receive heartbeats until Kafka is back
        return []

    def _recover(self, error: OffsetOutOfRange) -> None:
        """Continue where the log does, and declare the records in between as lost."""
        for partition, held in known_offset_ranges(self._log, error.partitions).items():
            if gap := error.gap(partition, self.offsets[partition], held):
                self.offsets[partition] = gap.end
                for feed in self.feeds.values():
                    feed.declare(gap)
            self._cursor.seek({partition: self.offsets[partition]})

    def _drop_idle_feeds(self) -> None:
        now = time.monotonic()
        idle = [
            key for key, feed in self.feeds.items() if not feed.readers and now - feed.idle_since > self._idle_timeout_s
        ]
        for key in idle:
            del self.feeds[key]

    def _check_topics(self) -> None:
        changes = self._watch.check(self.topic_ids, self.offsets)
        if changes.recreated:
            self.close()
        elif changes.added:
            held = known_offset_ranges(self._log, changes.added)
            self._add_partitions({partition: offsets.start for partition, offsets in held.items()})

    def _add_partitions(self, offsets: Mapping[Partition, int]) -> None:
        if offsets:
            self.offsets |= offsets
            for feed in self.feeds.values():
                feed.add_partitions(offsets)
            self._cursor.seek(offsets)

    def _fail(self, error: KafkasseError | None) -> None:
        for feed in self.feeds.values():
            feed.fail(error)
