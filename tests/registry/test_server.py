"""A real server, a real broker and a real registry: clients receive records in Avro, Protobuf and JSON Schema."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
import yaml
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tests.support.client import Client
from tests.support.kafka import Cluster
from tests.support.registry import Registry, framed, proto_file
from tests.support.server import Server

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "note", "type": ["null", "string"]},
    ],
}


@pytest.fixture
def config(tmp_path: Path, server: Registry, cluster: Cluster) -> Path:
    """The file of a server that logs in at the registry."""
    server.login = "kafkasse", "secret"
    (tmp_path / "password").write_text("secret")
    settings = {
        "kafka": {"bootstrap_servers": cluster.bootstrap_servers},
        "allowed_topics": ["*"],
        "decoder": "registry",
        "schema_registry": {
            "url": server.url,
            "username": "kafkasse",
            "password_file": str(tmp_path / "password"),
            "max_wait_s": 60,
        },
    }
    (tmp_path / "kafkasse.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path / "kafkasse.yaml"


def avro(schema_id: int, **order: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, ORDER, order)
    return framed(schema_id, out.getvalue())


def test_clients_receive_json(config, server, cluster, fresh_name):
    """Producers of three kinds write to one topic, with the schema ID in the value or as a GUID in a header."""
    topic = cluster.create(fresh_name)
    file = proto_file("order.proto", "shop")
    field = FieldDescriptorProto
    message = file.message_type.add(name="Order")
    message.field.add(name="order_id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    pool = DescriptorPool()
    pool.Add(file)
    order = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(order_id=2)
    orders = server.register(f"{topic}-value", ORDER)
    with Server(KAFKASSE_CONFIG=str(config)) as running, Client(running.port, f"/{topic}") as client:
        client.ready()
        cluster.send(topic, avro(orders, id=1, sum=Decimal("12.50"), note="ä"))
        cluster.send(topic, framed(server.register("order", file, "PROTOBUF"), b"\0" + order.SerializeToString()))
        guid = server.guid(server.register("text", {"type": "object"}, "JSON"))
        cluster.send(topic, b'{"id":3}', headers=[("__value_schema_id", b"\1" + guid.bytes)])

        values = [json.loads(event.data) for event in client.events(3)]

    for value in values:
        del value["_kafka"]
    assert [{"id": 1, "sum": "12.50", "note": "ä"}, {"orderId": "2"}, {"id": 3}] == values
    assert "secret" not in running.log
