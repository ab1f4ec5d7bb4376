"""Confluent's wire format: find the schema ID of a record, and the data that the schema describes. No I/O.

    value:   0, schema ID (4 bytes), data
    value:   1, schema GUID (16 bytes), data
    header:  __value_schema_id with the same bytes as before the data; the value is the data

With Protobuf, the message indexes follow the ID, in the value or in the header.

Source: Confluent's documentation, "Wire format", and its SchemaId class.
"""

from __future__ import annotations

import uuid

from kafkasse.log import Record
from kafkasse.records.frame import DeserializationError

HEADER = "__value_schema_id"
ID_BYTES = 5
GUID_BYTES = 17
MAX_INDEXES = 100  # of a message that is nested in other messages; Protobuf's own limit for nesting

SchemaId = int | str  # an ID, or a GUID as text


def split(record: Record) -> tuple[SchemaId, bytes]:
    """Return the schema ID of a record, and the data. With Protobuf, the data starts with the message indexes.

    Raises:
        DeserializationError: the record has no schema ID.
    """
    value = record.value or b""
    for name, header in reversed(record.headers):
        if name == HEADER and header is not None:
            schema_id, rest = _split(header, f"the header {HEADER}")
            return schema_id, rest + value if rest else value
    return _split(value, "the value")


def _split(text: bytes, where: str) -> tuple[SchemaId, bytes]:
    if text[:1] == b"\0" and len(text) >= ID_BYTES:
        return int.from_bytes(text[1:ID_BYTES], "big"), text[ID_BYTES:]
    if text[:1] == b"\1" and len(text) >= GUID_BYTES:
        return str(uuid.UUID(bytes=text[1:GUID_BYTES])), text[GUID_BYTES:]
    raise DeserializationError(f"{where} does not start with a schema ID", "no_schema_id")


def message_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the message indexes of a Protobuf record, and how many bytes they take up. A single 0 stands for (0,).

    Raises:
        DeserializationError: the data does not start with message indexes.
    """
    if data[:1] == b"\0":
        return (0,), 1
    count, at = _varint(data, 0)
    indexes: list[int] = []
    while len(indexes) < count <= MAX_INDEXES:
        index, at = _varint(data, at)
        indexes.append(index)
    if not indexes or min(indexes) < 0:
        raise DeserializationError("the message indexes are not valid", "undecodable")
    return tuple(indexes), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag varint at an offset, and the offset after it."""
    number = 0
    for shift, byte in zip(range(0, 35, 7), data[at : at + 5], strict=False):
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number >> 1 ^ -(number & 1), at + shift // 7 + 1
    raise DeserializationError("the message indexes are not valid", "undecodable")
