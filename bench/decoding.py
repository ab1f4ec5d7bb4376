"""The CPU time that decoding takes: records of 1 KiB with the same members in Avro, Protobuf and JSON.

The encoder runs in this process, without a server, a broker or a registry: the schemas are known, as they are for nearly all
records of a server.
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable
from typing import Any

import fastavro
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from bench.figures import Figures, Row
from bench.records import value
from bench.testbed import RECORD_BYTES, Testbed
from kafkasse.log import Batch, Partition
from kafkasse.log.memory import MemoryRecord
from kafkasse.records.encoder import Encoder
from kafkasse.records.position import IdWriter
from kafkasse.records.registry.avro import AvroSchema
from kafkasse.records.registry.client import RegisteredSchema
from kafkasse.records.registry.json_schema import JsonSchema
from kafkasse.records.registry.protobuf import ProtobufSchema

RECORDS = 5_000
SMALL_BYTES = 120
LIMIT = "the formats add _kafka to the decoded JSON, for which they decode it again"


def measure(testbed: Testbed) -> Figures:
    """Measure each kind of value. The baseline is JSON that is sent without decoding."""
    rows = []
    for size, name in ((SMALL_BYTES, "100 bytes"), (RECORD_BYTES, "1 KiB")):
        members = json.loads(value(size))
        plain = _cpu_us(json.dumps(members, separators=(",", ":")).encode(), None)
        rows.append(Row(f"decoding.{size}.plain", f"{name}: JSON, not decoded", plain, "µs of CPU per record"))
        for kind, (data, decode) in _kinds(members).items():
            cpu_us = _cpu_us(data, decode)
            key = f"decoding.{size}.{kind.lower().replace(' ', '_')}"
            row = Row(key, f"{name}: {kind}", cpu_us, "µs of CPU per record", plain, "JSON, not decoded", limit=LIMIT)
            rows.append(row)
    return Figures(rows)


def _kinds(members: dict[str, Any]) -> dict[str, tuple[bytes, Callable[[bytes], Any]]]:
    """Return the data and the decoder of each kind of value."""
    text = json.dumps(members).encode()
    json_schema = JsonSchema(RegisteredSchema("JSON", json.dumps(_json_schema(members)), ()), {})
    avro_schema = _avro_schema(members)
    avro = io.BytesIO()
    fastavro.schemaless_writer(avro, avro_schema, members)
    file = _proto_file(members)
    pool = DescriptorPool()
    pool.Add(file)
    message = GetMessageClass(pool.FindMessageTypeByName("Value"))(**members)
    descriptor = base64.b64encode(file.SerializeToString()).decode()
    return {
        "Avro": (avro.getvalue(), AvroSchema(RegisteredSchema("AVRO", json.dumps(avro_schema), ()), {}).decode),
        "Protobuf": (
            b"\0" + message.SerializeToString(),
            ProtobufSchema(RegisteredSchema("PROTOBUF", descriptor, ()), {}).decode,
        ),
        "JSON Schema": (text, json_schema.decode),
        "JSON Schema, validated": (text, lambda data: json_schema.decode(data, validate=True)),
    }


def _json_schema(members: dict[str, Any]) -> dict[str, Any]:
    types = {str: {"type": "string"}, int: {"type": "integer"}}
    properties = {name: types[type(member)] for name, member in members.items()}
    return {"type": "object", "properties": properties, "required": list(members)}


def _avro_schema(members: dict[str, Any]) -> dict[str, Any]:
    types = {str: "string", int: "long"}
    fields = [{"name": name, "type": types[type(member)]} for name, member in members.items()]
    return {"type": "record", "name": "Value", "fields": fields}


def _proto_file(members: dict[str, Any]) -> FileDescriptorProto:
    types = {str: FieldDescriptorProto.TYPE_STRING, int: FieldDescriptorProto.TYPE_INT64}
    file = FileDescriptorProto(name="value.proto", syntax="proto3")
    message = file.message_type.add(name="Value")
    for number, (name, member) in enumerate(members.items(), start=1):
        label = FieldDescriptorProto.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=types[type(member)], label=label)
    return file


def _cpu_us(data: bytes, decode: Callable[[bytes], Any] | None) -> float:
    """Return the CPU time to encode a record as an event, in microseconds."""
    encoder = Encoder(decoder=None if decode is None else lambda view: decode(view.record.value))
    partition = Partition("t", 0)
    ids = IdWriter({partition: 0}, {"t": "kQ3d8y1Z"})
    records = [MemoryRecord(offset, 1_790_000_000_000, b"key", data) for offset in range(RECORDS)]
    batch = Batch(partition, records, RECORDS)
    began = time.process_time()
    end = 0
    while end < RECORDS:
        end = encoder.encode_piece(batch, end, ids).end
    return (time.process_time() - began) / RECORDS * 1e6
