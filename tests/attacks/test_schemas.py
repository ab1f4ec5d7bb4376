"""Hostile values in Avro, Protobuf and JSON Schema: the worker survives, and no turn of its event loop takes too long."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from tests.registry.avro_values import NODE, logical, varint
from tests.support.client import Client
from tests.support.registry import Registry, framed, proto_file

SIZE = 500_000
LONGS = {"type": "array", "items": "long"}
DECIMAL = logical("bytes", "decimal", precision=9, scale=2)
DRAFT7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
TREE = {"anyOf": [{"type": "string"}, {"items": {"anyOf": [{"$ref": "#"}, {"not": {"$ref": "#"}}]}}]}


def numbers() -> Any:
    file = proto_file("numbers.proto")
    field = file.message_type.add(name="Numbers").field
    field.add(name="n", number=1, type=FieldDescriptorProto.TYPE_INT64, label=FieldDescriptorProto.LABEL_REPEATED)
    return file


OBJECTS = [b'{"a":%d}' % number for number in range(50_000)]
CASES: dict[str, tuple[str, Any, bytes]] = {
    "Avro that is nested in itself": ("AVRO", NODE, b"\2" * SIZE),
    "an Avro number with many bytes": ("AVRO", NODE, b"\xff" * SIZE),
    "an Avro array of numbers": ("AVRO", LONGS, varint(SIZE) + b"\2" * SIZE + b"\0"),
    "an Avro array with 2**62 items": ("AVRO", LONGS, varint(2**62) + b"\2" * SIZE),
    "an Avro array of empty values": ("AVRO", {"type": "array", "items": "null"}, varint(2**62)),
    "a decimal with a million digits": ("AVRO", DECIMAL, varint(SIZE) + b"\x7f" * SIZE),
    "a Protobuf list of numbers": ("PROTOBUF", numbers(), b"\0\x0a\xa0\xc2\x1e" + b"\1" * SIZE),
    "objects that must be unique": ("JSON", {"uniqueItems": True}, b"[%b]" % b",".join(OBJECTS)),
    "alternatives in a recursive JSON Schema": ("JSON", TREE, b"[" * 100 + b"]" * 100),
    "the same with $schema": ("JSON", {**TREE, **DRAFT7}, b"[" * 100 + b"]" * 100),
}  # fmt: skip


def test_hostile_values(serve, cluster, fresh_name):
    """The record after the hostile ones is sent, and the worker is the same."""
    topic = cluster.create(fresh_name, max_message_bytes="2000000")
    with closing(Registry()) as registry:
        for name, (kind, schema, data) in CASES.items():
            cluster.send(topic, framed(registry.register(name, schema, kind), data))
        cluster.send(topic, framed(registry.register("end", {"type": "object"}, "JSON"), b'{"end":true}'))
        server = serve(decoder="registry", validate_values=True, schema_registry={"url": registry.url})
        worker = server.workers()

        with Client(server.port, f"/{topic}?timestamp=0") as client:
            client.read_until_text(b'{"end":true')

    assert worker == server.workers()
