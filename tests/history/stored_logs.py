"""The logs of all partitions: the records, its bounds at each time, and the part that each type of client sees.

An independent consumer and the acknowledgments to producers are the sources. This module imports nothing from kafkasse.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from tests.history.payloads import ExpectedEvent, StoredRecord, expected_event, expected_line
from tests.history.wire import Partition

FOREVER = 2**63

LogVersion = tuple[int, int]  # how often the topic was recreated, how often the partition's log was truncated


class Acknowledged(NamedTuple):
    """A record that a broker acknowledged to its producer, and when. In a transaction, only after the commit."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    topic_id: int = 0
    at: float = -inf


class Bounds(NamedTuple):
    """The bounds of a partition's log, `[first, end)`, as Kafka reported them between the times `asked` and `answered`.

    Readers may not read beyond `end`: it is the last stable offset if transactions are open. `holes` are the offsets
    `[start, end)` after `first` that neither Kafka nor its archive holds.
    """

    asked: float
    answered: float
    first: int
    end: int
    holes: tuple[tuple[int, int], ...] = ()


class Visible(NamedTuple):
    """The part of a log that one type of client sees.

    Attributes:
        offsets: the offsets that the client may receive, in ascending order.
        expected: the event that it must receive for each offset.
        replaced: the offsets that compaction may have removed, and until when the log certainly held them.
    """

    offsets: list[int]
    expected: dict[int, ExpectedEvent]
    replaced: dict[int, float]

    def between(self, start: int, to: int) -> list[int]:
        """Return the offsets in `[start, to)`."""
        return self.offsets[bisect_left(self.offsets, start) : bisect_left(self.offsets, to)]

    def required(self, start: int, to: int, time: float) -> list[int]:
        """Return the offsets in `[start, to)` that a client must have received if it skips them at this time."""
        offsets = self.between(start, to)
        return [at for at in offsets if self.replaced.get(at, inf) >= time] if self.replaced else offsets

    def first_required(self, start: int, time: float) -> int:
        """Return the first offset from `start` on that a client may not skip at this time; FOREVER if there is none."""
        rest = islice(self.offsets, bisect_left(self.offsets, start), None)
        return next((at for at in rest if self.replaced.get(at, inf) >= time), FOREVER)


class Log:
    """The records of one version of one partition, in order, and the part that each type of client sees."""

    def __init__(self, records: Iterable[StoredRecord], compacted: bool = False) -> None:
        self.records = {record.offset: record for record in sorted(records, key=lambda record: record.offset)}
        newest = {record.key: at for at, record in self.records.items()}
        replaced = (at for at, record in self.records.items() if record.value is None or newest[record.key] != at)
        self._replaced = {at: self.records[at].seen for at in replaced} if compacted else {}
        self._visible: dict[tuple[str, str, Any], Visible] = {}

    def visible(self, format: str, wire: str, keeps: Callable[[StoredRecord], bool]) -> Visible:
        view = format, wire, keeps
        if view not in self._visible:
            expect = expected_event if wire == "sse" else expected_line
            events = {at: expect(record, format) for at, record in self.records.items()}
            seen = {at: event for at, event in events.items() if event is not None and keeps(self.records[at])}
            self._visible[view] = Visible(list(seen), seen, self._replaced)
        return self._visible[view]

    def at_time(self, timestamp: int, first: int) -> int | None:
        """Return the offset of the first record at or after a timestamp. Records before the offset `first` do not count."""
        rest = (record for record in self.records.values() if record.offset >= first)
        return next((record.offset for record in rest if record.timestamp >= timestamp), None)

    def differs_from(self, later: Log) -> int:
        """Return the first offset at which a later version of this log has a different record."""
        first = min(later.records, default=0)
        offsets = sorted(at for at in self.records.keys() | later.records.keys() if at >= first)
        return next((at for at in offsets if not _alike(self.records.get(at), later.records.get(at))), FOREVER)


def _alike(one: StoredRecord | None, other: StoredRecord | None) -> bool:
    return one is not None and other is not None and one[:7] == other[:7]


