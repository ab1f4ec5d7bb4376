"""The compact form of an event ID, for streams with many partitions and for cross-origin pages.

A compact ID is "~~", the base64url encoding of lines of text, and "~". Some clients store an ID of which they have received
only a part. Without the last "~", a part could be a valid ID. Each line has the entries of one topic:

    LF topic [SP "i" topic-id] [SP "o"] *( SP [partition] ":" [offset] ["e" leader-epoch] [":" timestamp] )

"o" stands for `"only":true`. An entry omits its partition if it is the expected one: 0 in the first entry of a line, and one
more than the previous partition in the others. IdWriter encodes each topic and each entry separately, so that it can replace
one entry without encoding the others again. Base64 encodes three bytes at a time, so each of these pieces is padded with
spaces to a multiple of three bytes.
"""

from __future__ import annotations

import base64
import binascii
import re

from kafkasse.errors import InvalidPosition
from kafkasse.log import Partition

MARK = "~"  # neither JSON nor base64url starts with it
OPENING, CLOSING = 2 * MARK, MARK

_ENTRY = re.compile(r"([0-9]*):([0-9]*)(?:e([0-9]+))?(?::([0-9]*))?")


def encode(text: str) -> str:
    """Encode one piece, padded with spaces."""
    return base64.urlsafe_b64encode((text + " " * (-len(text) % 3)).encode("ascii")).decode("ascii")


def encode_topic(topic: str, topic_id: str, is_partial: bool) -> str:
    """Encode the start of a line."""
    return encode(f"\n{topic} i{topic_id}{' o' if is_partial else ''}")


def entry_start(partition: Partition, previous: Partition | None) -> str:
    """Return the text of an entry up to its offset. `previous` is the partition of the previous entry in the same line."""
    expected = 0 if previous is None else previous.partition + 1
    return " :" if partition.partition == expected else f" {partition.partition}:"


def after_offset(leader_epoch: int | None, timestamp: int | None) -> str:
    """Return the text of an entry after its offset."""
    epoch_part = "" if leader_epoch is None else f"e{leader_epoch}"
    return epoch_part if timestamp is None else f"{epoch_part}:{timestamp}"


def decode(text: str) -> list[dict[str, object]]:
    """Decode a compact ID into the entries of the equivalent JSON form, which may still be invalid.

    Raises:
        InvalidPosition: the text is not base64url, or the decoded lines do not have the form above.
    """
    try:
        if not (text.startswith(OPENING) and text.endswith(CLOSING, len(OPENING))):
            raise ValueError("incomplete")
        body = text[len(OPENING) : -len(CLOSING)].encode("ascii")
        lines = base64.b64decode(body, altchars=b"-_", validate=True).decode("ascii")
        entries = [entry for line in lines.split("\n") if line.strip() for entry in _decode_line(line.split(" "))]
        if not entries:
            raise ValueError("no entries")
        return entries
    except (ValueError, binascii.Error):
        raise InvalidPosition(
            "Last-Event-ID starts like a compact event ID, but it is damaged. Send the ID exactly as you received it."
        ) from None


def _decode_line(words: list[str]) -> list[dict[str, object]]:
    topic, *rest = filter(None, words)
    first: dict[str, object] = {}  # members that only the first entry has
    if rest and rest[0].startswith("i"):
        first["topic_id"] = rest.pop(0)[1:]
    if rest and rest[0] == "o":
        first["only"] = bool(rest.pop(0))
    entries: list[dict[str, object]] = []
    partition = -1
    for word in rest:
        match = _ENTRY.fullmatch(word)
        if not match:
            raise ValueError(word)
        number, offset, leader_epoch, timestamp = match.groups()
        partition = int(number) if number else partition + 1
        entry = {"topic": topic, "partition": partition, **first}
        if offset:
            entry["offset"] = int(offset)
        if leader_epoch:
            entry["leader_epoch"] = int(leader_epoch)
        if timestamp:
            entry["timestamp"] = int(timestamp)
        entries.append(entry)
        first = {}
    if not entries:
        raise ValueError(topic)
    return entries
