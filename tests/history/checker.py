"""Whether clients were sent what they were promised: nothing lost, nothing twice, in order, by ids that tell the truth.

It is given what an independent consumer read, what producers were acknowledged, and each client's raw bytes, and knows no
code of kafkasse. It follows each client event by event, with the place in every partition where the client must stand:

    record   it is the next one of its partition that this client's stream shows, and looks as the format promises
    id       it tells exactly the places where the client stands; what comes after it was not told yet
    gap      it begins where the client stands, ends where the log goes on, and that log has lost what it declares
    cut      the client stands again where the last id that it kept says, and what was not told comes once more

A place is exact but for offsets that hold nothing to see: markers, compacted, aborted and filtered records.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tests.history.payloads import Shown, Written, shown, shown_as_line
from tests.history.wire import Block, Id, Place, blocks, last_id, lines, read_id, schema_error

__all__ = ["Acknowledged", "Attempt", "History", "Written", "complaints", "last_id"]

COMPLAINTS_PER_CLIENT_MAX = 10  # one fault makes many; the first tell what it was
FOREVER = 2**63
GAP_MEMBERS = {"topic", "partition", "from", "to", "reason"}

Life = tuple[int, int]  # topic_id of the topic, epoch of the partition's log


class Acknowledged(NamedTuple):
    """A record of which a broker told its producer that it is kept (and, in a transaction, that it is committed)."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    topic_id: int = 0


class Attempt(NamedTuple):
    """One connection of a client.

    Attributes:
        sent_id: the Last-Event-ID that it sent, or None.
        status: of the response; 0 where there was none.
        body: the bytes of its body, without HTTP's chunk frames.
        cut: whether it broke off; False where the server ended it.
    """

    sent_id: str | None
    status: int
    body: bytes
    cut: bool = True


@dataclass(frozen=True)
class History:
    """All that one client had, and what its route promises.

    Attributes:
        client: its name, for complaints.
        topics: of the stream.
        attempts: its connections in order.
        format: kafkasse, value, envelope or cloudevents. With `value`, no two records may look the same to a client.
        keeps: the route's filter; it is asked of every record that the format does not skip.
        id_kind: offset, timestamp or both.
        id_frequency: "event", or "run" where only the last event of a run tells an id.
        start: where a client without an id begins: latest, earliest, snapshot, or a time in milliseconds.
        ends: by place, between which two ends of the log it began: as seen before it came and after it was answered.
        wire: sse, or lines for newline-delimited JSON, which has no ids.
        statuses: that it may be answered, in a response or an error event, beside 200.
    """

    client: str
    topics: Sequence[str]
    attempts: Sequence[Attempt]
    format: str = "kafkasse"
    keeps: Callable[[Written], bool] = lambda written: True
    id_kind: str = "offset"
    id_frequency: str = "event"
    start: str | int = "latest"
    ends: Mapping[Place, tuple[int, int]] = field(default_factory=dict)
    wire: str = "sse"
    statuses: frozenset[int] = frozenset()


def complaints(
    histories: Iterable[History],
    written: Sequence[Written],
    *,
    acknowledged: Iterable[Acknowledged] = (),
    reached: Mapping[Place, int] | None = None,
    firsts: Mapping[Place, int] | None = None,
    excused: Iterable[str] = (),
    compacted: Iterable[str] = (),
    first_at: Callable[[Place, int], int | None] | None = None,
) -> list[str]:
    """What is wrong with these histories; nothing where all is well.

    Args:
        histories: one for each client.
        written: all that the independent consumer read, also what retention has removed since.
        acknowledged: must be among `written`.
        reached: by place, the end up to which each client of its topic must have come.
        firsts: by place, the offset before which retention has removed what was there: so far a gap may reach.
        excused: topics of which acknowledged records may be lost: unclean election, compaction, retention unread.
        compacted: topics of which a record may be missing that a later one of its key has replaced, or a tombstone.
        first_at: the first offset of a place at or after a time, None where there is none, as Kafka says: it counts
            markers too, which no consumer sees. Without it the records of `written` decide.
    """
    truth = _Truth(written, firsts or {}, frozenset(compacted), first_at)
    found = [*truth.missing(acknowledged, frozenset(excused))]
    for history in histories:
        found += _Client(history, truth, reached or {}).complaints()
    return found


