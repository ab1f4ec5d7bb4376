"""Confluent's wire format: schema IDs in values and headers, and message indexes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from kafkasse.log.memory import MemoryRecord
from kafkasse.records.frame import DeserializationError
from kafkasse.records.registry.wire_format import HEADER, message_indexes, split


def record(value: bytes, headers: Sequence[tuple[str, bytes | None]] = ()) -> MemoryRecord:
    return MemoryRecord(0, None, None, value, headers)


GUID = uuid.UUID("89791762-2336-4186-9674-299b90a802e2")


@pytest.mark.parametrize(
    ("of", "schema_id", "data"),
    [
        (record(b"\0\0\0\1\2data"), 258, b"data"),
        (record(b"\0\xff\xff\xff\xff"), 2**32 - 1, b""),
        (record(b"\1" + GUID.bytes + b"data"), str(GUID), b"data"),
        (record(b"data", headers=[(HEADER, b"\1" + GUID.bytes)]), str(GUID), b"data"),
        (record(b"data", headers=[(HEADER, b"\0\0\0\0\7")]), 7, b"data"),
        (record(b"data", headers=[(HEADER, b"\0\0\0\0\7\2\6")]), 7, b"\2\6data"),
        (record(b"", headers=[(HEADER, b"\0\0\0\0\1"), ("x", b""), (HEADER, b"\0\0\0\0\2")]), 2, b""),
        (record(b"\0\0\0\0\1a", headers=[("__key_schema_id", b"\0\0\0\0\2"), (HEADER, None)]), 1, b"a"),
    ],
)
def test_the_schema_id_of_a_record(of, schema_id, data):
    """The header comes before the value, and the last header of several is used, as by Confluent's Java client."""
    assert (schema_id, data) == split(of)


@pytest.mark.parametrize(
    "of",
    [
        record(b""),
        record(b"{}"),
        record(b"\0\0\0\1"),
        record(b"\1" + bytes(15)),
        record(b"\2" + bytes(30)),
        record(b"\0\0\0\0\1a", headers=[(HEADER, b"")]),
    ],
)
def test_a_record_without_a_schema_id(of):
    """The error has its own kind, because the cause is usually the configuration or a wrong producer."""
    with pytest.raises(DeserializationError, match="does not start with a schema ID") as caught:
        split(of)

    assert "no_schema_id" == caught.value.kind


@pytest.mark.parametrize(
    ("data", "indexes", "size"),
    [(b"\0rest", (0,), 1), (b"\2\0", (0,), 2), (b"\2\2", (1,), 2), (b"\4\2\x80\1rest", (1, 64), 4)],
)
def test_message_indexes(data, indexes, size):
    """Each is a zigzag varint, after their number. A single 0 stands for the first message."""
    assert (indexes, size) == message_indexes(data)
