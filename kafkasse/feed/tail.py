"""The tail: reads the new records of all topics with live readers through one cursor, for all shared feeds of this worker.

                   ┌─▶ partition a/0 ─┬─▶ feed of a
    cursor ─▶ Tail ┼─▶ partition b/0 ─┼─▶ feed of a and b
                   └─▶ partition b/1 ─┘

The work for a record depends on the feeds that contain its partition, and not on the number of other feeds and topics. An
error of a topic ends only the feeds that contain it, and an error of a feed ends only that feed.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import gevent

from kafkasse.errors import KafkasseError, KafkaUnavailable, Unavailable
from kafkasse.feed.backlog import MAX_BYTES, Backlog, size_of
from kafkasse.feed.core.feed import FeedKey
from kafkasse.feed.core.tail import PartitionState, TailCore, TailPartition
from kafkasse.feed.core.versions import Versions, must_end
from kafkasse.feed.lookup import UNAVAILABLE_BACKOFF_S, BackgroundLookups, known_offset_ranges
from kafkasse.feed.shared_feed import SharedFeed
from kafkasse.feed.topic_watch import TopicWatch, partitions_of
from kafkasse.feed.versions import without_outdated
from kafkasse.log import Batch, Log, OffsetOutOfRange, Offsets, Partition, PartitionsFailed, Ranges, Topics
from kafkasse.process.event_loop import take_turn

log = logging.getLogger(__name__)

# While no records arrive, a tail checks this often whether to send heartbeats, refresh its topics or close.
MAX_POLL_S = 1.0
# Each turn that reads records costs about 0.2 ms of CPU. A short rest between two turns saves CPU, because the next turn
# reads more records. A rest costs a wake-up, so very short rests are skipped.
MIN_TURN_S = 0.002  # the minimum average time from one turn with records to the next
# A fetch costs the broker about 3 µs for each partition of the session, whether it has records or not. With more than 400
# partitions, turns are longer, because more fetches would make the broker slower for everyone.
PARTITION_TURN_S = 0.000_005
# With many readers, sending takes longer than this rest, and each turn that is saved leaves CPU time for sending.
READER_TURN_S = 0.000_000_1
MAX_TURN_S = 0.02
TURN_CREDIT_S = 0.02  # turns may be closer together after a pause, until they have used up this time
MIN_REST_S = 0.001
PUSH_REST_RATIO = 2.0  # with many readers: rest this many times as long as sending to them took
MAX_PUSH_REST_S = 0.02
# How long the frames of the first feeds wait until other feeds are encoded. With hundreds of partitions in each event ID,
# encoding the records of a turn takes 20 ms or more.
MAX_UNSENT_S = 0.01

READING_FAILED = "Reading from Kafka failed. Reconnect with your last event ID."
ENCODING_FAILED = "The server could not encode a record, so it ended the stream."


class LaterBatches:
    """The batches that a tail reads while the versions of the records before them are read.

    A busy tail moves before the last record is read. Without these batches, a new feed would never know all versions.

    Attributes:
        partitions: the partitions whose batches are kept.
        openers: how many greenlets open the feed.
    """

    def __init__(self) -> None:
        self.partitions: set[Partition] = set()
        self.openers = 0
        self._batches: list[tuple[int, Batch]] = []
        self._bytes = 0

    def append(self, offset: int, batch: Batch) -> None:
        """Keep a batch that begins at this offset. If there are too many, drop them: their versions must be read, too."""
        if batch.partition not in self.partitions:
            return
        self._batches.append((offset, batch))
        self._bytes += size_of(batch)
        if self._bytes > MAX_BYTES:
            self._batches.clear()
            self._bytes = 0

    def add_to(self, versions: Versions) -> None:
        """Add the versions of the batches that follow the records whose versions are known."""
        for offset, batch in self._batches:  # the tail may change the list meanwhile
            if versions.ends.get(batch.partition) == offset:
                without_outdated(batch, versions)


class Tail(TailCore[SharedFeed]):
    """Tails the topics of all shared feeds, in its own greenlet. It closes when it has no feeds.

    Args:
        log: the log to read.
        watch: notices changes of the topics.
        idle_timeout_s: a feed is dropped this many seconds after its last reader closed.
        heartbeat_s: how often the feeds send heartbeats.

    Attributes:
        backlogs: the backlogs of the feeds with hooks.
        closed: the tail has stopped, or is about to stop.
        truncations: how often the log was found to have lost records.
    """

    def __init__(self, log: Log, watch: TopicWatch, idle_timeout_s: float, heartbeat_s: float) -> None:
        super().__init__()
        self.closed = False
        self.truncations = 0
        self.backlogs: dict[SharedFeed, Backlog] = {}
        self._log = log
        self._watch = watch
        self._idle_timeout_s = idle_timeout_s
        self._poll_s = min(MAX_POLL_S, heartbeat_s)
        self._check_at = time.monotonic() + self._poll_s
        self._next_turn_at = 0.0
        self._lookups = BackgroundLookups()
        self._later: dict[FeedKey, LaterBatches] = {}
        self._cursor = log.cursor({}, tail=True)

    def start(self) -> None:
        """Start the greenlet that reads."""
        gevent.spawn(self._run)

    def close(self) -> None:
        """Stop, and end all streams so that their clients reconnect."""
        self._end(None)

    def _run(self) -> None:
        try:
            while not self.closed:
                if rest_s := self.turn(self._poll_s):
                    gevent.sleep(rest_s)
        except KafkasseError as error:
            self._end(error)
        except BaseException:
            self._end(KafkaUnavailable(READING_FAILED))
            raise
        finally:
            self._cursor.close()

    def _end(self, error: KafkasseError | None) -> None:
        self.closed = True  # before the clients wake up, because those that reconnect need another tail
        self.fail(self.feeds.values(), error)

    # Feeds.

    def end_recreated(self, topics: Topics) -> None:
        """End the streams of those topics that have another topic ID now."""
        for name in self.recreated(topics):
            self.fail(self._feeds_of(name), None)

    def add(self, feed: SharedFeed, states: Mapping[Partition, PartitionState[SharedFeed]]) -> None:
        """Append new records to a feed from now on.

        Args:
            feed: the feed.
            states: the partitions of the feed, at the feed's position. Those that the tail reads are in `partitions`.
        """
        if feed.key.encoder.has_hooks:
            self.backlogs[feed] = Backlog(feed, lambda: feed.skip_to(*self.position_of(feed)))
        offsets, epochs = self._add(feed, states)
        self._cursor.seek(offsets, epochs, feed.ids.topic_ids)

    @contextmanager
    def recording(self, key: FeedKey, partitions: Iterable[Partition]) -> Iterator[LaterBatches]:
        """Keep the batches of these partitions, once for all greenlets that open this feed."""
        if (later := self._later.get(key)) is None:
            later = self._later[key] = LaterBatches()
            self.recordings.append(later.append)
        later.partitions.update(partitions)
        later.openers += 1
        try:
            yield later
        finally:
            later.openers -= 1
            if not later.openers:
                del self._later[key]
                self.recordings.remove(later.append)

    def remove(self, feed: SharedFeed) -> None:
        """Remove a feed, and stop reading the partitions that no other feed contains."""
        if self.feeds.get(feed.key) is feed:
            self.backlogs.pop(feed, None)
            self._cursor.remove(self._remove(feed))

    def fail(self, feeds: Iterable[SharedFeed], error: KafkasseError | None) -> None:
        """Remove feeds, and end their streams with this error. If it is None, the clients reconnect."""
        for feed in list(feeds):
            self.remove(feed)
            feed.fail(error)

    # Records.

    def turn(self, timeout_s: float) -> float:
        """Append the next records to their feeds, and send them. Return the seconds to rest before the next turn."""
        batches = self._poll(timeout_s)
        changed: dict[SharedFeed, None] = {}
        unsent: dict[SharedFeed, None] = {}
        sending_s, flushed_at = 0.0, time.monotonic()
        for batch, feeds in self.deliveries(batches):
            for feed in feeds:
                newest = feed.newest(batch)  # before the backlog, which may drop the batch
                self._change(feed, partial(self._append, feed, newest), newest)
                changed[feed] = unsent[feed] = None
                if len(unsent) > 1 and time.monotonic() - flushed_at > MAX_UNSENT_S:
                    sending_s += self._flush(unsent)
                    flushed_at = time.monotonic()
        sending_s += self._flush(unsent)
        rest_s = self._rest_s(sending_s, bool(batches), sum([feed.readers for feed in changed]))
        if time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + self._poll_s
            self._check_feeds()
            self._check_topics()
        return rest_s

    def _flush(self, feeds: dict[SharedFeed, None]) -> float:
        """Send the frames of these feeds, and empty `feeds`. Return the seconds that this took."""
        began_at = time.monotonic()
        for feed in feeds:
            if feed not in self.backlogs:
                feed.flush()
        feeds.clear()
        return time.monotonic() - began_at

    def _change(self, feed: SharedFeed, change: Callable[[], None], batch: Batch | None = None) -> None:
        """Change a feed, or put the change into the backlog of a feed with hooks. `batch` is what it appends."""
        if (backlog := self.backlogs.get(feed)) is not None:
            backlog.put(change, batch)
        elif self.feeds.get(feed.key) is feed:  # a feed that was removed meanwhile must not call its hooks
            change()

    def _append(self, feed: SharedFeed, batch: Batch) -> None:
        try:
            feed.append(batch)
        except gevent.GreenletExit:
            raise
        except BaseException as error:  # noqa: BLE001 - a hook may let any exception escape, such as a gevent.Timeout
            # The text of the exception may contain data of the record, so it is not logged.
            cause = error.__cause__ or error
            where = traceback.extract_tb(cause.__traceback__)[-1]
            log.error(
                "%s/%d offset %d cannot be encoded, so its streams end: %s in %s, line %s",
                *batch.partition,
                feed.ids.offsets[batch.partition],
                type(cause).__name__,
                where.filename,
                where.lineno,
            )
            self.fail([feed], error if isinstance(error, KafkasseError) else KafkasseError(ENCODING_FAILED))

    def _rest_s(self, sending_s: float, had_records: bool, readers: int) -> float:
        now = time.monotonic()
        rest_s = min(MAX_PUSH_REST_S, sending_s * PUSH_REST_RATIO)
        if had_records:
            turn_s = max(MIN_TURN_S, PARTITION_TURN_S * len(self.partitions)) + READER_TURN_S * readers
            turn_s = min(MAX_TURN_S, turn_s)
            self._next_turn_at = max(self._next_turn_at, now - TURN_CREDIT_S) + turn_s
            rest_s = max(rest_s, self._next_turn_at - now)
        return rest_s if rest_s >= MIN_REST_S else 0.0

    def _poll(self, timeout_s: float) -> list[Batch]:
        try:
            return self._cursor.poll(timeout_s)
        except OffsetOutOfRange as error:
            self._recover(error)
        except PartitionsFailed as error:
            for partition, reason in error.errors.items():
                if (state := self.partitions.get(partition)) is not None:
                    self.fail(state.feeds, reason)
        except Unavailable:
            gevent.sleep(UNAVAILABLE_BACKOFF_S)  # streams stay open and receive heartbeats until Kafka answers again
        return []

    def _recover(self, error: OffsetOutOfRange) -> None:
        """Continue at the next offset that the log holds, and report the lost records as a gap."""
        states = {
            partition: state
            for partition in error.partitions
            if isinstance(state := self.partitions.get(partition), TailPartition)
        }
        topic_ids = {partition.topic: self.topics[partition.topic].topic_id for partition in states}

        def look_up() -> tuple[OffsetOutOfRange, Mapping[Partition, TailPartition[SharedFeed]], Ranges]:
            return error, states, known_offset_ranges(self._log, states, topic_ids)

        if (response := self._lookups.get("offset ranges", look_up)) is None:
            return  # the cursor will raise the error again
        resumption, gaps = self.resume(*response)
        self._cursor.seek(resumption.offsets, resumption.epochs)
        self.truncations += resumption.is_truncated
        for feed, gap in gaps:
            self._change(feed, partial(feed.report_gap, gap))
            feed.flush()
        for feed in {feed for feed, gap in gaps if must_end(feed.key.newest_by is not None, [gap])}:
            end = partial(self.fail, [feed], None)
            if (backlog := self.backlogs.get(feed)) is not None:
                backlog.skip = end  # if it overflows, it drops the change
            self._change(feed, end)

    # Checks at intervals.

    def _check_feeds(self) -> None:
        """Send the heartbeats that are due, and drop idle feeds."""
        now = time.monotonic()
        for feed in list(self.feeds.values()):
            feed.stats.silent_since = self._watch.silent_since
            if not feed.readers and now - feed.idle_since > self._idle_timeout_s:
                self.remove(feed)
            elif feed.heartbeat_is_due(now):
                feed.flush()
        self.closed = self.closed or not self.feeds

    def _check_topics(self) -> None:
        """End the feeds of topics that were deleted or recreated, and add partitions."""
        changes = self._watch.check({name: topic.topic_id for name, topic in self.topics.items()})
        for feed, error in self.ended(changes):
            self.fail([feed], error)
        self.add_topics(changes.matching)
        pending = self.pending
        existing = dict.fromkeys(
            [*partitions_of(changes.whole), *partitions_of(changes.matching)]
        )  # the order in event IDs
        added = []
        for partition in existing:
            take_turn(urgent=True)
            if self.lacks(partition):
                added.append(partition)
        if added:
            ranges = self._lookups.get("added partitions", lambda: self._log.offset_ranges(added)) or {}
            self._add_partitions(dict.fromkeys(ranges, 0))  # from 0, so that a gap reports what retention has removed
        if pending:
            self._add_partitions(self._lookups.get("pending partitions", lambda: self._log.offsets_at(pending)) or {})

    def _add_partitions(self, offsets: Offsets) -> None:
        """Add partitions that were created, or that have a leader again, to the feeds of their topics."""
        for partition, offset in offsets.items():
            feeds, ended = self.start_partition(partition, offset)
            self.fail(ended, None)
            if feeds:
                topic_ids = {partition.topic: self.topics[partition.topic].topic_id}
                for feed in feeds:
                    self._change(feed, partial(feed.add_partitions, {partition: offset}, topic_ids))
                self._cursor.seek({partition: offset}, topic_ids=topic_ids)
