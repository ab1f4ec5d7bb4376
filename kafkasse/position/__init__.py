"""Where in its topics a client wants to begin, or begin again.

A position maps each partition to the NEXT offset to read. It leaves us as an event's id, comes back as Last-Event-ID,
and is text from a stranger until parse() has passed it. No I/O here: only a feed asks the broker.

    [{"topic":"t","partition":0,"offset":12,"topic_id":"kQ3d8y1Z"},{"topic":"t","partition":1,"offset":7}]

The first entry of a topic carries its topic_id: which creation of that topic the offsets speak of. Ids that kafkasse
wrote name every partition there was, so a partition that is missing from one was added since and is read from its first
record. An id without an topic_id was written by hand, or by KafkaSSE, and means just the partitions that it lists.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, NoReturn

from kafkasse import schemas
from kafkasse.errors import InvalidPosition
from kafkasse.log import Partition

SCHEMA = "last-event-id"
COMPACT_MARK = "~"  # the first character of the compact form: neither JSON nor base64url begins with it
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


COMPACT_ABOVE_PARTITIONS = 64  # in JSON, that many make an id of some 3 KiB; many proxies take no header over 4 to 8


class Start(NamedTuple):
    """Where to begin in one partition. The offset (in records) wins; the timestamp is in milliseconds since the epoch."""

    offset: int | None = None
    timestamp: int | None = None


class IdType(Enum):
    """What an id tells of each partition. `both` goes on by offset in the same topic and by time in its copy elsewhere."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a stranger may send as a position."""

    max_bytes: int = 65_536
    max_entries: int = 2_000


