"""Catching up: read records through a cursor that serves one client. See core/catch_up.py and core/reader_states.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import gevent

from kafkasse.feed.core.catch_up import CatchUpCore
from kafkasse.feed.core.stats import RouteStats
from kafkasse.feed.core.versions import Versions, must_end
from kafkasse.feed.lookup import BackgroundLookups, known_offset_ranges
from kafkasse.feed.topic_watch import TopicWatch, partitions_of
from kafkasse.feed.versions import without_outdated
from kafkasse.log import Log, OffsetOutOfRange, OffsetRange, Offsets, Partition, PartitionsFailed
from kafkasse.process.event_loop import take_turn
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Selector
from kafkasse.records.position import IdWriter

MAX_POLL_S = 0.25  # read() calls `until` at least this often
FIND_PENDING_S = 1.0  # how often read() checks whether pending partitions have a leader now


class CatchUp(CatchUpCore):
    """A CatchUpCore with a cursor, which starts at the position of `ids`.

    See CatchUpCore for the other arguments.

    Args:
        log: the log to read.
        watch: notices changes of the topics.
        versions: the versions of the records before the position, if outdated records are dropped.
    """

    hook_errors = (Exception, gevent.Timeout)

    def __init__(
        self,
        log: Log,
        ids: IdWriter,
        encoder: Encoder,
        watch: TopicWatch,
        max_chunk_bytes: int,
        stats: RouteStats | None = None,
        follows_patterns: bool = False,
        selector: Selector | None = None,
        versions: Versions | None = None,
    ) -> None:
        super().__init__(ids, encoder, max_chunk_bytes, stats, follows_patterns, selector)
        self._log = log
        self._watch = watch
        self._versions = versions
        self._lookups = BackgroundLookups()
        self._find_pending_at = 0.0
        self._cursor = log.cursor(ids.offsets, epochs=ids.epochs, topic_ids=ids.topic_ids)

    def read(self, timeout_s: float, until: Callable[[], bool] = lambda: False) -> bytes:
        """Return the next frames. Return b"" after `timeout_s` seconds, or as soon as `until()` is true or the stream ended.

        Raises:
            KafkasseError: the stream cannot continue.
        """
        deadline = time.monotonic() + timeout_s
        while not (self.ended or until()):
            if self.idle:
                self._check_topics()
                self._find_pending()
                if gaps := self._fetch(max(0.0, min(MAX_POLL_S, deadline - time.monotonic()))):
                    return gaps
            if frames := self._encode():
                return frames
            if time.monotonic() >= deadline:
                break
        return b""

    def _encode(self) -> bytes:
        steps = self.frames()
        while True:
            began_at = time.perf_counter()
            try:
                next(steps)
            except StopIteration as end:
                frames: bytes = end.value
                return frames
            finally:
                self._stats.encode_s += time.perf_counter() - began_at
            take_turn()

    def close(self) -> None:
        """Close the cursor. May be called twice."""
        super().close()
        self._cursor.close()

    def _fetch(self, timeout_s: float) -> bytes:
        """Fetch the next batches. Return gap events if the log has lost records that the client needs."""
        try:
            batches = self._cursor.poll(timeout_s)
            # All at once: between two batches of a partition, the reader may lose its slot and drop the first one.
            self.add([without_outdated(batch, self._versions, self._stats) for batch in batches])
        except OffsetOutOfRange as error:
            resumption, gaps = self.resume(error, self._known_offset_ranges(error.partitions))
            self._cursor.seek(resumption.offsets, resumption.epochs)
            self.ended = self.ended or must_end(self._versions is not None, resumption.gaps)
            return gaps
        except PartitionsFailed as error:
            raise next(iter(error.errors.values())) from error
        return b""

    def _check_topics(self) -> None:
        topics = self.change_topics(self._watch.check(self.ids.topic_ids))
        if added := [partition for partition in partitions_of(topics) if not self.has_partition(partition)]:
            # From 0, so that a gap reports the records that retention has removed.
            self._add(dict.fromkeys(self._known_offset_ranges(added), 0))

    def _known_offset_ranges(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetRange]:
        return known_offset_ranges(self._log, partitions, self.ids.topic_ids)

    def _find_pending(self) -> None:
        """Start to read the pending partitions that have a leader now."""
        if self.ids.pending and time.monotonic() >= self._find_pending_at:
            self._find_pending_at = time.monotonic() + FIND_PENDING_S
            pending = dict(self.ids.pending)
            self._add(self._lookups.get("pending partitions", lambda: self._log.offsets_at(pending)) or {})

    def _add(self, starts: Offsets) -> None:
        self._cursor.seek(starts, topic_ids=self.ids.topic_ids)
        self.add_partitions(starts)
