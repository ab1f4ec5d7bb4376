"""Writes the event IDs of one stream, in the JSON form or in the compact form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kafkasse.log import UNKNOWN_EPOCH, Epochs, Offsets, Partition
from kafkasse.records.position import compact
from kafkasse.records.position.position import INT64_MAX, IdType, Place, Places

# Above this length, an ID has the compact form. Many proxies limit a header to 4 or 8 KiB. In a URL, the quotes and brackets
# of the JSON form take three bytes each, so this is about 6,500 bytes of a request line, which may have 8,190.
MAX_JSON_BYTES = 4_000

# The length of an entry without its topic name, with numbers that few streams exceed.
_JSON_ENTRY_BYTES = {
    IdType.OFFSET: len('{"topic":"","partition":1000,"offset":1000000000,"leader_epoch":100},'),
    IdType.TIMESTAMP: len('{"topic":"","partition":1000,"timestamp":1790000000000},'),
    IdType.BOTH: len('{"topic":"","partition":1000,"offset":1000000000,"leader_epoch":100,"timestamp":1790000000000},'),
}
_JSON_TOPIC_BYTES = len(',"topic_id":"kQ3d8y1Z","only":true')  # additional bytes of the first entry of a topic

# The constant parts of an entry. In the JSON form: the text before and after its offset, leader epoch and timestamp. In the
# compact form: the encoded start of the line ("" unless the entry is the first of its line), and the start of the entry,
# which is encoded together with its values.
_EntryLayout = tuple[str, str]


class IdTemplate(NamedTuple):
    """The IDs of the records of one batch. They differ only in a part of the entry of their partition.

    Attributes:
        prefix: the text before that part.
        part: returns that part for a next offset, and for the latest known timestamp of the records before it, or None.
        suffix: the text after that part.
        is_decimal: that part is the offset in decimal digits, so that the caller can use "%d" instead of `part`.
        has_timestamp: that part contains the timestamp.
    """

    prefix: str
    part: Callable[[int, int | None], str]
    suffix: str
    is_decimal: bool = False
    has_timestamp: bool = False


class IdWriter:
    """Writes the IDs of one stream. When a partition advances, only its entry is written again.

    Args:
        offsets: the next offset of every partition of the stream.
        topic_ids: for each topic, the first 8 characters of its topic ID, or "" if the cluster has no topic IDs.
        partial_topics: topics of which the stream contains only the partitions in `offsets` and `pending`.
        id_type: what the ID contains for each partition.
        timestamps: for ID types with timestamps, the timestamp at which each partition resumes, in ms since the epoch. If it
            is unknown, the partition is absent, and the ID contains its offset alone.
        compact: write the compact form. None: only if the JSON form could become longer than MAX_JSON_BYTES.
        epochs: the leader epoch of the record before each offset, where it is known. IDs of the type `timestamp` do not
            contain leader epochs.
        pending: partitions whose offset is not known yet because they have no leader, with the timestamp at which they
            start or resume. The ID contains this timestamp, whatever its type.
    """

    def __init__(
        self,
        offsets: Offsets,
        topic_ids: Mapping[str, str],
        partial_topics: frozenset[str] = frozenset(),
        id_type: IdType = IdType.OFFSET,
        timestamps: Mapping[Partition, int] | None = None,
        compact: bool | None = None,
        epochs: Epochs | None = None,
        pending: Mapping[Partition, int] | None = None,
    ) -> None:
        self.offsets = dict(offsets)
        self.timestamps = dict(timestamps or {})
        self.epochs = dict(epochs or {})
        self.pending = dict(pending or {})
        self.topic_ids = dict(topic_ids)
        self.partial_topics = partial_topics
        self._id_type = id_type
        self._compact = compact
        self._build_entries()

    def places(self) -> dict[Partition, Place]:
        """Return the position."""
        return {partition: self.place(partition) for partition in [*self.offsets, *self.pending]}

    def place(self, partition: Partition) -> Place:
        """Return the place in a partition. Its timestamp is None if IDs of this type contain none."""
        if partition in self.pending:
            return Place(timestamp=self.pending[partition])
        timestamp = None if self._id_type is IdType.OFFSET else self.timestamps.get(partition)
        return Place(self.offsets[partition], timestamp, self.epochs.get(partition))

    def copy_at(self, places: Places) -> IdWriter:
        """Return a writer for another position of the same stream. Partitions without an offset are pending there."""
        return IdWriter(
            {partition: place.offset for partition, place in places.items() if place.offset is not None},
            self.topic_ids,
            self.partial_topics,
            self._id_type,
            {partition: place.timestamp for partition, place in places.items() if place.timestamp is not None},
            self._compact,
            {partition: place.epoch for partition, place in places.items() if place.epoch is not None},
            {partition: place.timestamp or 0 for partition, place in places.items() if place.offset is None},
        )

    def set(
        self, partition: Partition, next_offset: int, timestamp: int | None = None, leader_epoch: int | None = None
    ) -> None:
        """Move a partition, or add a new one. A pending partition is then no longer pending.

        Args:
            partition: the partition.
            next_offset: the next offset to read.
            timestamp: the timestamp of the record before `next_offset`. If it is unknown (None or -1), the ID keeps the
                timestamp of an earlier record, so that a client that resumes there receives some records again. It becomes
                unknown if the partition moves back, because the log may now contain older records.
            leader_epoch: the leader epoch of the record before `next_offset`. If it is unknown (None or -1), the ID keeps
                its epoch only if the offset does not change.
        """
        previous = self.offsets.get(partition)
        self.offsets[partition] = next_offset
        if partition in self.pending:
            self.timestamps[partition] = self.pending.pop(partition)
        if timestamp is not None and timestamp >= 0:
            self.timestamps[partition] = self._resume_at(timestamp)
        elif previous is not None and next_offset < previous:
            self.timestamps.pop(partition, None)
        if leader_epoch is not None and leader_epoch != UNKNOWN_EPOCH:
            self.epochs[partition] = leader_epoch
        elif next_offset != previous:
            self.epochs.pop(partition, None)
        if previous is None:
            self._build_entries()
        else:
            self._entries[self._indexes[partition]] = self._entry(partition)

    def forget_epoch(self, partition: Partition) -> bool:
        """Make the leader epoch of a partition unknown. Return whether it was known."""
        was_known = self.epochs.pop(partition, None) is not None
        self._entries[self._indexes[partition]] = self._entry(partition)
        return was_known

    def render(self) -> str:
        """Return the ID of the current position: one line of ASCII."""
        opening, separator, closing = self._punctuation
        return opening + separator.join(self._entries) + closing

    def template(self, partition: Partition, leader_epoch: int = UNKNOWN_EPOCH) -> IdTemplate:
        """Return the IDs at the records of a batch. Each ID then costs one concatenation, however many partitions there are.

        Args:
            partition: the partition of the batch. It may be new or pending.
            leader_epoch: the leader epoch of the batch.
        """
        if partition not in self.offsets:
            writer = self.copy_at(self.places())
            writer.set(partition, 0)
            return writer.template(partition, leader_epoch)
        opening, separator, closing = self._punctuation
        index = self._indexes[partition]
        before = opening + separator.join([*self._entries[:index], ""])
        after = separator.join(["", *self._entries[index + 1 :]]) + closing
        epoch = None if leader_epoch == UNKNOWN_EPOCH else leader_epoch
        if self._id_type is IdType.OFFSET:
            start, end = self._layouts[partition]
            rest = self._after_offset(epoch, None)
            if self._is_compact:
                return IdTemplate(before + start, lambda offset, _: compact.encode(f"{end}{offset}{rest}"), after)
            return IdTemplate(f'{before}{start}"offset":', lambda offset, _: str(offset), f"{rest}{end}{after}", True)
        known = self.timestamps.get(partition)

        def entry(offset: int, timestamp: int | None) -> str:
            resume_at = known if timestamp is None else self._resume_at(timestamp)
            return self._text(partition, *self._of_type(offset, epoch, resume_at))

        return IdTemplate(before, entry, after, has_timestamp=True)

    def _resume_at(self, timestamp: int) -> int:
        """Return the timestamp at which a client resumes after a record with this timestamp.

        A client that resumes at a timestamp receives the records at or after it. With `timestamp`, the ID contains the next
        millisecond, as in KafkaSSE, so other records of the same millisecond are skipped. With `both`, the client resumes at
        the timestamp only in a topic with another topic ID, such as a copy in another cluster. The ID then repeats the
        millisecond, because the copy may contain more records of it.
        """
        return min(timestamp + (self._id_type is IdType.TIMESTAMP), INT64_MAX)

    def _build_entries(self) -> None:
        """Write all entries."""
        by_topic: defaultdict[str, list[Partition]] = defaultdict(list)
        for partition in [*self.offsets, *self.pending]:
            by_topic[partition.topic].append(partition)
        # The form depends only on the partitions and not on their offsets, so it does not alternate within a stream.
        counts = {topic: len(partitions) for topic, partitions in by_topic.items()}
        is_long = _json_bytes(counts, self._id_type) > MAX_JSON_BYTES
        self._is_compact = is_long if self._compact is None else self._compact
        self._punctuation = (compact.OPENING, "", compact.CLOSING) if self._is_compact else ("[", ",", "]")
        self._after_offset = compact.after_offset if self._is_compact else _json_after_offset
        layout = _compact_layout if self._is_compact else _json_layout
        self._layouts: dict[Partition, _EntryLayout] = {}
        for topic, partitions in by_topic.items():
            topic_id, is_partial = self.topic_ids.get(topic, ""), topic in self.partial_topics
            previous: Partition | None = None
            for partition in sorted(partitions):  # the compact form omits a partition that follows the previous one
                self._layouts[partition] = layout(partition, previous, topic_id, is_partial)
                previous = partition
        self._indexes = {partition: index for index, partition in enumerate(self._layouts)}
        self._entries = [self._entry(partition) for partition in self._layouts]

    def _entry(self, partition: Partition) -> str:
        if partition in self.pending:
            return self._text(partition, None, None, self.pending[partition])
        values = self.offsets[partition], self.epochs.get(partition), self.timestamps.get(partition)
        return self._text(partition, *self._of_type(*values))

    def _text(self, partition: Partition, offset: int | None, epoch: int | None, timestamp: int | None) -> str:
        start, end = self._layouts[partition]
        rest = self._after_offset(epoch, timestamp)
        if self._is_compact:
            return start + compact.encode(f"{end}{'' if offset is None else offset}{rest}")
        return f'{start}"offset":{offset}{rest}{end}' if offset is not None else f"{start}{rest[1:]}{end}"

    def _of_type(
        self, offset: int, epoch: int | None, timestamp: int | None
    ) -> tuple[int | None, int | None, int | None]:
        """Return the offset, leader epoch and timestamp of those that the ID type contains."""
        match self._id_type:
            case IdType.OFFSET:
                return offset, epoch, None
            case IdType.TIMESTAMP:
                return (offset, None, None) if timestamp is None else (None, None, timestamp)
            case IdType.BOTH:
                return offset, epoch, timestamp


def _json_bytes(partition_counts: Mapping[str, int], id_type: IdType) -> int:
    """Return the length of the JSON form of an ID with large numbers, which few streams exceed."""
    return sum(
        count * (len(topic) + _JSON_ENTRY_BYTES[id_type]) + _JSON_TOPIC_BYTES
        for topic, count in partition_counts.items()
    )


def _json_layout(partition: Partition, previous: Partition | None, topic_id: str, is_partial: bool) -> _EntryLayout:
    start = f'{{"topic":"{partition.topic}","partition":{partition.partition},'
    if previous is not None:  # only the first entry of a topic describes the topic
        return start, "}"
    only = ',"only":true' if is_partial else ""
    return start, f',"topic_id":"{topic_id}"{only}}}'


def _json_after_offset(leader_epoch: int | None, timestamp: int | None) -> str:
    epoch_member = "" if leader_epoch is None else f',"leader_epoch":{leader_epoch}'
    return epoch_member if timestamp is None else f'{epoch_member},"timestamp":{timestamp}'


def _compact_layout(partition: Partition, previous: Partition | None, topic_id: str, is_partial: bool) -> _EntryLayout:
    start = "" if previous is not None else compact.encode_topic(partition.topic, topic_id, is_partial)
    return start, compact.entry_start(partition, previous)
