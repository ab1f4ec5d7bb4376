"""A tail reads new records of some topics through one cursor, for all shared feeds of these topics in this worker."""

from __future__ import annotations

import time
from collections.abc import Mapping

import gevent

from kafkasse.errors import KafkasseError, KafkaUnavailable, Unavailable
from kafkasse.feed.shared_feed import SharedFeed
from kafkasse.feed.start import ResolvedPosition
from kafkasse.feed.topic_watch import TopicWatch
from kafkasse.log import Batch, Log, OffsetOutOfRange, Partition, PartitionsFailed, known_offset_ranges

# While no records arrive, a tail checks this often whether to send heartbeats, refresh its topics or close.
MAX_POLL_S = 1.0
UNAVAILABLE_BACKOFF_S = 0.5
# Each turn that reads records costs at least 0.3 ms of CPU. A short rest between two turns saves CPU, because the next turn
# reads more records. A rest costs a wake-up, so very short rests are skipped.
MIN_TURN_S = 0.002  # the minimum average time from one turn with records to the next
TURN_CREDIT_S = 0.02  # turns may be closer together after a pause, until they have used up this time
MIN_REST_S = 0.001
PUSH_REST_RATIO = 2.0  # with many readers: rest this many times as long as sending to them took
MAX_PUSH_REST_S = 0.02


class Tail:
    """Tails some topics for all shared feeds of these topics, in its own greenlet.

    Args:
        log: the log to read.
        start: the end of each partition of the topics.
        watch: notices changes of the topics.
        idle_timeout_s: a feed is dropped this many seconds after its last reader closed. Without feeds, the tail closes.
        heartbeat_s: how often the feeds send heartbeats.

    Attributes:
        feeds: the feeds, by their encoder.
        offsets: for each partition, the next offset to append to the feeds.
        timestamps: for each partition, the timestamp of its last record plus 1 ms, for event IDs of feeds that open later.
        closed: the tail has stopped, or is about to stop.
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
        """Start the greenlet that reads."""
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
        """Append the next records to all feeds, and send them. Return the seconds to rest before the next turn."""
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
        except PartitionsFailed as failed:
            raise next(iter(failed.errors.values())) from failed
        except Unavailable:
            gevent.sleep(UNAVAILABLE_BACKOFF_S)  # streams stay open and receive heartbeats until Kafka answers again
        return []

    def _recover(self, error: OffsetOutOfRange) -> None:
        """Continue at the next offset that the log holds, and report the lost records as a gap."""
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
