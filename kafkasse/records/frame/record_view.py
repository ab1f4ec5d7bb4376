"""A record as filters, projections and decoders see it. The value is decoded at most once, and only if it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafkasse.log import Record
from kafkasse.records.frame.json_text import loads


class DecoderPending(Exception):
    """A decoder waits for I/O, such as the lookup of a schema. Encode the record again; the decoder then waits again."""


class RecordView:
    """One record of a topic.

    Args:
        topic: the topic.
        partition: the partition.
        record: the record.
        decode: returns the value as JSON types, for a value that is not None. It may raise DeserializationError.
    """

    __slots__ = ("_decode", "_decoded", "partition", "record", "topic")

    def __init__(
        self, topic: str, partition: int, record: Record, decode: Callable[[RecordView], Any] | None = None
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.record = record
        self._decode = decode
        self._decoded: Any = NotImplemented  # not decoded yet

    @property
    def value(self) -> Any:
        """The decoded value in JSON types; None for a tombstone.

        Raises:
            DeserializationError: the value cannot be decoded.
        """
        if self._decoded is NotImplemented:
            value = self.record.value
            if value is None:
                self._decoded = None
            else:
                self._decoded = self._decode(self) if self._decode is not None else loads(value)
        return self._decoded
