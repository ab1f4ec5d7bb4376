"""Writes the event IDs of one stream, in the JSON form or in the compact form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from kafkasse.log import UNKNOWN_EPOCH, Partition
from kafkasse.position import compact
from kafkasse.position.position import INT64_MAX, IdType

# Above this length, an ID has the compact form. Many proxies limit a header to 4 or 8 KiB. In a URL, the quotes and brackets
# of the JSON form take three bytes each, so this is about 6,500 bytes of a request line, which may have 8,190.
MAX_JSON_BYTES = 4_000

# The length of an entry without its topic, and what the first entry of a topic adds. The numbers are as long as they usually
# become at most.
_JSON_ENTRY_BYTES = {
    IdType.OFFSET: len('{"topic":"","partition":1000,"offset":100000000000,"leader_epoch":1000},'),
    IdType.TIMESTAMP: len('{"topic":"","partition":1000,"timestamp":1790000000000},'),
    IdType.BOTH: len(
        '{"topic":"","partition":1000,"offset":100000000000,"leader_epoch":1000,"timestamp":1790000000000},'
    ),
}
_JSON_TOPIC_BYTES = len(',"topic_id":"kQ3d8y1Z","only":true')

# The parts (prefix, format_offset, suffix) of an ID: its text is `prefix + format_offset(offset) + suffix`. If the text
# contains the offset in decimal digits, format_offset is `str` itself, so that the caller can use "%d" instead.
IdTemplate = tuple[str, Callable[[int], str], str]

# The parts of an entry that do not change: in the JSON form the text before and after the values of the partition, in the
# compact form the encoded start of the line, if the entry is the first of its line, and the start of the entry, not encoded.
_Layout = tuple[str, str]


class IdWriter:
    """Writes the IDs of one stream. When a partition advances, only its entry is written again.

    Args:
        offsets: the next offset of every partition of the stream. The ID lists the partitions in this order.
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
        offsets: Mapping[Partition, int],
        topic_ids: Mapping[str, str],
        partial_topics: frozenset[str] = frozenset(),
        id_type: IdType = IdType.OFFSET,
        timestamps: Mapping[Partition, int] | None = None,
        compact: bool | None = None,
        epochs: Mapping[Partition, int] | None = None,
        pending: Mapping[Partition, int] | None = None,
    ) -> None:
        self.offsets = dict(offsets)
        self.timestamps = dict(timestamps or {})
        self.epochs = dict(epochs or {})
        self.pending = dict(pending or {})
        self.topic_ids = dict(topic_ids)
        self._partial_topics = partial_topics
        self._id_type = id_type
        self._compact = compact
        self._build_entries()

    def copy_at(
        self,
        offsets: Mapping[Partition, int],
        timestamps: Mapping[Partition, int],
        epochs: Mapping[Partition, int] | None = None,
        pending: Mapping[Partition, int] | None = None,
    ) -> IdWriter:
        """Return a writer for another position of the same stream."""
        return IdWriter(
            offsets, self.topic_ids, self._partial_topics, self._id_type, timestamps, self._compact, epochs, pending
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
            # A client that resumes at a timestamp receives the records at or after it. With `timestamp`, the ID contains the
            # next millisecond, as in KafkaSSE, so other records of the same millisecond are skipped. With `both`, the client
            # resumes at the timestamp only in a topic with another topic ID, such as a copy in another cluster. The ID then
            # repeats the millisecond, because the copy may contain more records of it.
            self.timestamps[partition] = min(timestamp + (self._id_type is IdType.TIMESTAMP), INT64_MAX)
        elif previous is not None and next_offset < previous:
            self.timestamps.pop(partition, None)
        if leader_epoch is not None and leader_epoch != UNKNOWN_EPOCH:
            self.epochs[partition] = leader_epoch
        elif next_offset != previous:
            self.epochs.pop(partition, None)
        if previous is None:
            self._build_entries()
        else:
            self._entries[partition] = self._entry(partition)

    def render(self) -> str:
        """Return the ID of the current position: one line of ASCII."""
        opening, separator, closing = self._punctuation
        return opening + separator.join(self._entries.values()) + closing

    def split_at_offset(self, partition: Partition, leader_epoch: int = UNKNOWN_EPOCH) -> IdTemplate | None:
        """Split the ID around the offset of `partition`. Return None if more than the offset changes in the next ID.

        The IDs of the records of one run differ only in that offset, because a run has one leader epoch. With the parts,
        each ID costs one concatenation, however many partitions the stream has.

        Args:
            partition: the partition of the run.
            leader_epoch: the leader epoch of the run.
        """
        if self._id_type is not IdType.OFFSET or partition not in self.offsets:
            return None
        opening, separator, closing = self._punctuation
        entries = list(self._entries.values())
        index = list(self._entries).index(partition)
        before = opening + "".join(entry + separator for entry in entries[:index])
        after = "".join(separator + entry for entry in entries[index + 1 :]) + closing
        start, end = self._layouts[partition]
        rest = self._after_offset(None if leader_epoch == UNKNOWN_EPOCH else leader_epoch, None)
        if self._is_compact:
            return before + start, lambda offset: compact.encode(f"{end}{offset}{rest}"), after
        return f'{before}{start}"offset":', str, f"{rest}{end}{after}"

    def _build_entries(self) -> None:
        """Write all entries."""
        partitions = [*self.offsets, *self.pending]
        # The form depends only on the partitions and not on their offsets, so it does not alternate within a stream.
        is_long = _json_bytes(partitions, self._id_type) > MAX_JSON_BYTES
        self._is_compact = is_long if self._compact is None else self._compact
        self._punctuation = (compact.MARK, "", "") if self._is_compact else ("[", ",", "]")
        self._after_offset = compact.after_offset if self._is_compact else _json_after_offset
        self._layouts: dict[Partition, _Layout] = {}
        previous: Partition | None = None
        topics_seen: set[str] = set()
        for partition in partitions:
            topic_id, is_partial = None, False
            if partition.topic not in topics_seen:  # only the first entry of a topic describes the topic
                topics_seen.add(partition.topic)
                topic_id = self.topic_ids.get(partition.topic, "")
                is_partial = partition.topic in self._partial_topics
            if self._is_compact:
                self._layouts[partition] = _compact_layout(partition, previous, topic_id, is_partial)
            else:
                self._layouts[partition] = _json_layout(partition, topic_id, is_partial)
            previous = partition
        self._entries = {partition: self._entry(partition) for partition in partitions}

    def _entry(self, partition: Partition) -> str:
        offset, epoch, timestamp = self._values(partition)
        start, end = self._layouts[partition]
        rest = self._after_offset(epoch, timestamp)
        if self._is_compact:
            return start + compact.encode(f"{end}{'' if offset is None else offset}{rest}")
        return f'{start}"offset":{offset}{rest}{end}' if offset is not None else f"{start}{rest[1:]}{end}"

    def _values(self, partition: Partition) -> tuple[int | None, int | None, int | None]:
        """Return the offset, leader epoch and timestamp that the ID contains for a partition."""
        if partition in self.pending:
            return None, None, self.pending[partition]
        offset, timestamp = self.offsets[partition], self.timestamps.get(partition)
        match self._id_type:
            case IdType.OFFSET:
                return offset, self.epochs.get(partition), None
            case IdType.TIMESTAMP:
                return (offset, None, None) if timestamp is None else (None, None, timestamp)
            case IdType.BOTH:
                return offset, self.epochs.get(partition), timestamp


def _json_bytes(partitions: Collection[Partition], id_type: IdType) -> int:
    """Return the length that the JSON form of an ID usually reaches at most."""
    topics = Counter(each.topic for each in partitions)
    return len(partitions) * _JSON_ENTRY_BYTES[id_type] + sum(
        len(topic) * count + _JSON_TOPIC_BYTES for topic, count in topics.items()
    )


def _json_layout(partition: Partition, topic_id: str | None, is_partial: bool) -> _Layout:
    start = f'{{"topic":"{partition.topic}","partition":{partition.partition},'
    if topic_id is None:
        return start, "}"
    only = ',"only":true' if is_partial else ""
    return start, f',"topic_id":"{topic_id}"{only}}}'


def _json_after_offset(leader_epoch: int | None, timestamp: int | None) -> str:
    epoch_member = "" if leader_epoch is None else f',"leader_epoch":{leader_epoch}'
    return epoch_member if timestamp is None else f'{epoch_member},"timestamp":{timestamp}'


def _compact_layout(
    partition: Partition, previous: Partition | None, topic_id: str | None, is_partial: bool
) -> _Layout:
    start = ""
    if previous is None or previous.topic != partition.topic:
        previous = None
        start = compact.encode_topic(partition.topic, topic_id, is_partial)
    return start, compact.entry_start(partition, previous)
