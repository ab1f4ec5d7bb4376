"""Rejects a stream whose event IDs or offsets would be too large for the server, so that every stream can be resumed."""

from __future__ import annotations

from functools import lru_cache

from kafkasse.errors import BadRequest
from kafkasse.log import Partition, Topics
from kafkasse.records.position import IdType, IdWriter, Position, stream_offset
from kafkasse.records.position.parser import DEFAULT_LIMITS
from kafkasse.route import Route
from kafkasse.settings import WebSettings

MAX_ENTRY_BYTES = 420  # of an entry whose topic name has 249 letters; if even such entries fit, an ID is not measured
LIVE_BYTES = 64  # of the parameters live and cursor, which a client adds later
# An ID becomes longer while a stream is open. These values are larger than most that occur.
LARGE_OFFSET, LARGE_EPOCH, TIMESTAMP, TOPIC_ID = 10**10 - 1, 999, 10**13 - 1, "x" * 8


def check_id_size(route: Route, position: Position, topics: Topics, settings: WebSettings) -> None:
    """Check that the server would accept the event IDs of a stream.

    Raises:
        BadRequest: the stream has more partitions than an event ID may have, or its event IDs could become longer than
            `max_last_event_id_bytes`.
    """
    counts = _counts(position, topics)
    count = sum(counts.values())
    max_bytes = settings.max_last_event_id_bytes
    if count > DEFAULT_LIMITS.max_entries:
        raise BadRequest(
            f"This stream has {count} partitions. A stream may have {DEFAULT_LIMITS.max_entries}, because its event IDs "
            "contain all of them. Request fewer topics or partitions."
        )
    may_be_long = count * MAX_ENTRY_BYTES > max_bytes
    if may_be_long and _id_bytes(tuple(counts.items()), route.id_type, route.compact_ids) > max_bytes:
        raise BadRequest(
            f"This stream has {count} partitions. Its event IDs could become longer than {max_bytes} bytes "
            f"(max_last_event_id_bytes), so that no client could resume it. Request fewer topics or partitions."
        )


def check_offset_size(position: Position, topics: Topics, other_bytes: int, max_bytes: int, limit: str) -> None:
    """Check that the server would accept the request lines with the offsets of a finite read.

    Args:
        other_bytes: the length of the request line without the offset.
        max_bytes: of a request line.
        limit: the name of the limit.

    Raises:
        BadRequest: a request line could become longer.
    """
    counts = _counts(position, topics)
    if other_bytes + LIVE_BYTES + _offset_bytes(tuple(counts.items()), position.partial_topics) > max_bytes:
        raise BadRequest(
            f"This stream has {sum(counts.values())} partitions. With its offsets, a request line could become longer than"
            f" {max_bytes} bytes ({limit}). Request fewer topics or partitions, or read it as a stream."
        )


def _counts(position: Position, topics: Topics) -> dict[str, int]:
    """Return the number of partitions of each topic that the client reads."""
    listed: dict[str, int] = {}
    for partition in position.starts:
        listed[partition.topic] = listed.get(partition.topic, 0) + 1
    return {
        name: listed[name] if name in position.partial_topics else topic.partitions for name, topic in topics.items()
    }


def _partitions(counts: tuple[tuple[str, int], ...]) -> list[Partition]:
    return [Partition(name, index) for name, count in counts for index in range(count)]


@lru_cache(maxsize=256)
def _offset_bytes(counts: tuple[tuple[str, int], ...], partial_topics: frozenset[str]) -> int:
    partitions = _partitions(counts)
    offsets, epochs = dict.fromkeys(partitions, LARGE_OFFSET), dict.fromkeys(partitions, LARGE_EPOCH)
    return len(stream_offset.render(offsets, {name: TOPIC_ID for name, _ in counts}, epochs, partial_topics))


@lru_cache(maxsize=256)
def _id_bytes(counts: tuple[tuple[str, int], ...], id_type: IdType, compact: bool | None) -> int:
    """Return the length of a long event ID. Cached, because it takes 10 ms for the largest ID."""
    partitions = _partitions(counts)
    return len(
        IdWriter(
            dict.fromkeys(partitions, LARGE_OFFSET),
            {name: TOPIC_ID for name, _ in counts},
            id_type=id_type,
            timestamps=dict.fromkeys(partitions, TIMESTAMP),
            compact=compact,
            epochs=dict.fromkeys(partitions, LARGE_EPOCH),
        ).render()
    )
