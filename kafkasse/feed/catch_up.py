"""Catching up: read records through a cursor that serves one client, and encode frames with this client's event IDs.

A reader catches up until the ring covers its position; see reader_states.py.
"""

from __future__ import annotations

import time
from collections import ChainMap, deque
from collections.abc import Callable, Mapping

import gevent

from kafkasse.feed.core.feed import gap_events
from kafkasse.feed.core.stats import RouteStats
from kafkasse.feed.core.versions import Versions
from kafkasse.feed.lookup import BackgroundLookups
from kafkasse.feed.topic_watch import TopicWatch, partitions_of, topic_gone
from kafkasse.feed.versions import without_outdated
from kafkasse.log import Batch, Log, OffsetOutOfRange, Partition, PartitionsFailed, known_offset_ranges
from kafkasse.process.event_loop import take_turn
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Selector
from kafkasse.records.frame import DecoderPending
from kafkasse.records.position import IdWriter

MAX_POLL_S = 0.25  # read() calls `until` at least this often
FIND_PENDING_S = 1.0  # how often read() checks whether pending partitions have a leader now


class CatchUp:
    """Reads the records of one stream through its own cursor.

    Args:
        log: the log to read.
        ids: writes the stream's event IDs. Its position is where the cursor starts, and moves with the frames that read()
            returns.
        encoder: encodes records.
        watch: notices changes of the topics.
        max_chunk_bytes: read() returns about this many bytes at most.
        stats: the totals of the route.
        follows_patterns: a topic that is deleted leaves the stream, instead of ending it with an error.
        selector: the records that the client receives, if the encoder has dimensions. The position moves past the others.
        versions: the versions of the records before the position, if outdated records are dropped.

    Attributes:
        events: the number of records that read() has returned.
        ended: a topic was recreated, so the stream must end. The client reconnects with an ID of the old topic.
        id_sent: the last event ID that the client received is the current position.
    """

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
        self._versions = versions
        self._follows_patterns = follows_patterns
        self.ids = ids
        self.events = 0
        self._stats = stats or RouteStats()
        self.ended = False
        self.id_sent = False
        self._log = log
        self._encoder = encoder
        self._watch = watch
        self._max_chunk_bytes = max_chunk_bytes
        self._selector = selector
        self._batches: deque[Batch] = deque()  # fetched, and not encoded completely
        self._next_record = 0  # the index of the next record to encode in the first batch
        self._failure: BaseException | None = None  # raised by the next read()
        self._lookups = BackgroundLookups()
        self._find_pending_at = 0.0
        self._cursor = log.cursor(ids.offsets, epochs=ids.epochs)

    def read(self, timeout_s: float, until: Callable[[], bool] = lambda: False) -> bytes:
        """Return the next frames. Return b"" after `timeout_s` seconds, or as soon as `until()` is true or the stream ended.

        Raises:
            KafkasseError: the stream cannot continue.
        """
        if self._failure is not None:
            raise self._failure
        deadline = time.monotonic() + timeout_s
        while not (self.ended or until()):
            if not self._batches:
                self._check_topics()
                self._find_pending()
                if gaps := self._fetch(max(0.0, min(MAX_POLL_S, deadline - time.monotonic()))):
                    return gaps
            if frames := self._frames():
                return frames
            if time.monotonic() >= deadline:
                break
        return b""

    @property
    def idle(self) -> bool:
        """Whether everything that was fetched has been returned."""
        return not self._batches

    def close(self) -> None:
        """Close the cursor. May be called twice."""
        self._batches.clear()
        self._cursor.close()

    def _fetch(self, timeout_s: float) -> bytes:
        """Fetch the next batches. Return gap events if the log has lost records that the client needs."""
        try:
            for batch in self._cursor.poll(timeout_s):
                self._batches.append(without_outdated(batch, self._versions, self._stats))
        except OffsetOutOfRange as error:
            return self._recover(error)
        except PartitionsFailed as error:
            raise next(iter(error.errors.values())) from error
        return b""

    def _recover(self, error: OffsetOutOfRange) -> bytes:
        """Continue at the next offset that the log holds, and report the lost records as gaps."""
        resumption = error.resume(self.ids.offsets, known_offset_ranges(self._log, error.partitions))
        for gap in resumption.gaps:
            self.ids.set(gap.partition, gap.end, leader_epoch=gap.epoch)
        for partition in resumption.offsets.keys() - resumption.epochs.keys():  # the log does not know the epoch
            if self.ids.forget_epoch(partition):
                self.id_sent = False
        self._cursor.seek(resumption.offsets, resumption.epochs)
        self.id_sent = self.id_sent or bool(resumption.gaps)
        return gap_events(self._encoder.wire, resumption.gaps, self.ids.render())

    def _frames(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._batches and size < self._max_chunk_bytes:
            take_turn()
            if not self._batches:
                break  # another greenlet closed the reader
            try:
                frames = self._encode_piece()
            except DecoderPending:
                break  # the decoder has waited, and the client may need a heartbeat before the next attempt
            except (Exception, gevent.Timeout) as error:  # a filter may let a gevent.Timeout escape
                if not parts:
                    raise
                self._failure = error  # send what is encoded first, because `ids` has moved past it
                break
            parts += frames
            size += sum(map(len, frames))
        return b"".join(parts)

    def _encode_piece(self) -> list[bytes]:
        batch = self._batches[0]
        began_at = time.perf_counter()
        piece = self._encoder.encode_piece(batch, self._next_record, self.ids, self._selector)
        self._stats.encode_s += time.perf_counter() - began_at
        self._stats.records += piece.end - self._next_record
        self.events += len(piece.frames)
        # Filtered records after the last frame move the position past its event ID.
        self.id_sent = piece.ends_at_position
        self._next_record = piece.end
        if piece.end == len(batch.records):
            self._next_record = 0
            if self._batches:  # a hook may switch greenlets, and another greenlet may close the reader
                self._batches.popleft()
        return piece.frames

    def _check_topics(self) -> None:
        changes = self._watch.check(self.ids.topic_ids, ChainMap(self.ids.offsets, self.ids.pending))
        if changes.deleted and not self._follows_patterns:
            raise topic_gone(changes.deleted)
        self.ended = bool(changes.recreated or changes.deleted)
        created = {name: topic for name, topic in changes.matching.items() if name not in self.ids.topic_ids}
        self.ids.topic_ids.update({name: topic.topic_id for name, topic in created.items()})
        if added := [*changes.added, *partitions_of(created)]:
            held = known_offset_ranges(self._log, added)
            self._add({partition: offsets.start for partition, offsets in held.items()})

    def _find_pending(self) -> None:
        """Start to read the pending partitions that have a leader now."""
        if self.ids.pending and time.monotonic() >= self._find_pending_at:
            self._find_pending_at = time.monotonic() + FIND_PENDING_S
            pending = dict(self.ids.pending)
            self._add(self._lookups.get("pending partitions", lambda: self._log.offsets_at(pending)) or {})

    def _add(self, starts: Mapping[Partition, int]) -> None:
        self._cursor.seek(starts)
        for partition, start in starts.items():
            self.ids.set(partition, start)
            self.id_sent = False
