"""Avro schemas with values, and records that contain them."""

from __future__ import annotations

import io
import struct
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import partial
from typing import Any

import fastavro

NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def encoded(schema: Any, value: Any, references: Sequence[Any] = ()) -> bytes:
    named: dict[str, Any] = {}
    for reference in references:
        fastavro.parse_schema(reference, named_schemas=named)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas=named), value)
    return out.getvalue()


varint = partial(encoded, "long")


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def logical(kind: str, logical_type: str, **rest: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **rest}


NOON = datetime(2026, 11, 22, 12, 0, 0, 123000, tzinfo=UTC)
FIXED = {"type": "fixed", "name": "F", "size": 2}
VALUES: list[tuple[Any, Any, Any]] = [
    ("null", None, None),
    ("boolean", True, True),
    ("int", -5, -5),
    ("long", 2**62 + 1, 2**62 + 1),
    ("double", 0.1, 0.1),
    ("double", float("nan"), "NaN"),
    ("float", float("inf"), "Infinity"),
    ("double", float("-inf"), "-Infinity"),
    ("string", "ä\u2028", "ä\u2028"),
    ("bytes", b"\xff\0", "/wA="),
    (FIXED, b"ab", "YWI="),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ({"type": "array", "items": "bytes"}, [b"a"], ["YQ=="]),
    ({"type": "map", "values": "double"}, {"a": 1.5}, {"a": 1.5}),
    (["null", "string"], "x", "x"),
    (NODE, {"next": {"next": None}}, {"next": {"next": None}}),
    (record(a=["null", "long"], b={"type": "array", "items": "string"}), {"a": None, "b": []}, {"a": None, "b": []}),
    (logical("bytes", "decimal", precision=9, scale=2), Decimal("-0.05"), "-0.05"),
    (logical("bytes", "decimal", precision=9), Decimal(12), "12"),
    (logical("fixed", "decimal", name="D", size=8, precision=9, scale=2), Decimal("12.50"), "12.50"),
    (logical("long", "timestamp-millis"), NOON, "2026-11-22T12:00:00.123Z"),
    (logical("long", "timestamp-micros"), NOON, "2026-11-22T12:00:00.123000Z"),
    (logical("long", "timestamp-nanos"), -1, "1969-12-31T23:59:59.999999999Z"),
    (logical("long", "local-timestamp-millis"), NOON.replace(tzinfo=None), "2026-11-22T12:00:00.123"),
    (logical("long", "timestamp-millis"), 2**62, 2**62),
    (logical("int", "date"), date(1969, 12, 31), "1969-12-31"),
    (logical("int", "time-millis"), time(5, 42, 55, 7000), "05:42:55.007"),
    (logical("long", "time-micros"), time(5, 42, 55, 7), "05:42:55.000007"),
    (logical("int", "time-millis"), -1, -1),
    (logical("string", "uuid"), uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (logical("fixed", "duration", name="P", size=12), struct.pack("<3I", 1, 2, 3004), "P1M2DT3.004S"),
    (logical("string", "of-our-own"), "x", "x"),
    (logical("long", "of-our-own"), 5, 5),
]
