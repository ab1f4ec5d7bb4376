"""Catching up: read records through a cursor that serves one client, and encode frames with this client's event IDs.

A reader catches up until the ring covers its position; see reader.py.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from kafkasse import frame
from kafkasse.event_loop import take_turn
from kafkasse.feed.lookup import BackgroundLookups
from kafkasse.feed.snapshot import Snapshot
from kafkasse.feed.topic_watch import TopicWatch, topic_gone
from kafkasse.frame import Encoder
from kafkasse.log import Batch, Cursor, Gap, Log, OffsetOutOfRange, PartitionsFailed, known_offset_ranges
from kafkasse.position import IdWriter

PENDING_RETRY_S = 1.0  # how often to check whether a partition has a leader again
MAX_POLL_S = 0.25  # read() calls `until` at least this often


class CatchUp:
    """Reads the records of one stream through its own cursor.

    Args:
        log: the log to read.
        ids: writes the stream's event IDs. Its position is where the cursor starts, and moves with the frames that read()
            returns.
        encoder: encodes records.
        watch: notices changes of the topics.
        max_chunk_bytes: read() returns about this many bytes at most.
        gaps: the gaps before the position, which begin() reports.
        max_snapshot_keys: start with a snapshot of at most this many keys. None: start without a snapshot.

    Attributes:
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
        gaps: Sequence[Gap] = (),
        max_snapshot_keys: int | None = None,
    ) -> None:
        self.ids = ids
        self.ended = False
        self.id_sent = False
        self._log = log
        self._encoder = encoder
        self._wire = encoder.wire
        self._watch = watch
        self._max_chunk_bytes = max_chunk_bytes
        self._batches: deque[Batch] = deque()  # fetched, and not encoded yet
        self._next_record = 0  # the index of the next record to encode in the first batch
        self._gaps = deque[Gap]()  # found while reading, and not sent yet
        self._first_gaps = gaps
        self._snapshot: Snapshot | None = None
        if max_snapshot_keys is not None:
            self._snapshot = Snapshot(log.offset_ranges(ids.offsets), max_snapshot_keys)
        self._lookups = BackgroundLookups()
        self._find_pending_at = 0.0
        self._cursor: Cursor = log.cursor(ids.offsets)

    def begin(self) -> bytes:
        """Return the frames to send before the first record: gaps, an empty snapshot, or the event ID to resume with."""
        if self._first_gaps:
            return self._declare_all(self._first_gaps)
        if self._snapshot is not None and self._snapshot.is_complete(self.ids.offsets):
            return self._end_snapshot(self._snapshot)
        return self.id_if_moved()

    def read(self, timeout_s: float, until: Callable[[], bool] = lambda: False) -> bytes:
        """Return the next frames. Return b"" after `timeout_s` seconds, or as soon as `until()` is true or the stream ended.

        Raises:
            KafkasseError: the stream cannot continue.
        """
        if self._gaps:
            return self._declare(self._gaps.popleft())
        deadline = time.monotonic() + timeout_s
        while not (self.ended or until()):
            if not self._batches:
                self._check_topics()
                self._find_pending()
                self._fetch(max(0.0, min(MAX_POLL_S, deadline - time.monotonic())))
            if self._gaps:
                return self._declare(self._gaps.popleft())
            if frames := self._frames():
                return frames
            if time.monotonic() >= deadline:
                break
        return b""

    @property
    def idle(self) -> bool:
        """Whether everything that was fetched has been returned."""
        return not self._batches and not self._gaps and self._snapshot is None

    def id_if_moved(self) -> bytes:
        """Return a position event if the client has not received the ID of its position, else b""."""
        if self.id_sent or self._snapshot is not None:  # without an ID, an interrupted snapshot starts again
            return b""
        self.id_sent = True
        return self._wire.position(self.ids.render())

    @property
    def position_id(self) -> str:
        """The event ID of everything that read() has returned; "" during a snapshot, which cannot be resumed."""
        return self.ids.render() if self._snapshot is None else ""

    def close(self) -> None:
        """Close the cursor. May be called twice."""
        self._batches.clear()
        self._cursor.close()

    def _fetch(self, timeout_s: float) -> None:
        try:
            self._batches.extend(self._cursor.poll(timeout_s))
        except OffsetOutOfRange as error:
            self._recover(error)
        except PartitionsFailed as failed:
            raise next(iter(failed.errors.values())) from failed

    def _recover(self, error: OffsetOutOfRange) -> None:
        """Continue at the next offset that the log holds, and report the lost records as a gap."""
        for partition, held in known_offset_ranges(self._log, error.partitions).items():
            offset = self.ids.offsets[partition]
            if gap := error.gap(partition, offset, held):
                self._gaps.append(gap)
            self._cursor.seek({partition: gap.end if gap else offset})

    def _declare(self, gap: Gap) -> bytes:
        self.ids.set(gap.partition, gap.end)
        self.id_sent = True
        return frame.gap(self._wire, gap, self.ids.render())

    def _declare_all(self, gaps: Sequence[Gap]) -> bytes:
        """Return all gap events. Only the last has an ID: the ID is after all gaps, so the client must have received all."""
        self.id_sent = True
        ids = [""] * (len(gaps) - 1) + [self.ids.render()]
        return b"".join(frame.gap(self._wire, gap, position_id) for gap, position_id in zip(gaps, ids, strict=True))

    def _frames(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._batches and size < self._max_chunk_bytes:
            take_turn()
            if not self._batches:
                break  # another greenlet closed the reader
            try:
                frames = self._encode_piece()
            except Exception:
                if not parts:
                    raise
                break  # send what is encoded first, because `ids` has moved past it; the next read() fails
            parts += frames
            size += sum(map(len, frames))
        return b"".join(parts)

    def _encode_piece(self) -> list[bytes]:
        batch = self._batches[0]
        if self._snapshot is not None:
            return [self._add_to_snapshot(self._snapshot, self._batches.popleft())]
        piece = self._encoder.encode_piece(batch, self._next_record, self.ids)
        # Filtered records after the last frame move the position past its event ID.
        self.id_sent = piece.ends_at_position
        self._next_record = piece.end
        if piece.end == len(batch.records):
            self._next_record = 0
            self._batches.popleft()
        return piece.frames

    def _add_to_snapshot(self, snapshot: Snapshot, batch: Batch) -> bytes:
        """Return b"" until the snapshot is complete, then the newest record of each key and the first event ID."""
        snapshot.add(batch)
        self.ids.set(batch.partition, batch.next_offset)
        return self._end_snapshot(snapshot) if snapshot.is_complete(self.ids.offsets) else b""

    def _end_snapshot(self, snapshot: Snapshot) -> bytes:
        frames = []
        for partition, record in snapshot.records():
            encoded = self._encoder.encode(partition.topic, partition.partition, record)
            if encoded is not None:
                event, body = encoded
                frames.append(self._wire.frame(event, "", body))
        self._snapshot = None
        return b"".join(frames) + self.id_if_moved()

    def _check_topics(self) -> None:
        changes = self._watch.check(self.ids.topic_ids, self.ids.offsets)
        if changes.deleted:
            raise topic_gone(changes.deleted)
        self.ended = bool(changes.recreated)
        if changes.added:
            held = known_offset_ranges(self._log, changes.added)
            starts = {partition: offsets.start for partition, offsets in held.items()}
            self._cursor.seek(starts)
            for partition, start in starts.items():
                self.ids.set(partition, start)
                self.id_sent = False

    def _find_pending(self) -> None:
        """Find the offsets of the partitions that had no leader."""
        now = time.monotonic()
        if not self.ids.pending or now < self._find_pending_at:
            return
        self._find_pending_at = now + PENDING_RETRY_S
        pending = dict(self.ids.pending)
        offsets = self._lookups.get("pending partitions", lambda: self._log.offsets_at(pending))
        for partition, offset in (offsets or {}).items():
            self.ids.set(partition, offset)
            self.id_sent = False
            self._cursor.seek({partition: offset})
