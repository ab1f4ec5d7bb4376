"""Follows the end of some topics, once in a worker, for all feeds over them."""

from __future__ import annotations

import time

import gevent

from kafkasse.errors import KafkasseError, KafkaUnavailable, Unavailable
from kafkasse.feed.ring import SharedFeed
from kafkasse.feed.start import ResolvedPosition
from kafkasse.feed.topic_watch import TopicWatch
from kafkasse.log import Batch, Log, OffsetOutOfRange, known_offset_ranges

POLL_S = 1.0  # how often a tail looks up from a silent log: at heartbeats, topics, and whether it is still needed
BROKEN_PAUSE_S = 0.5
PUSH_SHARE = 2.0  # rest this many times as long as a push took, so that records gather while there are many readers
PUSH_REST_MAX_S = 0.02
REST_MIN_S = 0.001  # a shorter one gathers little, and costs a waking up all the same
TURN_S = 0.002  # of turns that bring records there are no more than one in this time: each costs 0.3 ms of CPU at least
TURNS_SAVED_S = 0.02  # over how long that holds: a rest costs a waking up, which is worth it only where it saves turns


class Tail:
    """Follows the end of some topics for all feeds over them, in a greenlet of its own.

    Args:
        log: the log to read.
        opening: where all partitions of the topics end.
        watch: notices what becomes of the topics.
        grace_s: how long it goes on without readers.
        heartbeat_s: how long its feeds may be silent.
    """

    def __init__(
        self, log: Log, opening: ResolvedPosition, watch: TopicWatch, grace_s: float, heartbeat_s: float
    ) -> None:
        self._log = log
        self._watch = watch
        self._grace_s = grace_s
        self._poll_s = min(POLL_S, heartbeat_s)
        self.topic_ids = opening.topic_ids
        self.offsets = dict(opening.offsets)  # the next offset to fetch, whether or not there is a feed to hear of it
        self.timestamps = dict(opening.timestamps)  # of the record before that, for ids of feeds that are opened later
        self.feeds: dict[object, SharedFeed] = {}
        self.closed = False
        self._turn_due = 0.0  # before then it rests, if there were turns before that brought records
        self._cursor = log.cursor(opening.offsets, tail=True, shared=True)

    @property
    def idle(self) -> bool:
        """Whether it follows for nobody, until its grace is over."""
        return not self.closed and not any(feed.readers for feed in self.feeds.values())

    def start(self) -> None:
        """Follow from now on, in a greenlet."""
        gevent.spawn(self._run)

    def close(self) -> None:
        """Stop following, and end all readers politely."""
        self.closed = True
        for feed in self.feeds.values():
            feed.fail(None)

    def _run(self) -> None:
        try:
            while not self.closed:
                gevent.sleep(self.turn(self._poll_s))
                self._look_around()
        except KafkasseError as error:
            self._fail(error)
        except Exception as error:
            self._fail(KafkaUnavailable("Reading from Kafka failed. Come back with your last id."))
            raise error
        finally:
            self.closed = True
            self._cursor.close()

    def turn(self, timeout_s: float) -> float:
        """Give what the log has to all feeds. Returns for how many seconds to rest before the next turn."""
        batches = self._poll(timeout_s)
        for batch in batches:
            self.offsets[batch.partition] = batch.next_offset
            if batch.records:
                self.timestamps[batch.partition] = (batch.records[-1].timestamp or 0) + 1
            for feed in self.feeds.values():
                feed.append(batch)
        began = time.monotonic()
        for feed in self.feeds.values():
            feed.flush()
        # Many readers: let records gather while they read, so that one write carries more than one record.
        rest_s = min(PUSH_REST_MAX_S, (time.monotonic() - began) * PUSH_SHARE)
        if batches:
            now = time.monotonic()
            self._turn_due = max(self._turn_due, now - TURNS_SAVED_S) + TURN_S
            rest_s = max(rest_s, self._turn_due - now)
        return rest_s if rest_s >= REST_MIN_S else 0.0

    def _poll(self, timeout_s: float) -> list[Batch]:
        try:
            return self._cursor.poll(timeout_s)
        except OffsetOutOfRange as error:
            self._recover(error)
        except Unavailable:
            gevent.sleep(BROKEN_PAUSE_S)  # patience: readers get heartbeats until Kafka is back
        return []

    def _recover(self, lost: OffsetOutOfRange) -> None:
        for each, bounds in known_offset_ranges(self._log, lost.partitions).items():
            if gap := lost.gap(each, self.offsets[each], bounds):
                self.offsets[each] = gap.end
                for feed in self.feeds.values():
                    feed.declare(gap)
            self._cursor.seek({each: self.offsets[each]})

    def _look_around(self) -> None:
        for feed in [feed for feed in self.feeds.values() if not feed.readers]:
            if time.monotonic() - feed.idle_since > self._grace_s:
                self.feeds = {key: each for key, each in self.feeds.items() if each is not feed}
        if not self.feeds:
            self.closed = True
            return
        news = self._watch.look(self.topic_ids, self.offsets)
        if news.remade:
            self.close()
        elif news.added:
            firsts = {each: bounds.start for each, bounds in known_offset_ranges(self._log, news.added).items()}
            if firsts:
                self.offsets |= firsts
                for feed in self.feeds.values():
                    feed.add_partitions(firsts)
                self._cursor.seek(firsts)

    def _fail(self, error: KafkasseError) -> None:
        for feed in self.feeds.values():
            feed.fail(error)
