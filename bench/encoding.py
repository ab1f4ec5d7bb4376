"""The CPU time to encode one record as an event: with filters, and with the values of a schema registry.

The encoder runs in this process, without a server, a broker or a registry. The baseline is JSON that is neither filtered nor
decoded.
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from bench.figures import Figures, Row
from bench.records import MARK, value
from bench.servers import KAFKASSE
from bench.testbed import RECORD_BYTES, Testbed
from kafkasse.log import Batch, Partition
from kafkasse.log.memory import MemoryRecord
from kafkasse.records.encoder import Encoder
from kafkasse.records.filter import Dimension, Dimensions, Filter, compile_expression
from kafkasse.records.position import IdWriter
from kafkasse.records.registry.avro import AvroSchema
from kafkasse.records.registry.client import RegisteredSchema
from kafkasse.records.registry.json_schema import JsonSchema
from kafkasse.records.registry.protobuf import ProtobufSchema

BATCH_RECORDS = 500
SECONDS = 0.5
PARTITION = Partition("t", 0)
EXPRESSION = "value.member_3 > 5 && value.mark != 'x' && headers.type == 'paid'"
FILTERS = {
    "key": Filter.of(["k1"]),
    "header": Filter.of(headers={"type": ["paid"]}),
    "field": Filter.of(fields={"mark": [MARK.decode()]}),
    "expression": Filter.of(expressions=[compile_expression(EXPRESSION)]),
}


def measure(testbed: Testbed) -> Figures:
    """Measure each filter with records that match it, and each kind of value."""
    seconds, plain = testbed.scale.seconds(SECONDS), value(RECORD_BYTES)
    variants = [
        ("plain", "no filter", Encoder(), plain),
        *((f"filter.{name}", f"{name} filter", Encoder(filter=filter_), plain) for name, filter_ in FILTERS.items()),
        ("filter.dispatch", "keyed dispatch", Encoder(dimensions=Dimensions((Dimension("key"),))), plain),
        *_decoding(json.loads(plain)),
    ]
    return [
        Row(f"encoding.{name}", KAFKASSE, f"encode a record: {what}", _cost_us(encoder, data, seconds), "µs")
        for name, what, encoder, data in variants
    ]


def _cost_us(encoder: Encoder, data: bytes, seconds: float) -> float:
    """Return the CPU time for one record, in microseconds."""
    headers = [("type", b"paid")]
    records = [MemoryRecord(number, 1_790_000_000_000, b"k1", data, headers) for number in range(BATCH_RECORDS)]
    batch = Batch(PARTITION, records, BATCH_RECORDS)
    encoded, began = 0, time.process_time()
    while (took := time.process_time() - began) < seconds:
        ids, end = IdWriter({PARTITION: 0}, {"t": "kQ3d8y1Z"}), 0
        while end < BATCH_RECORDS:
            end = encoder.encode_piece(batch, end, ids).end
        encoded += BATCH_RECORDS
    return took / encoded * 1e6


def _decoding(members: dict[str, Any]) -> Iterator[tuple[str, str, Encoder, bytes]]:
    """Yield a name, a text, an encoder with a decoder, and the data, for each kind of value."""

    def decoded(kind: str, data: bytes, decode: Callable[[bytes], Any]) -> tuple[str, str, Encoder, bytes]:
        encoder = Encoder(decoder=lambda view: decode(view.record.value))
        return f"decode.{kind.lower().replace(' ', '_')}", kind, encoder, data

    text = json.dumps(members).encode()
    json_schema = JsonSchema(RegisteredSchema("JSON", json.dumps(_json_schema(members)), ()), {})
    avro_schema, avro = _avro_schema(members), io.BytesIO()
    fastavro.schemaless_writer(avro, avro_schema, members)
    file, pool = _proto_file(members), DescriptorPool()
    pool.Add(file)
    message = GetMessageClass(pool.FindMessageTypeByName("Value"))(**members)
    descriptor = base64.b64encode(file.SerializeToString()).decode()
    protobuf = ProtobufSchema(RegisteredSchema("PROTOBUF", descriptor, ()), {})
    yield decoded("Avro", avro.getvalue(), AvroSchema(RegisteredSchema("AVRO", json.dumps(avro_schema), ()), {}).decode)
    yield decoded("Protobuf", b"\0" + message.SerializeToString(), protobuf.decode)
    yield decoded("JSON Schema", text, json_schema.decode)
    yield decoded("JSON Schema validated", text, lambda data: json_schema.decode(data, validate=True))


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
