"""Writes the event IDs of one stream, in the JSON form or in the compact form."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kafkasse.log import Partition
from kafkasse.position import compact
from kafkasse.position.position import INT64_MAX, IdType

COMPACT_ABOVE_PARTITIONS = 64  # the JSON form would exceed 3 KiB; many proxies limit a header to 4 to 8 KiB

# The parts (prefix, format_offset, suffix) of an ID or of one entry: its text is `prefix + format_offset(offset) + suffix`.
# If the text contains the offset in decimal digits, format_offset is `str` itself, so that the caller can use "%d" instead.
# This is a plain tuple because every new stream creates one for each partition.
IdTemplate = tuple[str, Callable[[int | str], str], str]


class IdWriter:
    """Writes the IDs of one stream. When a partition advances, only its entry is written again.

    Args:
        offsets: the next offset of every partition of the stream. The ID lists the partitions in this order.
        topic_ids: for each topic, the first 8 characters of its topic ID, or "" if the cluster has no topic IDs.
        partial_topics: topics of which the stream contains only the partitions in `offsets`.
        id_type: what the ID contains for each partition.
        timestamps: for ID types with timestamps, the timestamp at which each partition resumes, in ms since the epoch.
        compact: write the compact form. None: only for streams with more than COMPACT_ABOVE_PARTITIONS partitions.
    """

    def __init__(
        self,
        offsets: Mapping[Partition, int],
        topic_ids: Mapping[str, str],
        partial_topics: frozenset[str] = frozenset(),
        id_type: IdType = IdType.OFFSET,
        timestamps: Mapping[Partition, int] | None = None,
        compact: bool | None = None,
    ) -> None:
        self.offsets = dict(offsets)
        self.timestamps = dict(timestamps or {})
        self.topic_ids = dict(topic_ids)
        self._partial_topics = partial_topics
        self._id_type = id_type
        self._is_compact = len(self.offsets) > COMPACT_ABOVE_PARTITIONS if compact is None else compact
        self._build_entries()

    def copy_at(self, offsets: Mapping[Partition, int], timestamps: Mapping[Partition, int]) -> IdWriter:
        """Return a writer for another position of the same stream."""
        return IdWriter(offsets, self.topic_ids, self._partial_topics, self._id_type, timestamps, self._is_compact)

    def set(self, partition: Partition, next_offset: int, timestamp: int | None = None) -> None:
        """Advance a partition, or add a new one.

        Args:
            partition: the partition.
            next_offset: the next offset to read.
            timestamp: the timestamp of the record before `next_offset`. If it is unknown (None or -1), the timestamp in
                the ID does not change.
        """
        self.offsets[partition] = next_offset
        if timestamp is not None and timestamp >= 0:
            # A client that resumes at a timestamp receives the records at or after it. With `timestamp`, the ID contains the
            # next millisecond, as in KafkaSSE, so other records of the same millisecond are skipped. With `both`, the client
            # resumes at the timestamp only in a topic with another topic ID, such as a copy in another cluster. The ID then
            # repeats the millisecond, because the copy may contain more records of it.
            self.timestamps[partition] = min(timestamp + (self._id_type is IdType.TIMESTAMP), INT64_MAX)
        if partition in self._entries:
            self._entries[partition] = self._entry(partition)
        else:
            self._build_entries()

    def render(self) -> str:
        """Return the ID of the current position: one line of ASCII."""
        opening, separator, closing = self._punctuation
        return opening + separator.join(self._entries.values()) + closing

    def split_at_offset(self, partition: Partition) -> IdTemplate | None:
        """Split the ID around the offset of `partition`. Return None if more than the offset changes in the next ID.

        The IDs of the records of one run differ only in that offset. With the parts, each ID costs one concatenation,
        however many partitions the stream has.
        """
        if self._id_type is not IdType.OFFSET or partition not in self._entries:
            return None
        opening, separator, closing = self._punctuation
        entries = list(self._entries.values())
        index = list(self._entries).index(partition)
        prefix, format_offset, suffix = self._templates[partition]
        before = opening + "".join(entry + separator for entry in entries[:index]) + prefix
        after = suffix + "".join(separator + entry for entry in entries[index + 1 :]) + closing
        return before, format_offset, after

    def _build_entries(self) -> None:
        """Write all entries."""
        self._punctuation = (compact.MARK, "", "") if self._is_compact else ("[", ",", "]")
        self._templates: dict[Partition, IdTemplate] = {}
        previous: Partition | None = None
        topics_seen: set[str] = set()
        for partition in self.offsets:
            topic_id, is_partial = None, False
            if partition.topic not in topics_seen:  # only the first entry of a topic describes the topic
                topics_seen.add(partition.topic)
                topic_id = self.topic_ids.get(partition.topic, "")
                is_partial = partition.topic in self._partial_topics
            if self._is_compact:
                self._templates[partition] = _compact_template(partition, previous, topic_id, is_partial)
            else:
                self._templates[partition] = _json_template(partition, self._id_type, topic_id, is_partial)
            previous = partition
        self._entries = {partition: self._entry(partition) for partition in self.offsets}

    def _entry(self, partition: Partition) -> str:
        prefix, format_offset, suffix = self._templates[partition]
        value = self.offsets[partition] if self._id_type is IdType.OFFSET else self._value_with_timestamp(partition)
        return f"{prefix}{format_offset(value)}{suffix}"

    def _value_with_timestamp(self, partition: Partition) -> int | str:
        timestamp = self.timestamps.get(partition, 0)
        if self._id_type is IdType.TIMESTAMP:
            return f":{timestamp}" if self._is_compact else timestamp
        separator = ":" if self._is_compact else ',"timestamp":'
        return f"{self.offsets[partition]}{separator}{timestamp}"


def _json_template(partition: Partition, id_type: IdType, topic_id: str | None, is_partial: bool) -> IdTemplate:
    member = "timestamp" if id_type is IdType.TIMESTAMP else "offset"
    prefix = f'{{"topic":"{partition.topic}","partition":{partition.partition},"{member}":'
    if topic_id is None:
        return prefix, str, "}"
    only = ',"only":true' if is_partial else ""
    return prefix, str, f',"topic_id":"{topic_id}"{only}}}'


def _compact_template(
    partition: Partition, previous: Partition | None, topic_id: str | None, is_partial: bool
) -> IdTemplate:
    prefix = ""
    if previous is None or previous.topic != partition.topic:
        previous = None
        prefix = compact.encode_topic(partition.topic, topic_id, is_partial)
    start = compact.entry_start(partition, previous)
    return prefix, lambda offset: compact.encode(f"{start}{offset}"), ""
