"""The core of the tail: which feeds receive the records of a partition, and at which position each partition is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kafkasse.errors import KafkasseError
from kafkasse.feed.core.feed import FeedCore, FeedKey
from kafkasse.feed.core.topics import TopicChanges, topic_gone
from kafkasse.log import UNKNOWN_EPOCH, Batch, Gap, OffsetOutOfRange, Partition, Ranges, Resumption, Topics
from kafkasse.records.position import Place
from kafkasse.route import Route

Feed = TypeVar("Feed", bound=FeedCore)


@dataclass(eq=False, slots=True)
class PendingPartition(Generic[Feed]):
    """A partition without a leader, which its feeds cannot read yet.

    Attributes:
        start_ms: the timestamp at which the partition starts as soon as it has a leader.
        feeds: the feeds that contain the partition.
    """

    start_ms: int
    feeds: dict[Feed, None] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class TailPartition(Generic[Feed]):
    """A partition that the tail reads.

    Attributes:
        offset: the next offset to append to the feeds.
        timestamp: the timestamp of the last record, or None.
        epoch: the leader epoch of the record before `offset`, or UNKNOWN_EPOCH.
        feeds: the feeds that contain the partition.
    """

    offset: int
    timestamp: int | None = None
    epoch: int = UNKNOWN_EPOCH
    feeds: dict[Feed, None] = field(default_factory=dict)

    def advance(self, batch: Batch) -> None:
        """Move past a batch."""
        self.offset, self.epoch = batch.next_offset, batch.leader_epoch
        timestamp = batch.records[-1].timestamp if batch.records else None
        if timestamp is not None and timestamp >= 0:
            self.timestamp = timestamp


PartitionState = PendingPartition[Feed] | TailPartition[Feed]


@dataclass(eq=False, slots=True)
class TailTopic(Generic[Feed]):
    """A topic that the tail reads, and the feeds that contain all or some of its partitions."""

    topic_id: str
    feeds: dict[Feed, None] = field(default_factory=dict)


class TailCore(Generic[Feed]):
    """The feeds of a tail, and their topics and partitions.

    Attributes:
        feeds: the open feeds.
        topics: the topics that the tail reads.
        partitions: the partitions of the feeds.
        recordings: each receives the batches that the tail reads, and the offset at which the tail was before each of them.
    """

    def __init__(self) -> None:
        self.feeds: dict[FeedKey, Feed] = {}
        self.topics: dict[str, TailTopic[Feed]] = {}
        self.partitions: dict[Partition, PartitionState[Feed]] = {}
        self.recordings: list[Callable[[int, Batch], None]] = []

    # Feeds.

    def partitions_of(self, key: FeedKey, topics: Topics) -> list[Partition]:
        """Return the partitions with which a feed starts.

        If there are feeds of a whole topic, these are the same partitions. Added partitions are added to all these feeds at
        once, and start at their first record.
        """
        partitions: list[Partition] = []
        for name in sorted(topics):
            if name in key.partial_topics:
                partitions += sorted(partition for partition in key.selected if partition.topic == name)
            elif whole_feeds := self._whole_feeds(name):
                partitions += [partition for partition in whole_feeds[0].partitions if partition.topic == name]
            else:
                partitions += [Partition(name, index) for index in range(topics[name].partitions)]
        return partitions

    def _add(
        self, feed: Feed, states: Mapping[Partition, PartitionState[Feed]]
    ) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Add a feed. Return the offsets at which to start the partitions that are new, and their known leader epochs."""
        self.feeds[feed.key] = feed
        for name, topic_id in feed.ids.topic_ids.items():
            self.topics.setdefault(name, TailTopic(topic_id)).feeds[feed] = None
        starts, epochs = {}, {}
        for partition, state in states.items():
            if partition not in self.partitions:
                self.partitions[partition] = state
                if isinstance(state, TailPartition):
                    starts[partition] = state.offset
                    if state.epoch != UNKNOWN_EPOCH:
                        epochs[partition] = state.epoch
            state.feeds[feed] = None
        return starts, epochs

    def _remove(self, feed: Feed) -> list[Partition]:
        """Remove a feed. Return the partitions that no other feed contains."""
        del self.feeds[feed.key]
        unused = []
        for partition in feed.partitions:
            state = self.partitions[partition]
            del state.feeds[feed]
            if not state.feeds:
                del self.partitions[partition]
                unused.append(partition)
        for name, topic in list(self.topics.items()):
            topic.feeds.pop(feed, None)
            if not topic.feeds:
                del self.topics[name]
        return unused

    @property
    def followed(self) -> list[Route]:
        """The routes with patterns that feeds follow."""
        return [feed.key.follows for feed in self.feeds.values() if feed.key.follows is not None]

    def position_of(self, feed: Feed) -> tuple[dict[Partition, Place], dict[str, str]]:
        """Return the tail's position in the partitions of a feed, and the topic IDs."""
        places = {partition: _place(self.partitions[partition]) for partition in feed.partitions}
        return places, {at.topic: self.topics[at.topic].topic_id for at in places}

    def _feeds_of(self, topic: str) -> list[Feed]:
        """Return the feeds that contain all or some partitions of a topic."""
        return list(self.topics[topic].feeds) if topic in self.topics else []

    def _whole_feeds(self, topic: str) -> list[Feed]:
        """Return the feeds that contain all partitions of a topic."""
        return [feed for feed in self._feeds_of(topic) if topic not in feed.key.partial_topics]

    # Records.

    def deliveries(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, list[Feed]]]:
        """Move past each batch, and yield it with the feeds that receive it. Feeds may change after each step."""
        # A partition that is removed and added again has another TailPartition, which must not receive the batches of the
        # former one.
        found = [(self.partitions.get(batch.partition), batch) for batch in batches]
        states = [(state, batch) for state, batch in found if isinstance(state, TailPartition)]
        for state, batch in states:
            for record in self.recordings:
                record(state.offset, batch)
            state.advance(batch)
            yield batch, list(state.feeds)

    def resume(
        self, error: OffsetOutOfRange, states: Mapping[Partition, TailPartition[Feed]], ranges: Ranges
    ) -> tuple[Resumption, list[tuple[Feed, Gap]]]:
        """Move to the next offsets that the log holds. Return where the cursor continues, and the gaps of each feed.

        Feeds that are added while the gaps are sent start after them.

        Args:
            error: the partitions that are out of range.
            states: these partitions, as they were when the ranges were requested. Those removed since are left out.
            ranges: the offsets that the log holds.
        """
        states = {
            partition: states[partition] for partition in ranges if self.partitions.get(partition) is states[partition]
        }
        offsets = {partition: state.offset for partition, state in states.items()}
        resumption = error.resume(offsets, {partition: ranges[partition] for partition in offsets})
        for gap in resumption.gaps:
            states[gap.partition].offset, states[gap.partition].epoch = gap.end, gap.epoch
        return resumption, [(feed, gap) for gap in resumption.gaps for feed in states[gap.partition].feeds]

    # Topics.

    def recreated(self, topics: Topics) -> list[str]:
        """Return those topics that have another topic ID now."""
        return [
            name
            for name, topic in topics.items()
            if name in self.topics and self.topics[name].topic_id != topic.topic_id
        ]

    def ended(self, changes: TopicChanges) -> Iterator[tuple[Feed, KafkasseError | None]]:
        """Yield the feeds of deleted and recreated topics, each with its error. The caller ends each of them at once."""
        for name in changes.deleted:
            for feed in self._feeds_of(name):
                # A client of a route with patterns reconnects, and continues without the topic.
                yield feed, topic_gone([name]) if feed.key.follows is None else None
        for name in changes.recreated:
            for feed in self._feeds_of(name):
                yield feed, None

    def add_topics(self, matching: Topics) -> None:
        """Add new topics to the feeds whose patterns they match. Their partitions are added as soon as they have leaders."""
        for feed in self.feeds.values():
            for name in feed.key.follows.matching(matching) if feed.key.follows is not None else ():
                self.topics.setdefault(name, TailTopic(matching[name].topic_id)).feeds[feed] = None

    @property
    def pending(self) -> dict[Partition, int]:
        """The partitions without a leader, and the timestamps at which they start."""
        return {at: state.start_ms for at, state in self.partitions.items() if isinstance(state, PendingPartition)}

    def lacks(self, partition: Partition) -> bool:
        """Return whether a feed must contain this partition but does not. False for a pending partition."""
        is_pending = isinstance(self.partitions.get(partition), PendingPartition)
        return not is_pending and bool(self._feeds_without(partition))

    def _feeds_without(self, partition: Partition) -> list[Feed]:
        """Return the feeds that must contain this partition and do not contain it yet."""
        if isinstance(state := self.partitions.get(partition), PendingPartition):
            return list(state.feeds)
        return [feed for feed in self._whole_feeds(partition.topic) if partition not in feed.partitions]

    def start_partition(self, partition: Partition, offset: int) -> tuple[list[Feed], list[Feed]]:
        """Start a partition that was created, or that has a leader again.

        Return the feeds to which the caller adds it, and those that must end, because a feed of selected partitions already
        reads it from a later offset.
        """
        feeds = self._feeds_without(partition)
        if not feeds:
            return [], []
        if isinstance(self.partitions.get(partition), TailPartition):
            return [], feeds
        self.partitions[partition] = TailPartition(offset, feeds=dict.fromkeys(feeds))
        for feed in feeds:
            feed.partitions[partition] = None
        return feeds, []


def _place(state: PartitionState[Feed]) -> Place:
    if isinstance(state, PendingPartition):
        return Place(timestamp=state.start_ms)
    return Place(state.offset, state.timestamp, state.epoch)
