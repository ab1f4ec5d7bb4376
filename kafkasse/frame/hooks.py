"""Hooks: the functions with which an application deserializes and filters records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kafkasse.errors import FilterError
from kafkasse.frame.json_text import DeserializationError
from kafkasse.log import Record


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