class _Visible(NamedTuple):
    """What a kind of client is shown of a log: offsets, rising; those of them that must come; and how each looks."""

    offsets: list[int]
    needed: list[int]
    looks: dict[int, Shown]


class _Log:
    """One life of one partition: its records in order, and those of them that a kind of client is shown."""

    def __init__(self, records: Iterable[Written], compacted: bool = False) -> None:
        self.records = {each.offset: each for each in sorted(records, key=lambda each: each.offset)}
        newest = {each.key: at for at, each in self.records.items()}
        gone = (at for at, each in self.records.items() if each.value is None or newest[each.key] != at)
        self._may_go = frozenset(gone if compacted else ())
        self._visible: dict[tuple[str, str, Any], _Visible] = {}

    def visible(self, history: History) -> _Visible:
        """What this client is shown."""
        kind = history.format, history.wire, history.keeps
        if kind not in self._visible:
            look = shown if history.wire == "sse" else shown_as_line
            looks = {at: look(each, history.format) for at, each in self.records.items()}
            there = {at: each for at, each in looks.items() if each is not None and history.keeps(self.records[at])}
            self._visible[kind] = _Visible(list(there), [at for at in there if at not in self._may_go], there)
        return self._visible[kind]

    def at_time(self, timestamp: int) -> int | None:
        """The offset of the first record at or after a time."""
        return next((each.offset for each in self.records.values() if each.timestamp >= timestamp), None)

    def differs_from(self, later: _Log) -> int:
        """The first offset at which a later life of this log holds something else."""
        first = min(later.records, default=0)
        offsets = sorted(at for at in self.records.keys() | later.records.keys() if at >= first)
        return next((at for at in offsets if not _alike(self.records.get(at), later.records.get(at))), FOREVER)


def _alike(one: Written | None, other: Written | None) -> bool:
    return one is not None and other is not None and one[:7] == other[:7]


class _Truth:
    """What the independent consumer read, by place and life."""

    def __init__(
        self,
        written: Iterable[Written],
        firsts: Mapping[Place, int],
        compacted: frozenset[str],
        first_at: Callable[[Place, int], int | None] | None,
    ) -> None:
        lives: dict[Place, dict[Life, list[Written]]] = defaultdict(lambda: defaultdict(list))
        for each in written:
            lives[each.topic, each.partition][each.topic_id, each.epoch].append(each)
        self.logs = {
            place: {life: _Log(found[life], place[0] in compacted) for life in sorted(found)}
            for place, found in lives.items()
        }
        self.firsts = firsts
        self._first_at = first_at
        self._nothing = {(0, 0): _Log(())}
        self._differs: dict[tuple[Place, Life, Life], int] = {}

    def lives(self, place: Place) -> dict[Life, _Log]:
        return self.logs.get(place, self._nothing)

    def at_time(self, place: Place, lives: Iterable[Life], timestamp: int) -> tuple[int, int]:
        """The offset of the first record at or after a time: as of what was ever there, and as Kafka says by now.

        Kafka's may lie before, at a marker; it lies behind where records were removed since.
        """
        times = [self.lives(place)[life].at_time(timestamp) for life in lives]
        ever = min((at for at in times if at is not None), default=FOREVER)
        now = self._first_at(place, timestamp) if self._first_at else ever
        return min(ever, FOREVER if now is None else now), FOREVER if now is None else now

    def differs(self, place: Place, life: Life, later: Life) -> int:
        """Up to which offset two lives of a log are one; a topic that was made again has nothing of the old one."""
        if life[0] != later[0]:
            return 0
        key = place, life, later
        if key not in self._differs:
            logs = self.lives(place)
            self._differs[key] = logs[life].differs_from(logs[later])
        return self._differs[key]

    def missing(self, acknowledged: Iterable[Acknowledged], excused: frozenset[str]) -> Iterable[str]:
        """Acknowledged records that nobody could read."""
        for each in acknowledged:
            logs = [log for life, log in self.lives(each[:2]).items() if life[0] == each.topic_id]
            found = [log.records[each.offset] for log in logs if each.offset in log.records]
            if each.topic not in excused and not any((record.key, record.value) == each[3:5] for record in found):
                yield f"producer: {each.topic}/{each.partition} offset {each.offset} was acknowledged, and is not there"


