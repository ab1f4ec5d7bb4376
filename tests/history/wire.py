"""Parsers for the bytes that a client receives, written from the HTML standard and the published grammar of event IDs.

This module imports nothing from kafkasse. It turns bytes into blocks, and text into event IDs. Each block contains the
offset of its end, because a client that received fewer bytes did not receive the block.

Sources: https://html.spec.whatwg.org/multipage/server-sent-events.html; schemas/last-event-id.schema.json; docs/wire.md.
"""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator

from tests.support.sse import Block, read_blocks

SCHEMA = Path(__file__).parents[2] / "schemas" / "last-event-id.schema.json"
MAX_IDS_CACHED = 65_536  # many clients receive the same event IDs

Partition = tuple[str, int]  # topic, partition


def blocks(stream: bytes) -> list[Block]:
    """Return the complete blocks of a stream that have an event, an ID or a reconnection time."""
    found = read_blocks(stream)
    return [block for block in found if block.event or block.id is not None or block.retry_ms is not None]


def lines(stream: bytes) -> list[Block]:
    """Return the complete lines of newline-delimited JSON as message blocks, without empty lines."""
    messages: list[Block] = []
    at = 0
    while (end := stream.find(b"\n", at)) >= 0:
        if line := stream[at:end]:
            messages.append(Block(at, end + 1, "message", line.decode("utf-8", "replace"), None, None))
        at = end + 1
    return messages


def next_offsets(stream: bytes) -> dict[Partition, int]:
    """Return the offset after the last record or gap of each partition in a stream of JSON lines, as a client can.

    The formats `kafkasse`, `envelope` and `cloudevents` contain the offset; in `kafkasse` only objects do.
    """
    offsets: dict[Partition, int] = {}
    for line in lines(stream):
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # the checker reports a line that is not valid
            topic, partition, offset = _next_offset(json.loads(line.data))
            offsets[topic, partition] = offset
    return offsets


def _next_offset(members: dict[str, Any]) -> tuple[str, int, int]:
    if members.get("event") == "gap":
        return members["topic"], members["partition"], members["to"]
    if members.get("event") == "message":
        members = members["data"]
    if "specversion" in members:
        topic, partition, offset = members["id"].rsplit("/", 2)
        return topic, int(partition), int(offset) + 1
    origin = members.get("_kafka", members)
    return origin["topic"], origin["partition"], origin["offset"] + 1


def last_id(stream: bytes, before: str | None = None) -> str | None:
    """Return the Last-Event-ID that a browser sends after it received these bytes. It sent `before` last time."""
    ids = [block.id for block in blocks(stream) if block.id is not None]
    return (ids[-1] or None) if ids else before


class IdEntry(NamedTuple):
    """The part of an event ID for one partition: the next offset, the timestamp in milliseconds to resume from, or both."""

    offset: int | None
    timestamp: int | None


class EventId(NamedTuple):
    """A parsed event ID.

    Attributes:
        entries: what the ID says about each partition.
        topic_ids: for each topic, the start of its topic ID.
        only: the topics of which the stream has only the listed partitions.
        bare_topics: the topics that are given by name alone.
    """

    entries: dict[Partition, IdEntry]
    topic_ids: dict[str, str]
    only: frozenset[str]
    bare_topics: frozenset[str]


@lru_cache(MAX_IDS_CACHED)
def parse_id(text: str) -> EventId:
    """Parse an event ID in JSON or compact form.

    Raises:
        ValueError: the text is not an event ID.
    """
    items = _from_compact(text) if text.startswith("~") else json.loads(text)
    entries: dict[Partition, IdEntry] = {}
    for item in (entry for entry in items if isinstance(entry, dict)):
        partition = item["topic"], item["partition"]
        if partition in entries:
            raise ValueError(f"{partition} occurs twice")
        entries[partition] = IdEntry(item.get("offset"), item.get("timestamp"))
    bare_topics = frozenset(entry for entry in items if isinstance(entry, str))
    of_topic = {entry["topic"]: entry for entry in reversed(items) if isinstance(entry, dict)}
    topic_ids = {topic: first["topic_id"] for topic, first in of_topic.items() if "topic_id" in first}
    only = frozenset(topic for topic, first in of_topic.items() if _is_limited(topic, first, bare_topics))
    return EventId(entries, topic_ids, only, bare_topics)


def _is_limited(topic: str, first: dict[str, Any], bare_topics: frozenset[str]) -> bool:
    return topic not in bare_topics and ("topic_id" not in first or "only" in first)


@lru_cache(MAX_IDS_CACHED)
def schema_error(text: str) -> str | None:
    """Return why an event ID does not match the published schema, or None."""
    try:
        items = _from_compact(text) if text.startswith("~") else json.loads(text)
    except (ValueError, IndexError) as error:
        return str(error)
    violation = next(_validator().iter_errors(items), None)
    return violation.message if violation else None


@lru_cache(1)
def _validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads(SCHEMA.read_text()))


def _from_compact(text: str) -> list[dict[str, Any]]:
    """Decode `~~`, base64url of one line for each topic, and `~`. IDs of earlier versions have one `~`, at the start.

    A line is: name [iTOPIC_ID] [o] and, for each partition, [PARTITION]:[OFFSET][eLEADER_EPOCH][:TIMESTAMP].
    """
    if text.startswith("~~") and not text.endswith("~"):
        raise ValueError("the ID is incomplete")
    body = text.strip("~").encode("ascii")
    plain = base64.b64decode(body + b"=" * (-len(body) % 4), altchars=b"-_", validate=True).decode("ascii")
    return [entry for line in plain.split("\n") if line.strip() for entry in _from_line(line.split())]


def _from_line(words: list[str]) -> list[dict[str, Any]]:
    topic, *rest = words
    entries: list[dict[str, Any]] = []
    marks: dict[str, Any] = {"topic_id": rest[0][1:]} if rest and rest[0].startswith("i") else {}
    if "o" in rest:
        marks["only"] = True
    for word in (part for part in rest if ":" in part):
        where, offset_and_epoch, *when = word.split(":")
        offset, _, epoch = offset_and_epoch.partition("e")
        partition = int(where) if where else (entries[-1]["partition"] + 1 if entries else 0)
        entry: dict[str, Any] = {"topic": topic, "partition": partition, **({} if entries else marks)}
        entry |= {"offset": int(offset)} if offset else {}
        entry |= {"leader_epoch": int(epoch)} if epoch else {}
        entry |= {"timestamp": int(when[0])} if when else {}
        entries.append(entry)
    return entries
