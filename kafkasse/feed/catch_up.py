"""The plain reader: a cursor of its own for one client, its records encoded with ids of its own.

It is also how a client catches up before it joins a shared feed, and what it goes back to when it falls behind.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from kafkasse import frame
from kafkasse.errors import ConfigurationError, FilterError, KafkasseError
from kafkasse.feed.start import ResolvedPosition
from kafkasse.feed.topic_watch import TopicWatch
from kafkasse.frame import Encoder
from kafkasse.log import Batch, Cursor, Gap, Log, OffsetOutOfRange, OffsetRange, Partition, Record, known_offset_ranges
from kafkasse.position import IdWriter

ENCODED_AT_ONCE_MAX = 256
POLL_SLICE_S = 0.25  # how long a read may go on after its client has gone


class CatchUp:
    """Reads one opened stream, frame by frame.

    Args:
        log: the log to read.
        opening: where to begin.
        encoder: turns records into bodies.
        ids: writes this stream's ids; moved on as records are read.
        watch: notices what becomes of the topics.
        max_chunk_bytes: about how many bytes read() returns at once.
        max_snapshot_keys: how many keys a snapshot may have.
    """

    def __init__(
        self,
        log: Log,
        opening: ResolvedPosition,
        encoder: Encoder,
        ids: IdWriter,
        watch: TopicWatch,
        max_chunk_bytes: int,
        max_snapshot_keys: int,
    ) -> None:
        self._log = log
        self._encoder = encoder
        self._wire = encoder.wire
        self.ids = ids
        self._watch = watch
        self._max_chunk_bytes = max_chunk_bytes
        self._waiting: deque[Batch] = deque()
        self._lost_before = opening.gaps
        self._gaps: deque[Gap] = deque()
        self.sent_id = ""  # the last one that the client was given
        self._snapshot = _Snapshot(log.offset_ranges(opening.offsets), max_snapshot_keys) if opening.snapshot else None
        self._cursor: Cursor = log.cursor(opening.offsets, tail=bool(opening.only))
        self.closed = False  # set by whoever sees the client go: the next read() returns at once
        self.ended = False  # the stream is to end politely; the client comes back with its id

    def read(self, timeout_s: float, until: Callable[[], bool] = lambda: False) -> bytes:
        """Frames that are ready, b"" when none came within `timeout_s` seconds, `until()` holds, or the client has gone.

        Raises:
            KafkasseError: the stream cannot go on, and why.
        """
        if self._gaps:
            return self._declare(self._gaps.popleft())
        deadline = time.monotonic() + timeout_s
        while not (self.closed or self.ended):
            if not self._waiting:
                if until():
                    break
                self._check_topics()
                self._fetch(max(0.0, min(POLL_SLICE_S, deadline - time.monotonic())))
            if self._gaps:
                return self._declare(self._gaps.popleft())
            if frames := self._frames():
                return frames
            if time.monotonic() >= deadline:
                break
        return b""

    @property
    def idle(self) -> bool:
        """Whether it holds nothing that its client is still to get."""
        return not self._waiting and not self._gaps and self._snapshot is None

    def stop_waiting(self) -> None:
        """read() looks at `closed` and `ended` by itself, every POLL_SLICE_S."""

    def id_if_moved(self) -> bytes:
        """The id alone, where it is not the last one sent: records were filtered, or markers passed."""
        if self._snapshot is not None:
            return b""  # whoever breaks off during a snapshot has to begin it again
        now = self.ids.render()
        if now == self.sent_id:
            return b""
        self.sent_id = now
        return self._wire.id_alone(now)

    @property
    def position_id(self) -> str:
        """The id of all that read() has returned so far; "" during a snapshot, which has to be begun again."""
        return self.ids.render() if self._snapshot is None else ""

    def close(self) -> None:
        """Close the cursor. May be called twice."""
        self.closed = True
        self._waiting.clear()
        self._cursor.close()

    def _fetch(self, timeout_s: float) -> None:
        try:
            self._waiting.extend(self._cursor.poll(timeout_s))
        except OffsetOutOfRange as error:
            self._recover(error)

    def _recover(self, lost: OffsetOutOfRange) -> None:
        """Retention, or truncation, has taken what comes next: go on where the log does, and say so."""
        for each, bounds in known_offset_ranges(self._log, lost.partitions).items():
            at = self.ids.offsets[each]
            if gap := lost.gap(each, at, bounds):
                self._gaps.append(gap)
            self._cursor.seek({each: gap.end if gap else at})

    def _declare(self, gap: Gap) -> bytes:
        self.ids.set(gap.partition, gap.end)
        self.sent_id = self.ids.render()
        return frame.gap(self._wire, gap.partition, gap.start, gap.end, gap.reason, self.sent_id)

    def _declare_at_once(self, gaps: Sequence[Gap]) -> bytes:
        """Only the last one has an id: the id is past them all, and whoever has it must have been told of all."""
        self.sent_id = self.ids.render()
        told = [""] * (len(gaps) - 1) + [self.sent_id]
        return b"".join(
            frame.gap(self._wire, gap.partition, gap.start, gap.end, gap.reason, position_id)
            for gap, position_id in zip(gaps, told, strict=True)
        )

    def _frames(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while self._waiting and size < self._max_chunk_bytes:
            if self._snapshot is not None:
                parts.append(self._snapshot_frames(self._snapshot, self._waiting.popleft()))
            else:
                try:
                    parts += self._encode(self._waiting[0])
                except KafkasseError:
                    if not parts:
                        raise
                    break  # what is ready goes out first, for the ids have moved past it; the next read() fails
            size = sum(map(len, parts))
        return b"".join(parts)

    def _encode(self, batch: Batch) -> list[bytes]:
        """Encode the records of a batch, or as many as make a chunk of the usual size; the rest waits."""
        partition, records, next_offset = batch
        rest = records[ENCODED_AT_ONCE_MAX:]
        if rest:
            records = records[:ENCODED_AT_ONCE_MAX]
            next_offset = records[-1].offset + 1
        try:
            frames, offsets = self._encoder.encode_run(partition, records, self.ids)
        except FilterError:
            if len(batch.records) == 1:
                raise
            # Nobody may miss what stands before the record that the filter fails at: half by half, until it is alone.
            self._waiting.popleft()
            self._waiting.extendleft(reversed(batch.halves()))
            return []
        self._waiting.popleft()
        if rest:
            self._waiting.appendleft(Batch(partition, rest, batch.next_offset))
        self.ids.set(partition, next_offset)
        if frames:  # where hidden records follow the last frame, its id is not the one that we stand at
            self.sent_id = self.ids.render() if offsets[-1] + 1 == next_offset else ""
        return frames

    def _snapshot_frames(self, snapshot: _Snapshot, batch: Batch) -> bytes:
        """b"" until all partitions are at the end they had, then the newest record of each key and the first id."""
        snapshot.add(batch)
        self.ids.set(batch.partition, batch.next_offset)
        if not snapshot.complete(self.ids.offsets):
            return b""
        return self._end_snapshot(snapshot)

    def _end_snapshot(self, snapshot: _Snapshot) -> bytes:
        frames = []
        for partition, record in snapshot.records():
            encoded = self._encoder.encode(partition.topic, partition.partition, record)
            if encoded is not None:
                frames.append(self._wire.frame_without_id(*encoded))
        self._snapshot = None
        return b"".join(frames) + self.id_if_moved()

    def begin(self) -> bytes:
        """What can be said before the first record: what is lost and the id to come back with, or an empty snapshot."""
        if self._lost_before:
            return self._declare_at_once(self._lost_before)
        if self._snapshot is not None and self._snapshot.complete(self.ids.offsets):
            return self._end_snapshot(self._snapshot)
        return self.id_if_moved()

    def _check_topics(self) -> None:
        news = self._watch.look(self.ids.topic_ids, self.ids.offsets)
        # A remade topic: the client's id names the old topic_id, so when it comes back the two are told apart.
        self.ended = self.ended or news.remade
        if news.added:
            firsts = {each: bounds.start for each, bounds in known_offset_ranges(self._log, news.added).items()}
            self._cursor.seek(firsts)
            for each, first in firsts.items():
                self.ids.set(each, first)


class _Snapshot:
    """The newest record of each key, from the first record up to the ends that the log had when the stream opened."""

    def __init__(self, bounds: Mapping[Partition, OffsetRange], keys_max: int) -> None:
        self._ends = {each: bound.end for each, bound in bounds.items()}
        self._keys_max = keys_max
        self._newest: dict[object, tuple[Partition, Record]] = {}

    def add(self, batch: Batch) -> None:
        for record in batch.records:
            # Records without a key replace nothing. A later record goes to the back, so that order is kept.
            key = (batch.partition.topic, record.key) if record.key is not None else (batch.partition, record.offset)
            self._newest.pop(key, None)
            if record.value is not None:
                self._newest[key] = (batch.partition, record)
        if len(self._newest) > self._keys_max:
            raise ConfigurationError(
                f"This table has more than {self._keys_max} keys, the most that are held (max_snapshot_keys)."
            )

    def complete(self, offsets: Mapping[Partition, int]) -> bool:
        return all(offsets[each] >= end for each, end in self._ends.items())

    def records(self) -> list[tuple[Partition, Record]]:
        return list(self._newest.values())
