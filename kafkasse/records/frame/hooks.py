"""Hooks: the functions with which an application deserializes and filters records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kafkasse.errors import FilterError
from kafkasse.log import Record
from kafkasse.records.frame.json_text import DeserializationError, dumps, escape_line_separators


class TopicRecord(NamedTuple):
    """A record as a deserializer receives it. `timestamp` is in milliseconds since the epoch; -1 or None if unknown."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


Deserializer = Callable[[TopicRecord], Any]
Filterer = Callable[[Any], object]

# str.splitlines() breaks lines at these characters, too. Valid JSON contains them only escaped.
_CONTROL_LINE_ENDS = bytes.maketrans(b"\x0b\x0c\x1c\x1d\x1e", b"\n" * 5)


def deserialize(deserializer: Deserializer, topic: str, partition: int, record: Record) -> Any:
    """Return the deserializer's message for a record.

    Raises:
        DeserializationError: the deserializer raised an exception or returned None.
    """
    given = TopicRecord(
        topic, partition, record.offset, record.timestamp, record.key, record.value, tuple(record.headers)
    )
    try:
        message = deserializer(given)
    except Exception as error:
        reason = f"the deserializer raised {type(error).__name__}: {error}"
        raise DeserializationError(reason, "deserializer") from error
    if message is None:
        raise DeserializationError("the deserializer returned None", "deserializer")
    return message


def encode(message: Any) -> bytes:
    """Return the data of an event for a deserializer's message: text unchanged, as in KafkaSSE, anything else as JSON.

    Clients that use str.splitlines() must not find fields or events in the text. Therefore, line separators are escaped as
    in JSON, and control characters that end lines are replaced by LF.

    Raises:
        DeserializationError: JSON cannot represent the message.
    """
    if isinstance(message, str):
        return escape_line_separators(message.encode("utf-8", "replace").translate(_CONTROL_LINE_ENDS))
    try:
        return dumps(message)
    except (TypeError, ValueError, RecursionError) as error:
        raise DeserializationError(f"the deserializer's message is not JSON: {error}") from error


def accepts(filterer: Filterer, message: Any, record: str) -> bool:
    """Return whether the filterer accepts a message. `record` says where the message comes from.

    Raises:
        FilterError: the filterer raised an exception. The client does not see the text of that exception.
    """
    try:
        return bool(filterer(message))
    except Exception as error:
        failure = FilterError("The filter of this stream failed, so the server ended the stream.")
        failure.record = record
        raise failure from error
