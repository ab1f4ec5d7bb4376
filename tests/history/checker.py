"""Check that each client received exactly what its route promises: nothing lost or repeated, in order, with correct IDs.

The input is what an independent consumer read, which records were acknowledged to producers, and the raw bytes that each
client received. This module imports nothing from kafkasse. It replays each client's events one by one and tracks the
client's position in every partition:

    record       must be the next record of its partition that this client may see, in the form that the format promises
    event ID     must equal the client's position, so that only events that the client has not received follow it
    gap          must start at the client's position and cover only offsets that the log has lost
    reconnect    moves the client back to the last event ID that it received; later events are sent again

A position may differ only by offsets that hold no visible record: transaction markers, and compacted, aborted or filtered
records.

All times are in seconds of one monotonic clock. The bounds of the log, the acknowledgments and the bytes that a client
received have times, so the checker knows what the log held when the server sent an event, and how late a record was.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from typing import Any, NamedTuple

from tests.history.payloads import ExpectedEvent, StoredRecord
from tests.history.stored_logs import FOREVER, Acknowledged, Bounds, Delays, LogVersion, StoredLogs, Visible
from tests.history.wire import Block, EventId, Partition, blocks, last_id, lines, parse_id, schema_error

__all__ = ["Acknowledged", "Allowance", "Bounds", "Connection", "History", "StoredRecord", "last_id", "violations"]

MAX_EARLY_S = 0.1  # a stream may end this long before its token expires: clocks differ
MAX_VIOLATIONS_PER_CLIENT = 10  # one fault causes many violations; the first ones identify it
GAP_MEMBERS = {"topic", "partition", "from", "to", "reason"}
SNAPSHOT_END = '{"snapshot":"complete"}'  # the data of the position event after the last row of a snapshot


class Connection(NamedTuple):
    """One connection of a client.

    Attributes:
        status: the status of the response; 0 if there was no response.
        body: the bytes of the body, without HTTP's chunk framing.
        cut: True if the connection broke; False if the server ended the response.
        arrivals: when the client had received how many bytes of the body, in order.
        expires_at: when the token of the client expires. The server must end the stream then, and not earlier.
    """

    sent_id: str | None
    status: int
    body: bytes
    cut: bool = True
    began: float = 0.0
    arrivals: Sequence[tuple[int, float]] = ()
    expires_at: float = inf

    def time_of(self, size: int) -> float:
        at = bisect_left(self.arrivals, size, key=lambda arrival: arrival[0])
        return self.arrivals[at][1] if at < len(self.arrivals) else self.began

    @property
    def has_expired(self) -> bool:
        """Whether the last bytes arrived when the token expired, or later."""
        return self.time_of(len(self.body)) > self.expires_at - MAX_EARLY_S

    @property
    def is_refused(self) -> bool:
        """Whether the client got no stream, although its token had not expired."""
        return self.status != 200 and not (self.status == 401 and self.has_expired)


class Allowance(NamedTuple):
    """What a fault may do to a client between two times: refuse connections in a row, and end streams."""

    begin: float
    end: float
    refused: int = 0
    ended: int = 0

    def covers(self, began: float, ended: float) -> bool:
        return self.begin <= ended and began <= self.end


@dataclass(frozen=True)
class History:
    """Everything that one client received, and what its route promises.

    Attributes:
        format: kafkasse, value, envelope or cloudevents. With `value`, a client must be able to tell all records apart.
        keeps: the route's filter. It is called for every record that the format does not skip.
        id_frequency: "event", or "run" if only the last event of a run has an ID.
        start: where a client without an ID starts: latest, earliest, snapshot, or a timestamp in milliseconds.
        wire: sse, or lines for newline-delimited JSON. Lines have no IDs; the client makes its own from the records. Or
            chunks: each connection is a finite read, its body has lines of JSON, and its next offset is the ID that the
            client sends next.
        statuses: the statuses that a response or an error event may have in addition to 200.
        max_refused: how many connections in a row may bring no stream.
        allowances: how many more of both each fault may cause, while it lasts.
    """

    client: str
    topics: Sequence[str]
    connections: Sequence[Connection]
    format: str = "kafkasse"
    keeps: Callable[[StoredRecord], bool] = lambda stored: True
    id_type: str = "offset"
    id_frequency: str = "event"
    start: str | int = "latest"
    wire: str = "sse"
    statuses: frozenset[int] = frozenset()
    max_refused: int = 0
    max_ended: int = 0
    allowances: Sequence[Allowance] = ()


def violations(
    histories: Iterable[History],
    stored: Sequence[StoredRecord],
    *,
    acknowledged: Iterable[Acknowledged] = (),
    reached: Mapping[Partition, int] | None = None,
    bounds: Mapping[Partition, Sequence[Bounds]] | None = None,
    excused: Iterable[str] = (),
    compacted: Iterable[str] = (),
    first_at: Callable[[Partition, int], int | None] | None = None,
    versions_began: Mapping[Partition, Mapping[LogVersion, float]] | None = None,
    max_delay_s: float = inf,
    outages: Sequence[tuple[float, float]] = (),
    max_behind_s: float = 0.0,
    began: float = inf,
    max_overstay_s: float = inf,
) -> list[str]:
    """Return the violations in these histories; an empty list if there are none.

    Args:
        histories: one for each client.
        stored: every record that the independent consumer read, including those that retention has removed since.
        acknowledged: records that must be among `stored`.
        reached: for each partition, the end that every client of its topic must have reached.
        bounds: for each partition, the bounds of its log in the order of their times. A client must start at the end
            that the log had then, and a gap may only cover what the log had lost then.
        excused: topics that may lose acknowledged records: because of an unclean election, of compaction, or because
            retention removed records before the independent consumer read them.
        compacted: topics of which a client may lack a tombstone, or a record whose key has a newer record, if the
            independent consumer has not read this record since.
        first_at: returns Kafka's first offset of a partition at or after a timestamp, or None if there is none. Kafka
            also counts transaction markers, which no consumer sees. Without it, the records of `stored` decide.
        versions_began: when each version of a log began, as far as it is known. A snapshot may only show a version that
            existed while the client waited for it.
        max_delay_s: how long after its acknowledgment, or after the client first connected, a record may arrive.
        outages: the times, as begin and end, that do not count as a delay.
        max_behind_s: how far a server's tail may be behind the log. A client that starts at the end starts at the tail.
        began: when the servers started. On a slow machine, a tail may still be at the end that the log had then.
        max_overstay_s: how long after the token has expired a stream may still send bytes.
    """
    acknowledged = list(acknowledged)
    logs = StoredLogs(stored, bounds or {}, frozenset(compacted), first_at, versions_began or {})
    delays = Delays(acknowledged, max_delay_s, outages)
    reports = [*logs.missing(acknowledged, frozenset(excused))]
    for history in histories:
        reports += _Client(history, logs, reached or {}, delays, max_overstay_s, max_behind_s, began).violations()
    return reports


@dataclass(frozen=True)
class _Position:
    """A client's position in one partition.

    Attributes:
        low, high: the next offset is between these two. They differ if the client's first record is not known.
        versions: the versions of the log that the client may be reading.
        timestamp: the timestamp that the next event ID must contain, or None if it is not known yet.
    """

    low: int
    high: int
    versions: tuple[LogVersion, ...]
    timestamp: int | None = None


class _TooManyViolations(Exception):
    """The client has MAX_VIOLATIONS_PER_CLIENT violations."""


@dataclass
class _Client:
    """Replays the history of one client."""

    _history: History
    _stored: StoredLogs
    _reached: Mapping[Partition, int]
    _delays: Delays
    _max_overstay_s: float
    _max_behind_s: float
    _servers_began: float

    def __post_init__(self) -> None:
        self._connected = self._history.connections[0].began if self._history.connections else 0.0
        self._began = self._opened = self._now = 0.0  # of the connection, of its first ID or line, of the block
        self._found: list[str] = []
        self._positions: dict[Partition, _Position] | None = None  # None until the start is known
        self._at_last_id: dict[Partition, _Position] | None = None  # at the last event ID received
        self._topic_ids: dict[str, str] = {}
        self._last_id: str | None = None
        self._only: frozenset[str] = frozenset()
        self._had_offset: set[Partition] = set()  # the partitions for which an event ID contained an offset
        self._snapshot: list[Block] | None = None
        self._where = ""

    def violations(self) -> list[str]:
        try:
            for number, connection in enumerate(self._history.connections):
                self._where = f"connection {number}"
                self._follow(connection)
            self._where = "at the end"
            self._check_availability()
            self._check_reached()
        except _TooManyViolations:
            pass
        return self._found

    def _report(self, what: str) -> None:
        self._found.append(f"{self._history.client}, {self._where}: {what}")
        if len(self._found) >= MAX_VIOLATIONS_PER_CLIENT:
            raise _TooManyViolations

    def _check_availability(self) -> None:
        """Check how often the server refused a connection or ended a stream."""
        history, allowances = self._history, self._history.allowances
        for is_refused, group in groupby(history.connections, lambda connection: connection.is_refused):
            row = list(group) if is_refused else []
            during = [
                allowance.refused for allowance in allowances if row and allowance.covers(row[0].began, row[-1].began)
            ]
            if len(row) > (allowed := history.max_refused + sum(during)):
                self._report(f"{len(row)} connections in a row brought no stream, expected at most {allowed}")
        streams = [connection for connection in history.connections if connection.status == 200]
        ends = [stream.time_of(len(stream.body)) for stream in streams if not stream.cut and not stream.has_expired]
        if len(ends) > (allowed := history.max_ended + sum(allowance.ended for allowance in allowances)):
            self._report(f"the server ended {len(ends)} streams, expected at most {allowed}")
        unexplained = [
            at for at in ends if not any(allowance.ended and allowance.covers(at, at) for allowance in allowances)
        ]
        if allowances and len(unexplained) > history.max_ended:
            self._report(f"the server ended {len(unexplained)} streams that no fault explains")

    # One connection.

    def _follow(self, connection: Connection) -> None:
        if connection.status != 200:
            if connection.is_refused and connection.status not in {0, *self._history.statuses}:
                self._report(f"the response was {connection.status}")
            return
        received = blocks(connection.body) if self._is_sse else lines(connection.body)
        self._began = self._now = connection.began
        opening = (
            next((candidate.end for candidate in received if candidate.id is not None), len(connection.body))
            if self._is_sse
            else 0
        )
        self._opened = connection.time_of(opening)
        self._begin(connection.sent_id)
        connection_at = self._where
        failed = False
        id_received = False
        for block in received:
            self._where = f"{connection_at}, byte {block.start}"
            self._now = connection.time_of(block.end)
            if failed:
                self._report("an event follows the error that ended the stream")
            if block.id is not None and block.names[-1] != "id":
                self._report("the ID is not the last field: a client that is cut may store it without the event")
            if block.id is not None and not id_received:
                id_received = True
                if error := schema_error(block.id):
                    self._report(f"the event ID {block.id!r} does not match the schema: {error}")
            failed = failed or self._take(block)
        self._where = connection_at
        if not connection.cut and connection.body and not connection.body.endswith(b"\n\n" if self._is_sse else b"\n"):
            self._report("the server ended the stream within an event")
        if not failed:
            self._check_expiry(connection, received)

    def _check_expiry(self, connection: Connection, received: Sequence[Block]) -> None:
        """Check that a stream whose token expired ended in time, with a reconnection time."""
        overstay_s = connection.time_of(len(connection.body)) - connection.expires_at
        if overstay_s > self._max_overstay_s:
            self._report(f"the stream sent bytes {overstay_s:.1f} s after its token expired")
        is_ended = connection.expires_at < inf and not connection.cut
        if is_ended and self._is_sse and all(block.retry_ms is None for block in received[-2:]):
            self._report("the server ended the stream without a reconnection time")

    @property
    def _is_sse(self) -> bool:
        return self._history.wire == "sse"

    def _begin(self, sent_id: str | None) -> None:
        """Start a connection: the position is the one that the client sent."""
        first = self._positions is None and self._last_id is None
        if not first and self._is_sse and sent_id != self._last_id:
            self._report(f"reconnected with {sent_id!r}, but the last event ID received was {self._last_id!r}")
        self._snapshot = None
        if sent_id is None:
            self._positions = None if self._is_sse else self._from_route()
            self._snapshot = [] if self._history.start == "snapshot" else None
        elif self._history.wire == "chunks" and self._positions is not None:
            self._take_id(sent_id)
        elif not self._is_sse and self._positions is not None:
            self._check_own_id(parse_id(sent_id))
        elif first or sent_id != self._last_id:
            self._positions = self._from_foreign_id(parse_id(sent_id))
        elif self._at_last_id is not None:
            self._positions = {
                partition: self._resumed(partition, position) for partition, position in self._at_last_id.items()
            }
        self._last_id = sent_id

    def _check_own_id(self, parsed: EventId) -> None:
        """Check the ID that a client of JSON lines made from the lines that it received."""
        positions = self._positions or {}
        for partition, (offset, _) in parsed.entries.items():
            position = positions.get(partition)
            if position is None or (offset is not None and not position.low <= offset <= position.high):
                self._report(f"{_label(partition)}: reconnected at {offset}, but the position was {position}")

    def _resumed(self, partition: Partition, position: _Position) -> _Position:
        if self._history.id_type != "timestamp" or position.timestamp is None:
            return position
        return self._by_time(partition, position.versions, position.timestamp, position.low)

    def _by_time(
        self, partition: Partition, versions: tuple[LogVersion, ...], timestamp: int, end: int | None, first: int = 0
    ) -> _Position:
        """Return the position at a timestamp in a log that starts at `first`.

        If no record has it, that is the log end at that time: at least `end`.
        """
        ever, now = self._stored.at_time(partition, versions, timestamp, first)
        if end is None:
            return _Position(0 if ever == FOREVER else ever, now, versions, timestamp)
        return _Position(min(ever, end), now, versions, timestamp)

    def _from_foreign_id(self, parsed: EventId) -> dict[Partition, _Position]:
        """Return the positions in an event ID that did not come from this stream."""
        self._only = parsed.only
        positions = {}
        for partition, (offset, timestamp) in parsed.entries.items():
            if offset is not None:
                positions[partition] = _Position(offset, offset, self._versions(partition), timestamp)
            else:
                positions[partition] = self._since(partition, timestamp or 0)
        for partition in self._partitions():
            if partition not in positions and partition[0] not in parsed.only:
                positions[partition] = (
                    self._route_start(partition) if partition[0] in parsed.bare_topics else self._log_start(partition)
                )
        return positions

    def _since(self, partition: Partition, timestamp: int) -> _Position:
        of_log = partition, self._versions(partition), timestamp, min(self._ends(partition), default=None)
        start = self._log_start(partition)
        high = self._by_time(*of_log, start.high)
        return replace(high, low=self._by_time(*of_log, start.low).low)

    def _ends(self, partition: Partition) -> list[int]:
        """Return the ends of the log at which a client without a position may start."""
        since = min(self._began - self._max_behind_s, self._servers_began)
        return [bounds.end for bounds in self._stored.between(partition, since, self._opened)]

    def _versions(self, partition: Partition) -> tuple[LogVersion, ...]:
        return tuple(self._stored.versions(partition))

    def _partitions(self) -> list[Partition]:
        """Return all known partitions of the stream's topics."""
        known = {*self._stored.logs, *self._reached, *self._stored.bounds}
        return sorted(partition for partition in known if partition[0] in self._history.topics)

    def _log_start(self, partition: Partition) -> _Position:
        """Return the first offset of a partition's log, at which a partition that was added since the event ID starts."""
        firsts = [bounds.first for bounds in self._stored.between(partition, self._began, self._opened)]
        return _Position(min(firsts, default=0), max(firsts, default=0), self._versions(partition))

    def _route_start(self, partition: Partition) -> _Position:
        """Return where the route starts in a partition that the client did not name."""
        start = self._history.start
        if isinstance(start, int):
            return self._since(partition, start)
        if start != "latest":
            return self._log_start(partition)
        ends = self._ends(partition)
        if not ends:
            self._report(f"{_label(partition)}: the end of the log was not recorded, so the start cannot be checked")
        low = ends[0] if ends and ends == sorted(ends) else 0  # a truncated or recreated log may have had any end
        return _Position(low, max(ends, default=FOREVER), self._versions(partition))

    def _from_route(self) -> dict[Partition, _Position]:
        return {partition: self._route_start(partition) for partition in self._partitions()}

    # One block.

    def _take(self, block: Block) -> bool:
        """Process one block. Return True if it ended the stream."""
        self._move_to_start_of_added()
        gap = _gap_in(block, self._is_sse)
        if block.event == "error" and self._is_sse:
            self._check_error(block)
            if block.id is not None:
                self._take_id(block.id)
            return True
        if block.event == "gap" and self._is_sse:
            self._take_gap(gap)
        elif block.event == "position" and self._is_sse and block.id is not None:
            if block.data != ("{}" if self._snapshot is None else SNAPSHOT_END):
                self._report(f"a position event has the wrong data: {_short(block)}")
        elif block.event and self._snapshot is not None:
            self._snapshot.append(block)
        elif block.event:
            self._deliver(block, gap)
        if block.id is not None:
            self._take_id(block.id)
        return False

    def _move_to_start_of_added(self) -> None:
        """Move past removed records in partitions that were added after the client's first event ID.

        Such a partition starts at the first record that the log holds when the partition joins the stream. Lines have no
        IDs, so a partition of theirs was added if it did not exist when the client connected.
        """
        has_ids = self._history.wire != "lines"
        if self._positions is None or (has_ids and self._at_last_id is None):
            return
        for partition in self._positions.keys() - self._had_offset:
            if not has_ids and not self._stored.is_newer(partition, self._began):
                continue
            position = self._positions[partition]
            first = self._stored.first(partition, self._now)
            self._positions[partition] = replace(position, high=max(position.high, first))

    def _check_error(self, block: Block) -> None:
        status = json.loads(block.data).get("status")
        if status not in self._history.statuses:
            self._report(f"the stream ended with an error: {block.data}")

    def _deliver(self, block: Block, gap: dict[str, Any] | None) -> None:
        if self._positions is None:
            self._report(f"a record precedes the first event ID: {_short(block)}")
            self._positions = self._from_route()
        if self._is_sse and self._history.id_frequency == "event" and block.id is None:
            self._report(f"an event has no ID: {_short(block)}")
        at = self._next_record(block) or self._diagnose(block, gap)
        if at is not None:
            partition, offset, versions = at
            record = self._stored.versions(partition)[versions[0]].records[offset]
            delay_s = self._delays.delay_s(partition, offset, versions[0][0], self._connected, self._now)
            if delay_s > self._delays.max_s:
                self._report(
                    f"{_label(partition)}: offset {offset} came {delay_s:.1f} s late, not {self._delays.max_s} s"
                )
            self._positions[partition] = _Position(offset + 1, offset + 1, versions, self._time_after(record))
            if not self._is_sse:
                self._had_offset.add(partition)

    def _next_record(self, block: Block) -> tuple[Partition, int, tuple[LogVersion, ...]] | None:
        """Return the partition, offset and log versions of the record if it is the next one of a partition."""
        assert self._positions is not None
        for partition, position in self._positions.items():
            candidates: dict[int, list[LogVersion]] = defaultdict(list)
            for version in self._may_read(partition, position):
                if self._history.wire != "chunks" and self._stored.was_truncated(partition, version, self._began):
                    continue
                for offset in self._next_offsets(partition, version, position):
                    if _matches(block, self._visible(partition, version).expected[offset]):
                        candidates[offset].append(version)
            if candidates:
                offset = min(candidates)
                return partition, offset, tuple(candidates[offset])
        return None

    def _visible(self, partition: Partition, version: LogVersion) -> Visible:
        promised = self._history
        return self._stored.versions(partition)[version].visible(promised.format, promised.wire, promised.keeps)

    def _next_offsets(self, partition: Partition, version: LogVersion, position: _Position) -> list[int]:
        """Return the offsets that may come next: one, unless the client's first record is not known."""
        visible = self._visible(partition, version)
        return visible.between(position.low, visible.first_required(position.high, self._now) + 1)

    def _may_read(self, partition: Partition, position: _Position) -> list[LogVersion]:
        """Return the log versions that the client may be reading, and later ones that are equal so far."""
        every = self._stored.versions(partition)
        if len(every) == 1:
            return list(every)
        later = [
            other
            for other in every
            for version in position.versions
            if other > version
            and other[0] == version[0]
            and position.high <= self._stored.differs(partition, version, other)
        ]
        return sorted({*position.versions, *later})

    def _all_optional(self, partition: Partition, version: LogVersion, start: int, to: int) -> bool:
        """Return whether no record in `[start, to)` is required."""
        return not self._visible(partition, version).required(start, to, self._now)

    def _diagnose(
        self, block: Block, gap: dict[str, Any] | None
    ) -> tuple[Partition, int, tuple[LogVersion, ...]] | None:
        """Report an event that is not the next one, and continue after it."""
        if not self._is_sse and gap is not None:
            self._take_gap(gap)
            return None
        assert self._positions is not None
        for partition, position in self._positions.items():
            for version in self._stored.versions(partition):
                events = self._visible(partition, version).expected
                for offset in (at for at, event in events.items() if _matches(block, event)):
                    self._report(f"{_label(partition)}: {self._explain_offset(partition, version, position, offset)}")
                    return partition, offset, (version,)
        self._report(f"matches no record of the stream, or was altered: {_short(block)}")
        return None

    def _explain_offset(self, partition: Partition, version: LogVersion, position: _Position, offset: int) -> str:
        if offset < position.low:
            return f"offset {offset} was repeated or is out of order: the position was {position.low}"
        lost = self._visible(partition, version).required(position.high, offset, self._now)
        return f"offset {offset} came, but {len(lost)} records before it did not, and no gap covers them: {lost[:20]}"

    # Gaps.

    def _take_gap(self, gap: dict[str, Any] | None) -> None:
        if gap is None:
            self._report("a gap does not name the partition and the lost offsets")
            return
        partition, start, to = (gap["topic"], gap["partition"]), gap["from"], gap["to"]
        positions = self._positions if self._positions is not None else self._from_route()
        self._positions = positions
        if partition not in positions:
            self._report(f"{_label(partition)}: a gap in a partition that does not belong to the stream")
            return
        position = positions[partition]
        versions = self._may_read(partition, position)
        if not any(self._is_at(partition, version, position, start) for version in versions):
            self._report(f"{_label(partition)}: a gap starts at {start}, but the position was {position.high}")
        ok = tuple(
            version
            for version in self._stored.versions(partition)
            if self._is_valid_gap(partition, versions, version, start, to)
        )
        if not ok:
            self._report(f"{_label(partition)}: a gap from {start} to {to}, but the log did not lose these offsets")
        positions[partition] = _Position(to, to, ok or self._versions(partition), position.timestamp)

    def _is_valid_gap(
        self, partition: Partition, versions: Iterable[LogVersion], version: LogVersion, start: int, to: int
    ) -> bool:
        """Return whether a client at `start` had to continue at `to` in this version of the log."""
        # A client may receive the gap after its topic was recreated.
        first = self._stored.first(partition, self._now, topic_id=version[0])
        if version in versions and (start < to <= first or self._stored.is_hole(partition, start, to, self._now)):
            return True
        earlier = [other for other in versions if other < version]
        is_start = self._all_optional(partition, version, first if first <= to else 0, to)
        recreated = is_start and any(other[0] != version[0] for other in earlier)
        diverged = [self._stored.differs(partition, other, version) for other in earlier if other[0] == version[0]]
        visible = self._visible(partition, version)
        truncated = any(to <= max(offset, first) and not visible.between(to, offset) for offset in diverged)
        return recreated or truncated

    # Event IDs.

    def _take_id(self, text: str) -> None:
        """Process an event ID: a client that reconnects now resumes here."""
        try:
            parsed = parse_id(text)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            self._report(f"the event ID {text!r} cannot be parsed: {error}")
            return
        self._check_topics(parsed)
        if self._snapshot is not None:
            self._end_snapshot(parsed)
        positions = self._positions if self._positions is not None else self._from_route()
        self._positions = {
            partition: self._checked_position(partition, position, parsed)
            for partition, position in self._all(positions, parsed).items()
        }
        self._at_last_id = dict(self._positions)
        self._topic_ids = dict(parsed.topic_ids)
        self._last_id = text

    def _check_topics(self, parsed: EventId) -> None:
        topics = {partition[0] for partition in parsed.entries}
        if not topics <= set(self._history.topics):
            self._report(f"the event ID names topics of another stream: {sorted(topics)}")
        if parsed.bare_topics or set(parsed.topic_ids) != topics or parsed.only != self._only & topics:
            self._report(f"the event ID lacks the topic ID or the `only` flag of a topic: {parsed}")

    def _all(self, positions: dict[Partition, _Position], parsed: EventId) -> dict[Partition, _Position]:
        """Return the positions of all partitions, including those that this event ID names for the first time."""
        return positions | {
            partition: self._log_start(partition) for partition in parsed.entries if partition not in positions
        }

    def _checked_position(self, partition: Partition, position: _Position, parsed: EventId) -> _Position:
        offset, timestamp = parsed.entries.get(partition, (0, None))  # a missing partition is read from its start
        if offset is not None:
            self._had_offset |= {partition} & parsed.entries.keys()
        elif self._history.id_type == "offset" and timestamp is not None and partition not in self._had_offset:
            return position  # a pending partition: until it has a leader, the event ID contains its start timestamp
        if (offset, offset, timestamp) == (position.low, position.high, None) and self._is_plain_id(partition, parsed):
            return position
        versions = self._versions_of_id(partition, position, parsed)
        if self._history.id_type != "offset" and partition in parsed.entries:
            self._check_time(partition, position, timestamp)
        if self._history.id_type == "timestamp" and timestamp is not None:
            return replace(position, versions=versions, timestamp=timestamp)
        if offset is None:
            self._report(f"{_label(partition)}: the event ID has no offset")
            return position
        ok = tuple(version for version in versions if self._is_at(partition, version, position, offset))
        if not ok:
            problem = self._describe_offset(partition, versions, position, offset)
            self._report(f"{_label(partition)}: the event ID has offset {offset}, {problem}")
        return _Position(offset, offset, ok or versions, timestamp)

    def _is_plain_id(self, partition: Partition, parsed: EventId) -> bool:
        """Return whether only the offset needs a check, as for most IDs and partitions."""
        has_timestamps = self._history.id_type != "offset"
        return not has_timestamps and parsed.topic_ids == self._topic_ids and len(self._stored.versions(partition)) == 1

    def _is_at(self, partition: Partition, version: LogVersion, position: _Position, offset: int) -> bool:
        """Return whether a client that resumes at `offset` loses and repeats nothing."""
        repeated = self._visible(partition, version).between(offset, position.low)
        return self._all_optional(partition, version, position.high, offset) and not repeated

    def _describe_offset(
        self, partition: Partition, versions: Sequence[LogVersion], position: _Position, offset: int
    ) -> str:
        actual = f"{position.low}" if position.low == position.high else f"between {position.low} and {position.high}"
        low, high = (position.high, offset) if offset > position.high else (offset, position.low)
        wrong = self._visible(partition, versions[0]).between(low, high)
        return f"but the position is {actual}: {wrong[:20]} would be {'lost' if offset > position.high else 'repeated'}"

    def _versions_of_id(self, partition: Partition, position: _Position, parsed: EventId) -> tuple[LogVersion, ...]:
        """Return the log versions that fit the topic ID: recreated topics if it has changed, else the same topic."""
        versions = tuple(self._may_read(partition, position))
        before = self._at_last_id.get(partition) if self._at_last_id else None
        if before is None or partition[0] not in self._topic_ids:
            return versions
        renamed = self._topic_ids[partition[0]] != parsed.topic_ids.get(partition[0])
        had = {version[0] for version in before.versions}
        fitting = tuple(version for version in versions if (version[0] not in had) is renamed or len(had) > 1)
        if 0 not in had and had == {version[0] for version in self._stored.versions(partition)}:
            return versions  # the partition was added to the recreated topic
        if not fitting:
            what = "a recreated topic, but no gap announced it" if renamed else "a topic that was deleted"
            self._report(f"{_label(partition)}: the event ID refers to {what}")
        return fitting or versions

    def _check_time(self, partition: Partition, position: _Position, timestamp: int | None) -> None:
        """Check that the timestamp belongs to the last record before this ID, shown or not."""
        after = position.timestamp
        if timestamp is None:
            return  # it is unknown, and the ID contains the offset instead
        if after is not None and timestamp != after and timestamp not in self._hidden_times(partition, position):
            records = self._stored.versions(partition)[position.versions[0]].records
            offsets = self._visible(partition, position.versions[0]).offsets
            lost = [at for at in offsets if at >= position.high and after <= records[at].timestamp < timestamp]
            # With `both`, the offset counts. The timestamp is for copies of the topic, where an earlier one loses nothing.
            if lost or (timestamp < after and self._history.id_type == "timestamp"):
                self._report(
                    f"{_label(partition)}: the event ID has timestamp {timestamp}, not {after}: {lost} would be lost"
                )

    def _hidden_times(self, partition: Partition, position: _Position) -> list[int]:
        """Return the timestamps that an ID may have after each hidden record that follows."""
        log = self._stored.versions(partition)[position.versions[0]]
        visible = self._visible(partition, position.versions[0])
        end = visible.first_required(position.high, self._now)
        hidden = (
            record for at, record in log.records.items() if position.low <= at < end and at not in visible.expected
        )
        return [self._time_after(record) for record in hidden]

    def _time_after(self, record: StoredRecord) -> int:
        """Return the timestamp to resume from. IDs with only a timestamp do not repeat the last millisecond; `both` does."""
        return record.timestamp + (self._history.id_type == "timestamp")

    # A snapshot.

    def _end_snapshot(self, parsed: EventId) -> None:
        """Check that all events so far are the newest record of each key before the first event ID."""
        events, self._snapshot = self._snapshot or [], None
        versions = {partition: self._shown_versions(partition, parsed, events) for partition in parsed.entries}
        wanted = {
            (partition, offset): event
            for partition, shown in versions.items()
            for offset, event in self._table(partition, shown[-1], parsed).items()
        }
        last: dict[Partition, int] = {}
        for event in events:
            at = next((key for key, expected in wanted.items() if _matches(event, expected)), None)
            if at is None:
                self._report(f"an event of the snapshot is repeated or is not the newest of its key: {_short(event)}")
                continue
            del wanted[at]
            if at[1] < last.get(at[0], -1):
                self._report(f"{_label(at[0])}: offset {at[1]} out of order in the snapshot")
            last[at[0]] = at[1]
        if wanted:
            self._report(
                f"the snapshot lacks {[f'{_label(partition)} offset {at}' for partition, at in list(wanted)[:10]]}"
            )
        added = {partition: self._log_start(partition) for partition in self._partitions()}
        self._positions = added | {
            partition: _Position(at or 0, at or 0, versions[partition]) for partition, (at, _) in parsed.entries.items()
        }

    def _shown_versions(self, partition: Partition, parsed: EventId, events: Sequence[Block]) -> tuple[LogVersion, ...]:
        """Return the versions of a log of which these events contain exactly the newest record of each key.

        If there is none, return the newest version that the client may have received.
        """
        possible = self._stored.versions_between(partition, self._began, self._now)
        if len(possible) == 1:
            return possible
        tables = {version: self._table(partition, version, parsed) for version in possible}
        rows = {
            number
            for version in possible
            for expected in self._visible(partition, version).expected.values()
            for number, event in enumerate(events)
            if _matches(event, expected)
        }
        fitting = [
            version
            for version, table in tables.items()
            if len(table) == len(rows)
            and all(any(_matches(events[row], event) for event in table.values()) for row in rows)
        ]
        return tuple(fitting) or possible[-1:]

    def _table(self, partition: Partition, version: LogVersion, parsed: EventId) -> dict[int, ExpectedEvent]:
        """Return the newest visible record of each key, as events by offset. All records of a key are in one partition."""
        newest: dict[object, StoredRecord] = {}
        for at, record in self._stored.versions(partition)[version].records.items():
            if at < (parsed.entries[partition].offset or 0):
                newest[record.key if record.key is not None else at] = record
        events = self._visible(partition, version).expected
        kept = [record for record in newest.values() if record.value is not None and record.offset in events]
        return {record.offset: events[record.offset] for record in kept}

    # The end.

    def _check_reached(self) -> None:
        for partition, end in self._reached.items():
            if partition[0] in self._history.topics:
                self._check_end(partition, end)

    def _check_end(self, partition: Partition, end: int) -> None:
        if self._positions is None:
            self._report(f"{_label(partition)}: the client never had a position")
        elif partition in self._positions or partition[0] not in self._only:
            position = self._positions.get(partition) or self._log_start(partition)
            *_, newest = self._stored.versions(partition)
            if newest not in self._may_read(partition, position):
                self._report(f"{_label(partition)}: the position is {position.high} in a log that no longer exists")
            elif not self._all_optional(partition, newest, position.high, end):
                rest = self._visible(partition, newest).required(position.high, end, self._now)
                missing = f"{len(rest)} records never came: {rest[:20]}"
                self._report(f"{_label(partition)}: the position is {position.high} of {end}, {missing}")


def _matches(block: Block, expected: ExpectedEvent) -> bool:
    return block.event == expected.event and expected.matches(block.data)


def _gap_in(block: Block, is_sse: bool) -> dict[str, Any] | None:
    """Return the members of a gap, or None if the block is not a complete gap."""
    if is_sse and block.event != "gap":
        return None
    try:
        members = json.loads(block.data) if block.data else None
    except ValueError:
        return None
    if not isinstance(members, dict) or (not is_sse and members.pop("event", None) != "gap"):
        return None
    whole = all(type(members.get(name)) is int and 0 <= members[name] < FOREVER for name in ("partition", "from", "to"))
    return members if whole and members.keys() == GAP_MEMBERS and isinstance(members["topic"], str) else None


def _label(partition: Partition) -> str:
    return f"{partition[0]}/{partition[1]}"


def _short(block: Block) -> str:
    return f"{block.event} {block.data[:200]!r}"