class StoredLogs:
    """The records that the independent consumer read, by partition and log version."""

    def __init__(
        self,
        stored: Iterable[StoredRecord],
        bounds: Mapping[Partition, Sequence[Bounds]],
        compacted: frozenset[str],
        first_at: Callable[[Partition, int], int | None] | None,
        versions_began: Mapping[Partition, Mapping[LogVersion, float]],
    ) -> None:
        versions: dict[Partition, dict[LogVersion, list[StoredRecord]]] = defaultdict(lambda: defaultdict(list))
        for record in stored:
            versions[record.topic, record.partition][record.topic_id, record.epoch].append(record)
        self.logs = {
            partition: {version: Log(records[version], partition[0] in compacted) for version in sorted(records)}
            for partition, records in versions.items()
        }
        self.bounds = bounds
        self._first_at = first_at
        self._began = versions_began
        self._nothing = {(0, 0): Log(())}
        self._differs: dict[tuple[Partition, LogVersion, LogVersion], int] = {}

    def versions(self, partition: Partition) -> dict[LogVersion, Log]:
        return self.logs.get(partition, self._nothing)

    def versions_between(self, partition: Partition, since: float, until: float) -> tuple[LogVersion, ...]:
        """Return the versions that the log may have had from `since` to `until`."""
        began = self._began.get(partition, {})
        versions = list(self.versions(partition))
        started = [version for version in versions if began.get(version, -inf) <= until] or versions[:1]
        current = max((at for at, version in enumerate(started) if began.get(version, inf) <= since), default=0)
        return tuple(started[current:])

    def was_truncated(self, partition: Partition, version: LogVersion, time: float) -> bool:
        """Return whether a truncation before this time replaced this version of the log."""
        began = self._began.get(partition, {}).items()
        return any(other[0] == version[0] and other[1] > version[1] and at < time for other, at in began)

    def between(self, partition: Partition, since: float, until: float) -> Sequence[Bounds]:
        """Return the bounds from the last ones known at `since` to the first ones known to be newer than `until`."""
        known = self.bounds.get(partition, ())
        start = bisect_right(known, since, key=lambda bounds: bounds.answered) - 1
        end = bisect_left(known, until, key=lambda bounds: bounds.asked) + 1
        return [*([] if start >= 0 else [Bounds(since, since, 0, 0)]), *known[max(0, start) : end]] if known else []

    def is_newer(self, partition: Partition, time: float) -> bool:
        """Return whether a partition is known not to have existed at a time."""
        return any(bounds.asked > time for bounds in self.bounds.get(partition, ())[:1])

    def first(self, partition: Partition, time: float, topic_id: int | None = None) -> int:
        """Return the first offset that the log may have had at a time, or when its topic was recreated before that time.

        Args:
            partition: the partition.
            time: the time.
            topic_id: how often the topic of the log was recreated. None: it is the topic that existed at the time.
        """
        if topic_id is not None:
            began = self._began.get(partition, {}).items()
            time = min([time, *(at for version, at in began if version[0] > topic_id)])
        return max((bounds.first for bounds in self.between(partition, time, time)), default=0)

    def is_hole(self, partition: Partition, start: int, to: int, time: float) -> bool:
        """Return whether `[start, to)` may have been the end of a hole at any time until `time`.

        The server may have found the hole before it grew. Then the client also receives records that are lost by now.
        """
        holes = (hole for bounds in self.between(partition, -inf, time) for hole in bounds.holes)
        return any(low <= start < to == high for low, high in holes)

    def at_time(
        self, partition: Partition, versions: Iterable[LogVersion], timestamp: int, first: int
    ) -> tuple[int, int]:
        """Return the first offset at or after a timestamp, among the records from `first` on, and according to Kafka now.

        Kafka's offset may be lower, because Kafka counts markers. It is higher if records were removed since.
        """
        times = [self.versions(partition)[version].at_time(timestamp, first) for version in versions]
        ever = min((at for at in times if at is not None), default=FOREVER)
        now = self._first_at(partition, timestamp) if self._first_at else ever
        return min(ever, FOREVER if now is None else now), FOREVER if now is None else now

    def differs(self, partition: Partition, version: LogVersion, later: LogVersion) -> int:
        """Return the offset below which two versions of a log are equal; 0 if the topic was recreated in between."""
        if version[0] != later[0]:
            return 0
        key = partition, version, later
        if key not in self._differs:
            logs = self.versions(partition)
            self._differs[key] = logs[version].differs_from(logs[later])
        return self._differs[key]

    def missing(self, acknowledged: Iterable[Acknowledged], excused: frozenset[str]) -> Iterable[str]:
        """Yield a violation for each acknowledged record that the independent consumer did not read."""
        for entry in acknowledged:
            logs = [log for version, log in self.versions(entry[:2]).items() if version[0] == entry.topic_id]
            records = [log.records[entry.offset] for log in logs if entry.offset in log.records]
            if entry.topic not in excused and not any((record.key, record.value) == entry[3:5] for record in records):
                yield f"producer: {entry.topic}/{entry.partition} offset {entry.offset} was acknowledged but not stored"


class Delays:
    """When records were acknowledged, and how late a client may receive them."""

    def __init__(
        self, acknowledged: Iterable[Acknowledged], max_s: float, outages: Sequence[tuple[float, float]]
    ) -> None:
        self.max_s = max_s
        self._outages = outages
        self._at = {
            (record.topic, record.partition, record.offset, record.topic_id): record.at for record in acknowledged
        }

    def delay_s(self, partition: Partition, offset: int, topic_id: int, connected: float, arrived: float) -> float:
        """Return how long a client that connected first at `connected` waited for a record, without the outages."""
        since = max(connected, self._at.get((*partition, offset, topic_id), arrived))
        out = sum(max(0.0, min(end, arrived) - max(begin, since)) for begin, end in self._outages)
        return arrived - since - out