@dataclass(frozen=True)
class _Stand:
    """Where a client stands in a partition.

    `low` and `high` differ where it is not known from which record it began; `lives` are those of the log that it may be
    reading; `timestamp` is the time that an id has to tell, None where nothing says so yet.
    """

    low: int
    high: int
    lives: tuple[Life, ...]
    timestamp: int | None = None


class _TooMany(Exception):
    """Enough was found."""


class _Client:
    """Follows one client through its history."""

    def __init__(self, history: History, truth: _Truth, reached: Mapping[Place, int]) -> None:
        self._history = history
        self._truth = truth
        self._reached = reached
        self._found: list[str] = []
        self._stands: dict[Place, _Stand] | None = None  # None until it is known where it begins
        self._told: dict[Place, _Stand] | None = None  # as of the last id that it had
        self._topic_ids: dict[str, str] = {}
        self._last_id: str | None = None
        self._only: frozenset[str] = frozenset()
        self._snapshot: list[Block] | None = None
        self._where = ""

    def complaints(self) -> list[str]:
        try:
            for number, attempt in enumerate(self._history.attempts):
                self._where = f"attempt {number}"
                self._follow(attempt)
            self._where = "at the end"
            self._check_reached()
        except _TooMany:
            pass
        return self._found

    def _complain(self, what: str) -> None:
        self._found.append(f"{self._history.client}, {self._where}: {what}")
        if len(self._found) >= COMPLAINTS_PER_CLIENT_MAX:
            raise _TooMany

    # One connection.

    def _follow(self, attempt: Attempt) -> None:
        if attempt.status != 200:
            if attempt.status not in self._history.statuses and attempt.status != 0:
                self._complain(f"was answered {attempt.status}")
            return
        self._begin(attempt.sent_id)
        found = blocks(attempt.body) if self._history.wire == "sse" else lines(attempt.body)
        attempt_at = self._where
        failed = False
        told_at_all = False
        for block in found:
            self._where = f"{attempt_at}, byte {block.at}"
            if failed:
                self._complain("something follows the error that ended the stream")
            if block.id is not None and not told_at_all:
                told_at_all = True
                if error := schema_error(block.id):
                    self._complain(f"the id {block.id!r} is not one: {error}")
            failed = failed or self._take(block)
        self._where = attempt_at
        if not attempt.cut and attempt.body and not attempt.body.endswith(b"\n\n" if self._is_sse else b"\n"):
            self._complain("the server ended the stream within an event")

    @property
    def _is_sse(self) -> bool:
        return self._history.wire == "sse"

    def _begin(self, sent_id: str | None) -> None:
        """A connection is made: the client stands where the id that it sent says."""
        first = self._stands is None and self._last_id is None
        if not first and self._is_sse and sent_id != self._last_id:
            self._complain(f"came back with {sent_id!r}, but the last id that it had was {self._last_id!r}")
        self._snapshot = None
        if sent_id is None:
            self._stands = None if self._is_sse else self._from_route()
            self._snapshot = [] if self._history.start == "snapshot" else None
        elif first or not self._is_sse or sent_id != self._last_id:
            self._stands = self._by_hand(read_id(sent_id))
        elif self._told is not None:
            self._stands = {place: self._resumed(place, stand) for place, stand in self._told.items()}
        self._last_id = sent_id

    def _resumed(self, place: Place, stand: _Stand) -> _Stand:
        if self._history.id_kind != "timestamp" or stand.timestamp is None:
            return stand
        return self._by_time(place, stand.lives, stand.timestamp, stand.low)

    def _by_time(self, place: Place, lives: tuple[Life, ...], timestamp: int, end: int | None) -> _Stand:
        """The first record at or after a time; where there was none, the end as it was then: at least `end`."""
        ever, now = self._truth.at_time(place, lives, timestamp)
        if end is None:
            return _Stand(0 if ever == FOREVER else ever, now, lives, timestamp)
        return _Stand(min(ever, end), now, lives, timestamp)

    def _by_hand(self, told: Id) -> dict[Place, _Stand]:
        """Where an id that was not had from this stream says."""
        self._only = told.only
        stands = {}
        for place, (offset, timestamp) in told.places.items():
            if offset is not None:
                stands[place] = _Stand(offset, offset, self._lives(place), timestamp)
            else:
                stands[place] = self._since(place, timestamp or 0)
        for place in self._places():
            if place not in stands and place[0] not in told.only:
                stands[place] = self._unsaid(place) if place[0] in told.named else self._added(place)
        return stands

    def _since(self, place: Place, timestamp: int) -> _Stand:
        ends = self._history.ends.get(place)
        return self._by_time(place, self._lives(place), timestamp, ends[0] if ends else None)

    def _lives(self, place: Place) -> tuple[Life, ...]:
        return tuple(self._truth.lives(place))

    def _places(self) -> list[Place]:
        """All partitions of its topics that anybody knows of."""
        known = {*self._truth.logs, *self._reached, *self._history.ends}
        return sorted(place for place in known if place[0] in self._history.topics)

    def _added(self, place: Place) -> _Stand:
        """A partition of which an id says nothing was added since: it is read from its first record."""
        return _Stand(0, self._truth.firsts.get(place, 0), self._lives(place))

    def _unsaid(self, place: Place) -> _Stand:
        """Where the route begins in a partition of which the client says nothing."""
        start = self._history.start
        if isinstance(start, int):
            return self._since(place, start)
        if start != "latest":
            return self._added(place)
        low, high = self._history.ends.get(place, (0, FOREVER))
        return _Stand(low, high, self._lives(place))

    def _from_route(self) -> dict[Place, _Stand]:
        return {place: self._unsaid(place) for place in self._places()}

    # One block.

    def _take(self, block: Block) -> bool:
        """Returns whether this was the end."""
        gap = _gap_in(block, self._is_sse)
        if block.event == "error" and self._is_sse:
            self._check_error(block)
            if block.id is not None:
                self._tell(block.id)
            return True
        if block.event == "gap" and self._is_sse:
            self._declare(gap)
        elif block.event and self._snapshot is not None:
            self._snapshot.append(block)
        elif block.event:
            self._deliver(block, gap)
        if block.id is not None:
            self._tell(block.id)
        return False

    def _check_error(self, block: Block) -> None:
        status = json.loads(block.data).get("status")
        if status not in self._history.statuses:
            self._complain(f"the stream ended with an error: {block.data}")

    def _deliver(self, block: Block, gap: dict[str, Any] | None) -> None:
        if self._stands is None:
            self._complain(f"a record came before the first id: {_short(block)}")
            self._stands = self._from_route()
        if self._is_sse and self._history.id_frequency == "event" and block.id is None:
            self._complain(f"an event without an id: {_short(block)}")
        at = self._next_places(block) or self._diagnose(block, gap)
        if at is not None:
            place, offset, lives = at
            record = self._truth.lives(place)[lives[0]].records[offset]
            self._stands[place] = _Stand(offset + 1, offset + 1, lives, self._time_after(record))

    def _next_places(self, block: Block) -> tuple[Place, int, tuple[Life, ...]] | None:
        """The partition whose next record this is."""
        assert self._stands is not None
        for place, stand in self._stands.items():
            found: dict[int, list[Life]] = defaultdict(list)
            for life in self._may_read(place, stand):
                for offset in self._nexts(place, life, stand):
                    if _is(block, self._visible(place, life).looks[offset]):
                        found[offset].append(life)
            if found:
                offset = min(found)
                return place, offset, tuple(found[offset])
        return None

    def _visible(self, place: Place, life: Life) -> _Visible:
        return self._truth.lives(place)[life].visible(self._history)

    def _nexts(self, place: Place, life: Life, stand: _Stand) -> list[int]:
        """The offsets that may come next: one, unless it is not known where the client began."""
        offsets, needed, _ = self._visible(place, life)
        due = bisect_left(needed, stand.high)
        last = needed[due] if due < len(needed) else FOREVER
        return offsets[bisect_left(offsets, stand.low) : bisect_left(offsets, last + 1)]

    def _may_read(self, place: Place, stand: _Stand) -> list[Life]:
        """The lives of the log that it stands in, and those that were the same so far."""
        every = self._truth.lives(place)
        if len(every) == 1:
            return list(every)
        later = [
            other
            for other in every
            for life in stand.lives
            if other > life and other[0] == life[0] and stand.high <= self._truth.differs(place, life, other)
        ]
        return sorted({*stand.lives, *later})

    def _hides(self, place: Place, life: Life, start: int, to: int) -> bool:
        """Whether nothing has to come from `start` up to, but without, `to`."""
        return not self._between(self._visible(place, life).needed, start, to)

    @staticmethod
    def _between(offsets: list[int], start: int, to: int) -> list[int]:
        return offsets[bisect_left(offsets, start) : bisect_left(offsets, to)]

    def _diagnose(self, block: Block, gap: dict[str, Any] | None) -> tuple[Place, int, tuple[Life, ...]] | None:
        """An event came that is not next. Say what it is, and go on behind it."""
        if not self._is_sse and gap is not None:
            self._declare(gap)
            return None
        assert self._stands is not None
        for place, stand in self._stands.items():
            for life in self._truth.lives(place):
                looks = self._visible(place, life).looks
                for offset in (each for each, look in looks.items() if _is(block, look)):
                    self._complain(f"{_name(place)}: {self._wrong_turn(place, life, stand, offset)}")
                    return place, offset, (life,)
        self._complain(f"looks like no record of its stream, or was altered: {_short(block)}")
        return None

    def _wrong_turn(self, place: Place, life: Life, stand: _Stand, offset: int) -> str:
        if offset < stand.low:
            return f"offset {offset} came again, or out of order: it stood at {stand.low}"
        lost = self._between(self._visible(place, life).needed, stand.high, offset)
        return f"offset {offset} came, and {lost[:20]} before it did not, of {len(lost)} that no gap declared"

    # Gaps.

    def _declare(self, gap: dict[str, Any] | None) -> None:
        if gap is None:
            self._complain("a gap that does not say which offsets of which partition are lost")
            return
        place, start, to = (gap["topic"], gap["partition"]), gap["from"], gap["to"]
        stands = self._stands if self._stands is not None else self._from_route()
        self._stands = stands
        if place not in stands:
            self._complain(f"{_name(place)}: a gap in a partition that is not of the stream")
            return
        stand = stands[place]
        lives = self._may_read(place, stand)
        if not any(self._is_at(place, each, stand, start) for each in lives):
            self._complain(f"{_name(place)}: a gap from {start}, but it stood at {stand.high}")
        ok = tuple(each for each in self._truth.lives(place) if self._explains(place, lives, each, start, to))
        if not ok:
            self._complain(f"{_name(place)}: a gap from {start} to {to}, where nothing like that was lost")
        stands[place] = _Stand(to, to, ok or self._lives(place), stand.timestamp)

    def _explains(self, place: Place, lives: Iterable[Life], life: Life, start: int, to: int) -> bool:
        """Whether going on at `to` in this life of the log is what somebody who stood at `start` had to do."""
        if life in lives and start < to <= self._truth.firsts.get(place, 0):
            return True
        earlier = [each for each in lives if each < life]
        remade = any(each[0] != life[0] for each in earlier) and self._hides(place, life, 0, to)
        truncated = any(each[0] == life[0] and to <= self._truth.differs(place, each, life) for each in earlier)
        return remade or truncated

    # Ids.

    def _tell(self, text: str) -> None:
        """An id came: from now on this is where the client goes on."""
        try:
            told = read_id(text)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            self._complain(f"the id {text!r} cannot be read: {error}")
            return
        self._check_topics(told)
        if self._snapshot is not None:
            self._end_snapshot(told)
        stands = self._stands if self._stands is not None else self._from_route()
        self._stands = {place: self._told_of(place, stand, told) for place, stand in self._all(stands, told).items()}
        self._told = dict(self._stands)
        self._topic_ids = dict(told.topic_ids)
        self._last_id = text

    def _check_topics(self, told: Id) -> None:
        topics = {place[0] for place in told.places}
        if not topics <= set(self._history.topics):
            self._complain(f"the id tells of {sorted(topics)}")
        if told.named or set(told.topic_ids) != topics or told.only != self._only & topics:
            self._complain(f"the id does not say of each topic which creation of it, and which partitions: {told}")

    def _all(self, stands: dict[Place, _Stand], told: Id) -> dict[Place, _Stand]:
        """The partitions of the stream: those that it had, and those that the id tells of for the first time."""
        return stands | {place: self._added(place) for place in told.places if place not in stands}

    def _told_of(self, place: Place, stand: _Stand, told: Id) -> _Stand:
        offset, timestamp = told.places.get(place, (0, None))  # what is left out is read from its first record
        if (offset, offset, timestamp) == (stand.low, stand.high, None) and self._is_as_before(place, told):
            return stand
        lives = self._of_incarnation(place, stand, told)
        if self._history.id_kind != "offset" and place in told.places:
            self._check_time(place, stand, timestamp)
        if self._history.id_kind == "timestamp":
            return replace(stand, lives=lives, timestamp=timestamp)
        if offset is None:
            self._complain(f"{_name(place)}: the id tells no offset")
            return stand
        ok = tuple(life for life in lives if self._is_at(place, life, stand, offset))
        if not ok:
            self._complain(f"{_name(place)}: the id tells {offset}, {self._other_place(place, lives, stand, offset)}")
        return _Stand(offset, offset, ok or lives, timestamp)

    def _is_as_before(self, place: Place, told: Id) -> bool:
        """Nothing but to go on: what most ids say of most partitions."""
        of_times = self._history.id_kind != "offset"
        return not of_times and told.topic_ids == self._topic_ids and len(self._truth.lives(place)) == 1

    def _is_at(self, place: Place, life: Life, stand: _Stand, offset: int) -> bool:
        again = self._between(self._visible(place, life).offsets, offset, stand.low)
        return self._hides(place, life, stand.high, offset) and not again

    def _other_place(self, place: Place, lives: Sequence[Life], stand: _Stand, offset: int) -> str:
        where = f"{stand.low}" if stand.low == stand.high else f"between {stand.low} and {stand.high}"
        low, high = (stand.high, offset) if offset > stand.high else (offset, stand.low)
        wrong = self._between(self._visible(place, lives[0]).offsets, low, high)
        return f"but it stands at {where}: {wrong[:20]} would be {'lost' if offset > stand.high else 'sent again'}"

    def _of_incarnation(self, place: Place, stand: _Stand, told: Id) -> tuple[Life, ...]:
        """The lives that the id may mean: another creation of the topic under another name, the same under the same."""
        lives = tuple(self._may_read(place, stand))
        before = self._told.get(place) if self._told else None
        if before is None or place[0] not in self._topic_ids:
            return lives
        renamed = self._topic_ids[place[0]] != told.topic_ids.get(place[0])
        had = {life[0] for life in before.lives}
        fitting = tuple(life for life in lives if (life[0] not in had) is renamed or len(had) > 1)
        if not fitting:
            said = "another creation of the topic, and no gap said so" if renamed else "a creation that is gone"
            self._complain(f"{_name(place)}: the id tells of {said}")
        return fitting or lives

    def _check_time(self, place: Place, stand: _Stand, timestamp: int | None) -> None:
        """The time to go on from follows the last record that was passed, shown or not."""
        after = stand.timestamp
        if timestamp is None:
            self._complain(f"{_name(place)}: the id tells no time")
        elif after is not None and timestamp != after and timestamp not in self._hidden_times(place, stand):
            records = self._truth.lives(place)[stand.lives[0]].records
            offsets = self._visible(place, stand.lives[0]).offsets
            lost = [at for at in offsets if at >= stand.high and after <= records[at].timestamp < timestamp]
            if timestamp < after or lost:
                self._complain(f"{_name(place)}: the id tells the time {timestamp}, not {after}: {lost} would be lost")

    def _hidden_times(self, place: Place, stand: _Stand) -> list[int]:
        """The times to go on from after each record that follows and is not to be seen."""
        log = self._truth.lives(place)[stand.lives[0]]
        _, needed, looks = self._visible(place, stand.lives[0])
        behind = bisect_left(needed, stand.high)
        end = needed[behind] if behind < len(needed) else FOREVER
        hidden = (each for at, each in log.records.items() if stand.low <= at < end and at not in looks)
        return [self._time_after(each) for each in hidden]

    def _time_after(self, record: Written) -> int:
        """With ids of times alone the last millisecond is not repeated; with `both` it is."""
        return record.timestamp + (self._history.id_kind == "timestamp")

    # A snapshot.

    def _end_snapshot(self, told: Id) -> None:
        """All events so far were the newest record of each key up to where the first id stands."""
        events, self._snapshot = self._snapshot or [], None
        wanted = {(place, each.offset): look for place in told.places for each, look in self._table(place, told)}
        last: dict[Place, int] = {}
        for event in events:
            at = next((key for key, look in wanted.items() if _is(event, look)), None)
            if at is None:
                self._complain(f"in the snapshot, but not the newest of its key, or there twice: {_short(event)}")
                continue
            del wanted[at]
            if at[1] < last.get(at[0], -1):
                self._complain(f"{_name(at[0])}: offset {at[1]} out of order in the snapshot")
            last[at[0]] = at[1]
        if wanted:
            self._complain(f"the snapshot lacks {[f'{_name(place)} offset {at}' for place, at in list(wanted)[:10]]}")
        self._stands = {place: _Stand(at or 0, at or 0, self._lives(place)) for place, (at, _) in told.places.items()}

    def _table(self, place: Place, told: Id) -> list[tuple[Written, Shown]]:
        """The newest record of each key, with how it looks, of those that are to be seen. A key has one partition."""
        *_, life = self._truth.lives(place)
        newest: dict[object, Written] = {}
        for at, each in self._truth.lives(place)[life].records.items():
            if at < (told.places[place].offset or 0):
                newest[each.key if each.key is not None else at] = each
        looks = self._visible(place, life).looks
        kept = [each for each in newest.values() if each.value is not None and each.offset in looks]
        return [(each, looks[each.offset]) for each in kept]

    # The end.

    def _check_reached(self) -> None:
        for place, end in self._reached.items():
            if place[0] in self._history.topics:
                self._check_end(place, end)

    def _check_end(self, place: Place, end: int) -> None:
        if self._stands is None:
            self._complain(f"{_name(place)}: it never came to stand anywhere")
        elif place in self._stands or place[0] not in self._only:
            stand = self._stands.get(place) or self._added(place)
            lives = self._may_read(place, stand)
            if not any(self._hides(place, life, stand.high, end) for life in lives):
                rest = self._between(self._visible(place, lives[-1]).needed, stand.high, end)
                self._complain(
                    f"{_name(place)}: it stands at {stand.high} of {end}, {len(rest)} never came: {rest[:20]}"
                )


def _is(block: Block, look: Shown) -> bool:
    return block.event == look.event and look.fits(block.data)


def _gap_in(block: Block, is_sse: bool) -> dict[str, Any] | None:
    """What a gap says, or None where this says nothing of the kind."""
    if is_sse and block.event != "gap":
        return None
    try:
        said = json.loads(block.data) if block.data else None
    except ValueError:
        return None
    if not isinstance(said, dict) or (not is_sse and said.pop("event", None) != "gap"):
        return None
    whole = all(type(said.get(name)) is int and 0 <= said[name] < FOREVER for name in ("partition", "from", "to"))
    return said if whole and said.keys() == GAP_MEMBERS and isinstance(said["topic"], str) else None


def _name(place: Place) -> str:
    return f"{place[0]}/{place[1]}"


def _short(block: Block) -> str:
    return f"{block.event} {block.data[:200]!r}"
