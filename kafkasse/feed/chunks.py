"""Finite reads: read the chunk at a position. core/chunk.py decides what it contains."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from kafkasse.errors import KafkasseError, KafkaUnavailable, ServerFull
from kafkasse.feed.continuations import MAX_AGE_S, MAX_CURSORS, MAX_STARTS, BufferedCursor, CursorKey, Unused
from kafkasse.feed.core import truncation_marks
from kafkasse.feed.core.chunk import Chunk, ChunkCore, TopicsChanged
from kafkasse.feed.core.chunk_start import ChunkStart
from kafkasse.feed.core.stats import RouteStats
from kafkasse.feed.core.topics import is_recreated
from kafkasse.feed.core.versions import Versions
from kafkasse.feed.epochs import EpochEnds
from kafkasse.feed.lookup import OffsetRanges, known_offset_ranges
from kafkasse.feed.slots import CatchUpSlots, Clients
from kafkasse.feed.start import resolve
from kafkasse.feed.versions import read_versions, without_outdated
from kafkasse.log import Batch, Log, OffsetOutOfRange, Offsets, PartitionsFailed, Topics
from kafkasse.process.event_loop import take_turn
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Selector
from kafkasse.records.frame import DecoderPending
from kafkasse.records.position import IdWriter, Position
from kafkasse.route import NewestBy, StartAt

MAX_POLL_S = 0.25


class Chunks:
    """Reads the chunks of one log.

    Args:
        log: the log to read.
        epoch_ends, offset_ranges, describe: share lookups with other readers.
        slots: limits the number of cursors.
        timeout_s: how long a read may take.
    """

    def __init__(
        self,
        log: Log,
        epoch_ends: EpochEnds,
        offset_ranges: OffsetRanges,
        describe: Callable[[Collection[str]], Topics],
        slots: CatchUpSlots,
        timeout_s: float,
    ) -> None:
        self._log = log
        self._epoch_ends = epoch_ends
        self._offset_ranges = offset_ranges
        self._describe = describe
        self._slots = slots
        self._timeout_s = timeout_s
        self._starts: Unused[ChunkStart] = Unused(MAX_STARTS)
        self._cursors: Unused[BufferedCursor] = Unused(MAX_CURSORS, lambda buffered: buffered.cursor.close())

    def resolve(
        self, position: Position, topics: Topics, start_at: StartAt, since: int | None = None, offset: str = ""
    ) -> ChunkStart:
        """Return where a chunk starts.

        Args:
            position, topics, start_at, since: see feed.start.resolve().
            offset: the text of the position, if a chunk may have ended there.

        Raises:
            OffsetGone: the log does not hold the records at the position.
            KafkaUnavailable: a partition has no leader, so its offset is not known.
            KafkasseError: see feed.start.resolve().
        """
        looked_up_at = time.monotonic()
        known = self._starts.take(offset)
        if known is not None and known.looked_up_at > looked_up_at - MAX_AGE_S and known.topics == topics:
            return known
        marks = truncation_marks.of_position(position, topics)
        if marks:
            position = truncation_marks.replace_marks(position, marks, self._epoch_ends.ends(marks))
        resolved = resolve(
            self._log,
            position,
            topics,
            start_at,
            since,
            epoch_ends=self._epoch_ends,
            offset_ranges=self._offset_ranges,
            describe=self._describe,
        )
        start = ChunkStart.of(resolved, marks, looked_up_at, topics)
        if resolved.gaps:
            epochs = {partition: place.epoch for partition, place in position.starts.items() if place.epoch is not None}
            raise start.gone(resolved.gaps, epochs)
        self._set_epochs_at_end(start)
        return start

    def end_offset(self, start: ChunkStart) -> str:
        """Return the offset at the end of the log."""
        for partition, offsets in start.offset_ranges.items():
            start.ids.set(partition, offsets.end)
        self._set_epochs_at_end(start)
        return start.offset_of(start.ids)

    def _set_epochs_at_end(self, start: ChunkStart) -> None:
        """Add the epochs of the last records, so that a client at the end has the offset of one that has read them."""
        ids = start.ids
        unknown = {
            partition: offsets
            for partition, offsets in start.offset_ranges.items()
            if offsets.end == ids.offsets[partition] and partition not in ids.epochs
        }
        for partition, epoch in self._epoch_ends.last_epochs(unknown).items():
            ids.set(partition, unknown[partition].end, leader_epoch=epoch)

    def read(
        self,
        start: ChunkStart,
        encoder: Encoder,
        selector: Selector | None,
        clients: Clients,
        newest_by: NewestBy | None,
        stats: RouteStats,
    ) -> Chunk:
        """Read the chunk at a position.

        Args:
            start: the position. It is not modified.
            encoder: encodes records as lines of JSON.
            selector: the records that the client receives, if the encoder has dimensions.
            clients: the addresses of the clients. Addresses get cursors in turn.
            newest_by: how to recognize outdated records, which are dropped; None: all records are sent.
            stats: the totals of the route.

        Raises:
            OffsetGone: the log has lost the records meanwhile.
            TopicsChanged: a topic was recreated meanwhile.
            KafkaUnavailable: Kafka does not send the records, or the only new ones may be in a partition without a leader.
            KafkasseError: a record cannot be encoded.
        """
        core = ChunkCore(start, encoder, selector, stats)
        if core.ends:
            slot = clients.request(self._slots)
            try:
                if not slot.wait(self._timeout_s):
                    raise ServerFull("Too many clients are catching up (max_catch_ups). Retry later.")
                self._fill(core, start, self._versions(newest_by, start, core.ends))
            finally:
                slot.release()
        chunk = core.result(time.time())
        if (next_start := core.next_start) is not None:
            self._starts.keep(chunk.next_offset, next_start)
        return chunk

    def _versions(self, newest_by: NewestBy | None, start: ChunkStart, ends: Offsets) -> Versions | None:
        """Return the versions of the records before the chunk, or None if outdated records are not dropped."""
        if newest_by is None:
            return None
        versions = Versions(newest_by)
        offsets = {partition: start.ids.offsets[partition] for partition in ends}
        read_versions(versions, self._log, offsets, start.offset_ranges, self._timeout_s)
        return versions

    def _fill(self, core: ChunkCore, start: ChunkStart, versions: Versions | None) -> None:
        """Read the records of a chunk, as many as there is time for.

        Raises:
            KafkasseError: there are none. See read().
        """
        deadline = time.monotonic() + self._timeout_s
        cursor = self._cursor(start, core.ends)
        can_continue = False
        try:
            while core.can_grow:
                if time.monotonic() < deadline:
                    self._poll(core, cursor, versions)
                else:
                    core.stop(KafkaUnavailable(f"Kafka did not send the records within {self._timeout_s:g} s."))
            can_continue = core.is_full
        finally:
            if can_continue:
                self._cursors.keep(CursorKey.of(core.ids, start.looked_up_at, *core.ends), cursor)
            else:
                cursor.cursor.close()

    def _cursor(self, start: ChunkStart, ends: Offsets) -> BufferedCursor:
        """Return a cursor at a position, if possible one that has read the chunk before."""
        ids = start.ids
        if len(ends) == 1:
            kept = self._cursors.take(CursorKey.of(ids, start.looked_up_at, *ends))
            if kept is not None:
                return kept
        offsets = {partition: ids.offsets[partition] for partition in ends}
        return BufferedCursor(self._log.cursor(offsets, epochs=ids.epochs, topic_ids=ids.topic_ids))

    def _poll(self, core: ChunkCore, cursor: BufferedCursor, versions: Versions | None) -> None:
        """Add the next records to a chunk, or end it before records that cannot be read.

        Raises:
            KafkasseError, TopicsChanged: the first records cannot be read.
        """
        try:
            batches = cursor.poll(MAX_POLL_S)
            if not batches:
                self._check_topics(core.ids)
            for batch in batches:
                self._encode(core, without_outdated(batch, versions))
                if core.ids.offsets[batch.partition] < batch.next_offset and core.is_complete:
                    cursor.unread(batch)
        except OffsetOutOfRange as error:
            ranges = known_offset_ranges(self._log, error.partitions, core.ids.topic_ids)
            if (resumption := core.resume(error, ranges)) is not None:
                cursor.cursor.seek(resumption.offsets, resumption.epochs)
        except PartitionsFailed as error:
            core.stop(next(iter(error.errors.values())))
        except KafkasseError as error:
            core.stop(error)
        core.end_poll()

    def _check_topics(self, ids: IdWriter) -> None:
        """Check that the topics are still the same. A cursor does not read those that were recreated.

        Raises:
            TopicsChanged: a topic was recreated.
        """
        topics = self._describe(list(ids.topic_ids))
        if any(is_recreated(ids.topic_ids[name], topic) for name, topic in topics.items()):
            raise TopicsChanged(topics)

    def _encode(self, core: ChunkCore, batch: Batch) -> None:
        while True:
            try:
                for _ in core.add(batch):
                    take_turn()
                return
            except DecoderPending:  # the decoder has waited; the chunk has not moved past the record
                continue
