"""Parses the text of a Last-Event-ID into a position.

    text ─▶ msgspec or compact.decode() ─▶ _Entry for each partition ─▶ Position

msgspec decides whether an entry is valid. The JSON Schema, which clients can read, only explains to a client which entry is
wrong and why: it takes 150 µs for one entry, so 2,500 entries from one client would block all others for 0.4 s.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, NoReturn

import msgspec
from msgspec import UNSET, Meta, UnsetType

from kafkasse import schemas
from kafkasse.errors import InvalidPosition
from kafkasse.log import Partition
from kafkasse.records.position import compact
from kafkasse.records.position.position import INT32_MAX, INT64_MAX, LATEST, Limits, Place, Position

SCHEMA = "last-event-id"
DEFAULT_LIMITS = Limits()

_Topic = Annotated[str, Meta(pattern=r"\A(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z")]
_Int32 = Annotated[int, Meta(ge=0, le=INT32_MAX)]
_Int64 = Annotated[int, Meta(ge=0, le=INT64_MAX)]
_Offset = Annotated[int, Meta(ge=LATEST, le=INT64_MAX)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """An entry for one partition. Its rules equal those of the JSON Schema; a test compares them."""

    topic: _Topic
    partition: _Int32
    offset: _Offset | UnsetType = UNSET
    leader_epoch: _Int32 | UnsetType = UNSET
    timestamp: _Int64 | UnsetType = UNSET
    topic_id: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{0,22}\Z")] | UnsetType = UNSET
    only: bool | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.offset is UNSET and self.timestamp is UNSET:
            raise ValueError("an entry needs an offset or a timestamp")
        if self.leader_epoch is not UNSET and self.offset is UNSET:
            raise ValueError("leader_epoch needs an offset")
        if self.only is False:
            raise ValueError("only must be true")


_Entries = Annotated[list[_Entry | _Topic], Meta(min_length=1)]
_decode_json = msgspec.json.Decoder(_Entries).decode
_INVALID = (ValueError, msgspec.MsgspecError, RecursionError)  # before 0.20, a MsgspecError is not a ValueError


def parse(text: str, limits: Limits = DEFAULT_LIMITS) -> Position:
    """Parse a Last-Event-ID such as `[{"topic":"t","partition":0,"offset":1500}]`, or its compact form.

    Args:
        text: the header value as received.
        limits: the configured limits.

    Returns:
        The position: for each listed partition the next offset, or a timestamp in milliseconds since the epoch.

    Raises:
        InvalidPosition: the text does not match the schema, is too long, has an offset above 2**63 - 1, or has
            duplicate entries or members.

    Source: KafkaSSE's ID format; schemas/last-event-id.schema.json.
    """
    if len(text.encode("utf-8", "surrogatepass")) > limits.max_bytes:
        raise InvalidPosition(
            f"Last-Event-ID is longer than {limits.max_bytes} bytes (max_last_event_id_bytes). Request fewer topics."
        )
    is_compact = text.startswith(compact.MARK)
    try:
        entries = msgspec.convert(compact.decode(text), _Entries) if is_compact else _decode_json(text)
    except _INVALID:
        raise _rejection(compact.decode(text) if is_compact else _load_json(text)) from None
    if len(entries) > limits.max_entries:
        raise InvalidPosition(f"Last-Event-ID has more than {limits.max_entries} entries. Request fewer topics.")
    # msgspec accepts an entry with the same member twice. No valid string contains a colon, so there is such an entry if
    # the text has more colons than the entries have members.
    if not is_compact and text.count(":") > msgspec.json.encode(entries).count(b":"):
        _load_json(text)  # raises InvalidPosition
    return _position(entries)


def _position(entries: list[_Entry | str]) -> Position:
    starts: dict[Partition, Place] = {}
    topic_ids: dict[str, str] = {}
    partial_topics: set[str] = set()
    for index, entry in enumerate(entries):
        if isinstance(entry, str):
            continue
        partition = Partition(entry.topic, entry.partition)
        if partition in starts:
            raise InvalidPosition(
                f"Last-Event-ID has two entries for {partition.topic}/{partition.partition}.", at=f"[{index}]"
            )
        starts[partition] = (
            Place(LATEST)  # the timestamp and the epoch are those of no record
            if entry.offset == LATEST
            else Place(_or_none(entry.offset), _or_none(entry.timestamp), _or_none(entry.leader_epoch))
        )
        if entry.topic_id is not UNSET and topic_ids.setdefault(entry.topic, entry.topic_id) != entry.topic_id:
            raise InvalidPosition(f"Last-Event-ID has two topic_ids for {entry.topic}.", at=f"[{index}]")
        if entry.only:
            partial_topics.add(entry.topic)
    named_topics = tuple(dict.fromkeys(entry for entry in entries if isinstance(entry, str)))
    # Without a topic_id, the client wants only the partitions that it lists, unless it also names the topic.
    whole_topics = (topic_ids.keys() - partial_topics) | set(named_topics)
    listed_topics = {partition.topic for partition in starts}
    return Position(starts, named_topics, topic_ids, frozenset(listed_topics - whole_topics))


def _or_none(value: int | UnsetType) -> int | None:
    return None if value is UNSET else value


def _load_json(text: str) -> Any:
    """Decode JSON with Python's parser, which detects duplicate members.

    Raises:
        InvalidPosition: the text is not JSON, repeats a member, or contains a number that is not an integer.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_unique_members, parse_float=_reject_number, parse_constant=_reject_number
        )
    except (ValueError, RecursionError) as error:
        is_syntax_error = isinstance(error, json.JSONDecodeError)
        reason = str(error) if is_syntax_error else "it is nested too deeply, or a number is too long"
        raise InvalidPosition(f"Last-Event-ID is not JSON: {reason}.") from None


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise InvalidPosition("Last-Event-ID has an entry with the same member twice.")
    return members


def _reject_number(number: str) -> NoReturn:
    raise InvalidPosition(f"Last-Event-ID contains {number[:40]}, but offsets and timestamps are whole numbers.")


def _rejection(entries: Any) -> InvalidPosition:
    """Return the error that explains why `entries` is not a position."""
    index = 0
    if isinstance(entries, list) and entries:  # explain only the first invalid entry
        index = next((index for index, entry in enumerate(entries) if not _is_valid(entry)), 0)
        entries = [entries[index]]
    try:
        path, reason = schemas.first_error(SCHEMA, entries) or ("", "it does not match the schema")
    except RecursionError:  # Python could decode the entry, but cannot print it
        path, reason = "[0]", "it is nested too deeply"
    path = path.replace("[0]", f"[{index}]", 1)
    return InvalidPosition(f"Last-Event-ID{path and ' at ' + path}: {reason}.", at=path)


def _is_valid(entry: object) -> bool:
    try:
        msgspec.convert(entry, _Entry | _Topic)
    except _INVALID:
        return False
    return True