@dataclass(frozen=True, slots=True)
class Position:
    """What a client asked for, before any broker was asked."""

    starts: Mapping[Partition, Start] = field(default_factory=dict)
    named: tuple[str, ...] = ()  # topics given by name alone: their other partitions start where the route says
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    only: frozenset[str] = frozenset()  # topics of which just the listed partitions are meant

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the stream, each once, in the order in which they were given."""
        return tuple(dict.fromkeys([*(partition.topic for partition in self.starts), *self.named]))


def of_topics(topics: Iterable[str]) -> Position:
    """The position of a client that only names topics."""
    return Position(named=tuple(dict.fromkeys(topics)))


def parse(text: str, limits: Limits = Limits()) -> Position:
    """Read a position such as `[{"topic":"t","partition":0,"offset":1500}]`, or its compact form.

    Args:
        text: Last-Event-ID as received; at most `limits.max_bytes` bytes.
        limits: bounds that the server was configured with.

    Returns:
        (topic, partition) -> next offset in records, or a timestamp in milliseconds since the epoch.

    Raises:
        InvalidPosition: not of the schema, too long, an offset over 2**63 - 1, or an entry given twice.

    Source: the id format of KafkaSSE; schemas/last-event-id.schema.json.
    """
    if len(text.encode("utf-8", "surrogatepass")) > limits.max_bytes:
        raise InvalidPosition(f"The position is longer than {limits.max_bytes} bytes.")
    entries = _entries(text)
    if isinstance(entries, list) and len(entries) > limits.max_entries:
        raise InvalidPosition(f"The position has more than {limits.max_entries} entries.")
    _check(entries)
    return _position(entries)


def _entries(text: str) -> Any:
    if text.startswith(COMPACT_MARK):
        return _from_compact(text)
    try:
        return json.loads(
            text, object_pairs_hook=_no_name_twice, parse_float=_whole_numbers_only, parse_constant=_whole_numbers_only
        )
    except InvalidPosition:
        raise
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "nested too deeply, or a number too long"
        raise InvalidPosition(f"Last-Event-ID is not JSON: {reason}.") from None


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise InvalidPosition("Last-Event-ID has an entry that gives a member twice.")
    return members


def _whole_numbers_only(number: str) -> NoReturn:
    raise InvalidPosition(f"Last-Event-ID holds {number[:40]}: only whole numbers can be offsets or timestamps.")


def _check(entries: Any) -> None:
    """Pass only what fits the schema. _fits() decides, the schema explains: asking it costs 150 µs an entry, and 2,000
    entries from a stranger would hold up everybody else for as long."""
    if not isinstance(entries, list) or not entries:
        raise _refusal(entries)
    for at, entry in enumerate(entries):
        if not _fits(entry):
            raise _refusal([entry], at)


def _fits(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return _is_topic(entry)
    return (
        entry.keys() >= {"topic", "partition"}
        and not entry.keys().isdisjoint({"offset", "timestamp"})
        and all(name in _MEMBERS and _MEMBERS[name](value) for name, value in entry.items())
    )


def _refusal(entries: Any, at: int = 0) -> InvalidPosition:
    try:
        where, why = schemas.first_error(SCHEMA, entries) or ("", "it does not fit the schema")
    except RecursionError:  # JSON that could just be read, and cannot be quoted
        where, why = "[0]", "it is nested too deeply"
    where = where.replace("[0]", f"[{at}]", 1)
    return InvalidPosition(f"Last-Event-ID{where and ' at ' + where}: {why}.", at=where)


def _is_topic(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", value)) and value not in (".", "..")


def _is_topic_id(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z0-9_-]{0,22}", value))


def _is_whole(value: Any, maximum: int = INT64_MAX) -> bool:
    return type(value) is int and 0 <= value <= maximum  # a bool is an int to isinstance()


_MEMBERS: dict[str, Callable[[Any], bool]] = {
    "topic": _is_topic,
    "partition": lambda value: _is_whole(value, INT32_MAX),
    "offset": _is_whole,
    "timestamp": _is_whole,
    "topic_id": _is_topic_id,
    "only": lambda value: value is True,
}


def _position(entries: list[Any]) -> Position:
    starts: dict[Partition, Start] = {}
    named = dict.fromkeys(entry for entry in entries if isinstance(entry, str))
    topic_ids: dict[str, str] = {}
    listed_only: set[str] = set()
    for at, entry in enumerate(entries):
        if isinstance(entry, str):
            continue
        partition = Partition(entry["topic"], entry["partition"])
        if partition in starts:
            raise InvalidPosition(f"Last-Event-ID gives {partition.topic}/{partition.partition} twice.", at=f"[{at}]")
        starts[partition] = Start(entry.get("offset"), entry.get("timestamp"))
        if (told := entry.get("topic_id")) is not None and topic_ids.setdefault(partition.topic, told) != told:
            raise InvalidPosition(f"Last-Event-ID tells of two topic_ids of {partition.topic}.", at=f"[{at}]")
        if entry.get("only"):
            listed_only.add(partition.topic)
    whole = {topic for topic in topic_ids if topic not in listed_only} | named.keys()
    only = frozenset(partition.topic for partition in starts if partition.topic not in whole)
    return Position(starts, tuple(named), topic_ids, only)


class IdWriter:
    """Writes the ids of one stream, replacing only the entry that changed.

    Args:
        offsets: the next offset of every partition of the stream, in the order in which the id lists them.
        topic_ids: by topic; see the schema.
        only: topics of which the stream holds just the listed partitions.
        kind: what the id tells of each partition.
        timestamps: for the kinds that tell times, the timestamp to go on from, in milliseconds since the epoch.
        compact: write the base64url form; None: where there are more than COMPACT_ABOVE_PARTITIONS.
    """

    def __init__(
        self,
        offsets: Mapping[Partition, int],
        topic_ids: Mapping[str, str],
        only: frozenset[str] = frozenset(),
        kind: IdType = IdType.OFFSET,
        timestamps: Mapping[Partition, int] | None = None,
        compact: bool | None = None,
    ) -> None:
        self.offsets = dict(offsets)
        self.timestamps = dict(timestamps or {})
        self.topic_ids = dict(topic_ids)
        self._only = only
        self._kind = kind
        self._compact = len(self.offsets) > COMPACT_ABOVE_PARTITIONS if compact is None else compact
        self._entries: dict[Partition, str] = {}
        self._render_all()

    def copy_at(self, offsets: Mapping[Partition, int], timestamps: Mapping[Partition, int]) -> IdWriter:
        """A writer of the same kind for another place."""
        return IdWriter(offsets, self.topic_ids, self._only, self._kind, timestamps, self._compact)

    def set(self, partition: Partition, next_offset: int, timestamp: int | None = None) -> None:
        """Move one partition on. `timestamp` is that of the record before `next_offset`, or None where it has none."""
        self.offsets[partition] = next_offset
        if timestamp is not None and timestamp >= 0:
            # The first record at or after this time is the next one, but for records that share the last one's
            # millisecond. `both` repeats those where it must go by time; `timestamp` alone skips them, as KafkaSSE does.
            self.timestamps[partition] = min(timestamp + (self._kind is IdType.TIMESTAMP), INT64_MAX)
        if partition not in self._entries:
            self._render_all()
        else:
            self._entries[partition] = self._entry(partition)

    def render(self) -> str:
        """The id as it stands now: one line of ASCII."""
        opening, between, closing = self._marks
        return opening + between.join(self._entries.values()) + closing

    def around(self, partition: Partition) -> tuple[str, Callable[[int], str], str] | None:
        """What stands before the offset of `partition` in render(), how an offset is spelled there, and what stands after.

        None where more than the offset changes. The records of a batch change one number in the id: with these, an id
        costs one concatenation, however many partitions there are.
        """
        if self._kind is not IdType.OFFSET or partition not in self._entries:
            return None
        opening, between, closing = self._marks
        entries = list(self._entries.values())
        index = list(self._entries).index(partition)
        head, spell, tail = self._heads[partition]
        before = opening + "".join(entry + between for entry in entries[:index]) + head
        after = tail + "".join(between + entry for entry in entries[index + 1 :]) + closing
        return before, spell, after

    def _render_all(self) -> None:
        first: dict[str, Partition] = {}
        for partition in self.offsets:
            first.setdefault(partition.topic, partition)
        self._firsts = set(first.values())
        self._marks = (COMPACT_MARK, "", "") if self._compact else ("[", ",", "]")
        before: Partition | None = None
        self._heads: dict[Partition, tuple[str, Callable[[int], str], str]] = {}
        for partition in self.offsets:
            self._heads[partition] = self._compact_head(partition, before) if self._compact else self._head(partition)
            before = partition
        self._entries = {partition: self._entry(partition) for partition in self.offsets}

    def _head(self, partition: Partition) -> tuple[str, Callable[[int], str], str]:
        plain = f'{{"topic":"{partition.topic}","partition":{partition.partition},"offset":'
        if partition not in self._firsts:
            return plain, str, "}"
        only = ',"only":true' if partition.topic in self._only else ""
        return plain, str, f',"topic_id":"{self.topic_ids.get(partition.topic, "")}"{only}}}'

    def _compact_head(self, partition: Partition, before: Partition | None) -> tuple[str, Callable[[int], str], str]:
        topic, index = partition
        same_line = before is not None and before.topic == topic
        follows = index == (before.partition + 1 if same_line and before is not None else 0)
        where = " :" if follows else f" {index}:"
        line = ""
        if not same_line:
            told = f" i{self.topic_ids.get(topic, '')}" if partition in self._firsts else ""
            line = _piece(f"\n{topic}{told}{' o' if told and topic in self._only else ''}")
        return line, lambda offset: _piece(f"{where}{offset}"), ""

    def _entry(self, partition: Partition) -> str:
        head, spell, tail = self._heads[partition]
        if self._kind is IdType.OFFSET:
            return f"{head}{spell(self.offsets[partition])}{tail}"
        if self._compact:
            return head + self._compact_times(partition)
        return json.dumps(self._plain(partition), separators=(",", ":"))

    def _compact_times(self, partition: Partition) -> str:
        offset = self.offsets[partition] if self._kind is IdType.BOTH else ""
        return _piece(f" {partition.partition}:{offset}:{self.timestamps.get(partition, 0)}")

    def _plain(self, partition: Partition) -> dict[str, Any]:
        entry: dict[str, Any] = {"topic": partition.topic, "partition": partition.partition}
        if self._kind is IdType.BOTH:
            entry["offset"] = self.offsets[partition]
        entry["timestamp"] = self.timestamps.get(partition, 0)
        if partition in self._firsts:
            entry["topic_id"] = self.topic_ids.get(partition.topic, "")
            if partition.topic in self._only:
                entry["only"] = True
        return entry


# The compact form: "~" and base64url of lines, one for each run of partitions of a topic:
#     LF topic [SP "i" topic_id] [SP "o"] *( SP partition-or-empty ":" offset-or-empty [":" timestamp] )
# A partition that follows the one before it, or is the 0th, is left out. Every part is filled up with spaces to a multiple
# of three bytes, so that each has base64 of its own, and one that changes is replaced without touching the others.


def _piece(text: str) -> str:
    return base64.urlsafe_b64encode((text + " " * (-len(text) % 3)).encode("ascii")).decode("ascii")


def _from_compact(text: str) -> list[dict[str, Any]]:
    """Undo the above. What it returns is checked by the schema like any other position."""
    try:
        body = text.removeprefix(COMPACT_MARK).encode("ascii")
        lines = base64.b64decode(body + b"=" * (-len(body) % 4), altchars=b"-_", validate=True).decode("ascii")
        entries = [entry for line in lines.split("\n") if line.strip() for entry in _from_line(line.split(" "))]
        if not entries:
            raise ValueError(lines)
        return entries
    except (ValueError, binascii.Error, IndexError):
        raise InvalidPosition(
            "Last-Event-ID begins like a compact id, but is not one. Send it as you got it."
        ) from None


def _from_line(words: list[str]) -> list[dict[str, Any]]:
    topic, *rest = [word for word in words if word]
    extra: dict[str, Any] = {}
    if rest and rest[0].startswith("i"):
        extra["topic_id"] = rest.pop(0)[1:]
    if rest and rest[0] == "o":
        extra["only"] = bool(rest.pop(0))
    entries: list[dict[str, Any]] = []
    for word in rest:
        where, offset, when = (word + ":" if word.count(":") == 1 else word).split(":")
        index = _whole(where) if where else (entries[-1]["partition"] + 1 if entries else 0)
        entry = {"topic": topic, "partition": index, **(extra if not entries else {})}
        entry |= {"offset": _whole(offset)} if offset else {}
        entry |= {"timestamp": _whole(when)} if when else {}
        entries.append(entry)
    if not entries:
        raise ValueError(topic)
    return entries


def _whole(digits: str) -> int:
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(digits)
    return int(digits)
