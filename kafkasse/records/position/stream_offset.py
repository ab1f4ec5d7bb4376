"""Stream offsets: positions as the offsets of the Durable Streams protocol, such as `d1235.dCBpa1EzZDh5MVogOjEyMzRlNSAg`.

    digits sum "." body

`body` is the compact form of an event ID without its marks, with the next offset and the leader epoch of each partition.
`sum` is the sum of the next offsets and the number of partitions, and `digits` is a letter for its number of digits (`a`
for 1), so that texts sort as the sums do. A position that is ahead in one partition and behind in none, or that has one more
partition, has the larger sum. Each position has only one text, because a cache knows a response by its URL. No character
needs to be escaped in a URL.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping

from kafkasse.errors import InvalidParameter, InvalidPosition
from kafkasse.log import Epochs, Offsets, Partition
from kafkasse.records.position import compact
from kafkasse.records.position.id_writer import IdWriter
from kafkasse.records.position.parser import DEFAULT_LIMITS
from kafkasse.records.position.parser import parse as parse_id
from kafkasse.records.position.position import Limits, Position

_FORM = re.compile(r"[a-z][0-9]{1,26}\.([A-Za-z0-9_-]+)")


def render(offsets: Offsets, topic_ids: Mapping[str, str], epochs: Epochs, partial_topics: Collection[str] = ()) -> str:
    """Return the text of a position. IdWriter describes the arguments."""
    by_topic: defaultdict[str, list[Partition]] = defaultdict(list)
    for partition in sorted(offsets):
        by_topic[partition.topic].append(partition)
    lines = []
    for topic, partitions in by_topic.items():
        line = f"{topic} i{topic_ids.get(topic, '')}{' o' if topic in partial_topics else ''}"
        previous: Partition | None = None
        for partition in partitions:
            epoch = compact.after_offset(epochs.get(partition), None)
            line += f"{compact.entry_start(partition, previous)}{offsets[partition]}{epoch}"
            previous = partition
        lines.append(line)
    total = str(sum(offsets.values()) + len(offsets))
    return f"{chr(ord('a') + len(total) - 1)}{total}.{compact.encode(chr(10).join(lines))}"


def of(ids: IdWriter) -> str:
    """Return the text of the position of an ID writer."""
    return render(ids.offsets, ids.topic_ids, ids.epochs, ids.partial_topics)


def parse(text: str, limits: Limits = DEFAULT_LIMITS) -> Position:
    """Parse the text of a position.

    Raises:
        InvalidParameter: render() does not write this text, or it exceeds the limits.
    """
    if len(text) > limits.max_bytes:
        raise InvalidParameter(
            f"offset is longer than {limits.max_bytes} bytes (max_last_event_id_bytes). Request fewer topics."
        )
    match = _FORM.fullmatch(text)
    position = None if match is None else _parse_body(match[1], limits)
    if position is None or _render(position) != text:
        raise InvalidParameter(
            "offset must be -1, now, or the Stream-Next-Offset of a response, exactly as you received it."
        )
    return position


def _parse_body(body: str, limits: Limits) -> Position | None:
    try:
        return parse_id(f"{compact.OPENING}{body}{compact.CLOSING}", limits)
    except InvalidPosition:
        return None


def _render(position: Position) -> str:
    """Return the text of a position, or "" if an offset is missing."""
    offsets = {partition: start.offset for partition, start in position.starts.items() if start.offset is not None}
    if len(offsets) < len(position.starts):
        return ""
    epochs = {partition: start.epoch for partition, start in position.starts.items() if start.epoch is not None}
    return render(offsets, position.topic_ids, epochs, position.partial_topics)
