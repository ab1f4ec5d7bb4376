"""The core of catching up: what one client receives from a cursor of its own, with its own event IDs."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import ClassVar

from kafkasse.feed.core.feed import gap_events
from kafkasse.feed.core.stats import RouteStats
from kafkasse.feed.core.topics import TopicChanges, topic_gone
from kafkasse.log import Batch, OffsetOutOfRange, Offsets, Partition, Ranges, Resumption, Topic
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Selector
from kafkasse.records.frame import DecoderPending
from kafkasse.records.position import IdWriter


class CatchUpCore:
    """Encodes the records of one stream.

    Args:
        ids: writes the stream's event IDs. Its position moves with the frames that frames() returns.
        encoder: encodes records.
        max_chunk_bytes: frames() returns about this many bytes at most.
        stats: the totals of the route.
        follows_patterns: a topic that is deleted leaves the stream, instead of ending it with an error.
        selector: the records that the client receives, if the encoder has dimensions. The position moves past the others.

    Attributes:
        events: the number of records that frames() has returned.
        ended: a topic was recreated, so the stream must end. The client reconnects with an ID of the old topic.
        id_sent: the last event ID that the client received is the current position.
        hook_errors: what the encoder's hooks may raise. With gevent, this includes gevent.Timeout, which is no Exception.
    """

    hook_errors: ClassVar[tuple[type[BaseException], ...]] = (Exception,)

    def __init__(
        self,
        ids: IdWriter,
        encoder: Encoder,
        max_chunk_bytes: int,
        stats: RouteStats | None = None,
        follows_patterns: bool = False,
        selector: Selector | None = None,
    ) -> None:
        self.ids = ids
        self.events = 0
        self.ended = False
        self.id_sent = False
        self._encoder = encoder
        self._max_chunk_bytes = max_chunk_bytes
        self._stats = stats or RouteStats()
        self._follows_patterns = follows_patterns
        self._selector = selector
        self._batches: deque[Batch] = deque()  # not encoded completely
        self._next_record = 0  # the index of the next record to encode in the first batch
        self._is_closed = False
        self._failure: BaseException | None = None  # raised by the next call of frames()

    @property
    def idle(self) -> bool:
        """Whether all records have been encoded."""
        return not self._batches

    def add(self, batches: Iterable[Batch]) -> None:
        """Add the next records. They are dropped if close() was called."""
        if not self._is_closed:
            self._batches.extend(batches)

    def close(self) -> None:
        """Drop the records that are not encoded. The position stays before them."""
        self._is_closed = True
        self._batches = deque()

    def frames(self) -> Generator[None, None, bytes]:
        """Encode about one chunk, one piece in each step. The position is always after what a step has encoded.

        Raises:
            KafkasseError: the stream cannot continue. The records before the error have been returned.
        """
        if self._failure is not None:
            raise self._failure
        parts: list[bytes] = []
        size = 0
        while self._batches and size < self._max_chunk_bytes:
            yield
            if not self._batches:
                break  # closed between two steps
            try:
                frames = self._encode_piece()
            except DecoderPending:
                break  # the decoder has waited, and the client may need a heartbeat before the next attempt
            except self.hook_errors as error:
                if not parts:
                    raise
                self._failure = error  # send what is encoded first, because `ids` has moved past it
                break
            parts += frames
            size += sum(map(len, frames))
        return b"".join(parts)

    def _encode_piece(self) -> list[bytes]:
        batches = self._batches  # a hook may let other greenlets run, and close() replaces `_batches`
        batch = batches[0]
        piece = self._encoder.encode_piece(batch, self._next_record, self.ids, self._selector)
        self._stats.records += piece.end - self._next_record
        self.events += len(piece.frames)
        # Filtered records after the last frame move the position past its event ID.
        self.id_sent = piece.ends_at_position
        self._next_record = piece.end
        if piece.end == len(batch.records):
            self._next_record = 0
            batches.popleft()
        return piece.frames

    def resume(self, error: OffsetOutOfRange, offset_ranges: Ranges) -> tuple[Resumption, bytes]:
        """Move to the next offsets that the log holds. Return where the cursor continues, and gap events."""
        resumption = error.resume(self.ids.offsets, offset_ranges)
        for gap in resumption.gaps:
            self.ids.set(gap.partition, gap.end, leader_epoch=gap.epoch)
        for partition in resumption.offsets.keys() - resumption.epochs.keys():  # the log does not know the epoch
            if self.ids.forget_epoch(partition):
                self.id_sent = False
        self.id_sent = self.id_sent or bool(resumption.gaps)
        self._stats.gaps.update(gap.reason for gap in resumption.gaps)
        return resumption, gap_events(self._encoder.wire, resumption.gaps, self.ids.render())

    def change_topics(self, changes: TopicChanges) -> dict[str, Topic]:
        """Return the topics of which the stream must contain all partitions now.

        Raises:
            TopicGone: a topic was deleted.
        """
        if changes.deleted and not self._follows_patterns:
            raise topic_gone(changes.deleted)
        self.ended = bool(changes.recreated or changes.deleted)
        created = {name: topic for name, topic in changes.matching.items() if name not in self.ids.topic_ids}
        self.ids.topic_ids.update({name: topic.topic_id for name, topic in created.items()})
        return {**changes.whole, **created}

    def has_partition(self, partition: Partition) -> bool:
        """Return whether the stream contains a partition."""
        return partition in self.ids.offsets or partition in self.ids.pending

    def add_partitions(self, starts: Offsets) -> None:
        """Add partitions that start at these offsets."""
        for partition, start in starts.items():
            self.ids.set(partition, start)
            self.id_sent = False
