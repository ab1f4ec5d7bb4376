"""Lookups: the cache, retries, references, and what happens if the registry fails."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable
from typing import Any

import gevent
import pytest
import requests
import responses
from gevent.server import StreamServer

from kafkasse.errors import RegistryUnavailable
from kafkasse.log import Batch, Partition
from kafkasse.log.memory import MemoryRecord
from kafkasse.records.encoder import Encoder
from kafkasse.records.frame import DecoderPending, DeserializationError
from kafkasse.records.position import IdType, IdWriter
from kafkasse.records.registry import client, lookup
from kafkasse.records.registry.client import RegistryClient
from kafkasse.records.registry.decoder import Decoder
from kafkasse.records.registry.lookup import SchemaRegistry
from kafkasse.settings import SchemaRegistrySettings
from tests.support.registry import framed, proto_file
from tests.support.waiting import TIMEOUT_S

URL = "http://registry.example/api"
Lines = Callable[[], list[str]]
FOUND = {"schema": '"long"'}
UNKNOWN = {"error_code": 40403, "message": "Schema 1 not found"}


def registry_at(url: str = URL, max_wait_s: float = 1, **settings: Any) -> SchemaRegistry:
    return SchemaRegistry(
        RegistryClient(SchemaRegistrySettings(url=url, **settings)), max_wait_s, logging.getLogger("registry")
    )


@pytest.fixture
def mocked() -> Any:
    """The answers to requests, without a network."""
    with responses.RequestsMock(assert_all_requests_are_fired=False) as mocked:
        yield mocked


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow quickly, and a call waits for the result even on a busy machine."""
    monkeypatch.setattr(lookup, "FIRST_REGISTRY_BACKOFF_S", 0.01)
    monkeypatch.setattr(lookup, "MAX_WAIT_S", TIMEOUT_S)


# Schemas that the registry has.


def test_a_schema_is_requested_once(server, registry):
    """Decoders that need the same schema at the same time share a request, and later ones use the cache."""
    schema_id = server.register("t-value", "long")
    waiting = [gevent.spawn(registry.schema, schema_id) for _ in range(10)]
    gevent.joinall(waiting)

    assert {id(registry.schema(schema_id))} == {id(lookup.get()) for lookup in waiting}
    assert [f"/schemas/ids/{schema_id}"] == server.requests


def test_the_cache_has_a_maximum_size(server, registry, monkeypatch):
    """The schema that was not used for the longest time is evicted."""
    monkeypatch.setattr(lookup, "MAX_SCHEMAS", 2)
    first, second, third = (server.register(f"{name}-value", "long") for name in "abc")
    for schema_id in (first, second, first, third, first, second):
        registry.schema(schema_id)

    assert [f"/schemas/ids/{schema_id}" for schema_id in (first, second, third, second)] == server.requests


def test_a_schema_with_a_guid(server, registry):
    guid = server.guid(server.register("t-value", "long"))

    assert 1 == registry.schema(str(guid)).decode(b"\2")
    assert [f"/schemas/guids/{guid}"] == server.requests


def test_references_of_references(server, registry):
    """References are resolved, also to a subject whose name needs quoting and to one that is referred to twice."""
    cents = {"type": "fixed", "name": "shop.Cents", "size": 1}
    money = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "shop.Cents"}]}
    order = {
        "type": "record",
        "name": "shop.Order",
        "fields": [{"name": "sum", "type": "shop.Money"}, {"name": "tax", "type": "shop.Cents"}],
    }
    server.register("a/b c", cents)
    server.register("money", money, references=[("shop.Cents", "a/b c", 1)])
    references = [("shop.Money", "money", 1), ("shop.Cents", "a/b c", 1)]
    schema_id = server.register("t-value", order, references=references)

    assert {"sum": {"cents": "YQ=="}, "tax": "Yg=="} == registry.schema(schema_id).decode(b"ab")
    assert "/subjects/a%2Fb%20c/versions/1?deleted=true" in server.requests


def test_references_that_form_a_circle(server, registry):
    """They make the schema invalid. The lookup does not loop forever."""
    for name, other in ("ab", "ba"):
        schema = {"type": "record", "name": name, "fields": [{"name": "x", "type": other}]}
        server.register(name, schema, references=[(other, other, 1)])

    with pytest.raises(DeserializationError, match="the schema 1 cannot be used"):
        registry.schema(1)


def test_a_protobuf_schema_is_requested_as_a_descriptor(server, registry):
    """The text of a .proto file would need a compiler. Imports are requested in the same format."""
    server.register("money", proto_file("money.proto"), "PROTOBUF")
    file = proto_file("t.proto", imports=["money.proto"])
    file.message_type.add(name="T")
    schema_id = server.register("t-value", file, "PROTOBUF", [("money.proto", "money", 1)])

    assert {} == registry.schema(schema_id).decode(b"\0")
    assert "/subjects/money/versions/1?deleted=true&format=serialized" == server.requests[-1]


def test_the_login_is_sent(server, tmp_path, caplog):
    """The password comes from a file, and may contain any characters. A changed file is used at once. No log has it."""
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "password"
    server.login = "kafkasse", "päss:wörd"
    file.write_text("päss:wörd\n")
    registry = registry_at(server.url, username="kafkasse", password_file=str(file))

    assert 1 == registry.schema(server.register("t-value", "long")).decode(b"\2")

    server.login = "kafkasse", "new"
    file.write_text("new")
    assert 1 == registry.schema(server.register("t-value", "long")).decode(b"\2")
    assert "wörd" not in caplog.text


# Failures.


def test_an_unknown_id_is_an_error_of_the_record(server, registry):
    """The request is repeated, because a replica may not know a new schema yet. Then the answer is cached."""
    for _ in range(3):
        with pytest.raises(DeserializationError, match="the schema registry has no schema with the ID 5") as caught:
            registry.schema(5)

    assert "unknown_schema" == caught.value.kind
    assert ["/schemas/ids/5"] * lookup.UNKNOWN_ATTEMPTS == server.requests


@pytest.mark.parametrize("schema_id", [2**32 - 1, "89791762-2336-4186-9674-299b90a802e2"])
def test_an_id_that_the_registry_cannot_have_is_an_error_of_the_record(server, registry, schema_id):
    """A registry responds with its 404 for unknown paths. One such record would otherwise end its stream each time."""
    server.has_guids = False
    with pytest.raises(DeserializationError, match=f"the schema registry has no schema with the ID {schema_id}"):
        registry.schema(schema_id)


@pytest.mark.parametrize("schema_id", [1, "89791762-2336-4186-9674-299b90a802e2"])
def test_a_wrong_path_of_the_registry_is_not_an_error_of_the_record(server, schema_id):
    """The records would otherwise be skipped."""
    with pytest.raises(RegistryUnavailable):
        registry_at(f"{server.url}/wrong").schema(schema_id)


def test_many_unknown_ids_are_looked_up_several_at_a_time(server, registry, monkeypatch):
    """They delay the next record as little as possible. The records of a piece are known in advance."""
    monkeypatch.setattr(lookup, "MAX_UNKNOWN_WAIT_S", float("inf"))
    active: list[int] = []
    most = 0

    def fail() -> None:
        nonlocal most
        active.append(1)
        most = max(most, len(active))
        gevent.sleep(0.01)
        active.pop()

    server.failure = fail
    encoder = Encoder(decoder=Decoder(registry, validate=False))
    partition = Partition("t", 0)
    batch = Batch(partition, [MemoryRecord(n, 0, None, framed(n + 5, b"")) for n in range(100)], 100)
    ids = IdWriter({partition: 0}, {"t": ""}, id_type=IdType.OFFSET, compact=False)

    end = 0
    while end < 100:
        end = encoder.encode_piece(batch, end, ids).end

    assert lookup.MAX_REQUESTS == most
    assert lookup.UNKNOWN_ATTEMPTS + 99 == len(server.requests)


def test_an_unknown_id_is_looked_up_again_later(server, registry, monkeypatch):
    """The answer is cached for UNKNOWN_FOR_S seconds."""
    monkeypatch.setattr(lookup, "UNKNOWN_FOR_S", 0.0)
    with pytest.raises(DeserializationError):
        registry.schema(1)
    server.register("t-value", "long")

    assert 1 == registry.schema(1).decode(b"\2")


INVALID = ['{"type":"record"}', "{", '"of-our-own"', "[" * 100_000, '{"type":"array","items":"null"}', "5"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [({"schema": schema}, "the schema 1 cannot be used: ") for schema in INVALID]
    + [({**FOUND, "schemaType": "XML"}, "schemas of the type XML are not supported")],
)
def test_an_invalid_schema_is_an_error_of_the_record(mocked, answer, reason):
    """A record with another schema can still be decoded."""
    mocked.get(f"{URL}/schemas/ids/1", json=answer)
    mocked.get(f"{URL}/schemas/ids/2", json=FOUND)
    registry = registry_at()

    with pytest.raises(DeserializationError, match=reason):
        registry.schema(1)
    assert 1 == registry.schema(2).decode(b"\2")


TEMPORARY = [
    {"status": 500},
    {"status": 503, "json": UNKNOWN},
    {"status": 429},
    {"body": requests.ConnectionError("refused")},
    {"body": requests.ReadTimeout("slow")},
    {"body": requests.exceptions.ChunkedEncodingError("broken")},
]


@pytest.mark.parametrize("failure", TEMPORARY)
def test_a_temporary_failure_is_retried(mocked, failure, lines):
    """The log has one line, whatever the number of attempts."""
    for _ in range(3):
        mocked.get(f"{URL}/schemas/ids/1", **failure)
    mocked.get(f"{URL}/schemas/ids/1", json=FOUND)

    assert 1 == registry_at().schema(1).decode(b"\2")
    assert 4 == len(mocked.calls)
    (line,) = lines()
    assert line.startswith(f"The schema registry {URL} is not available; streams wait for it: ")


def test_a_registry_that_stays_down(mocked, monkeypatch):
    """Decoders wait for max_wait_s, in calls that are short enough for heartbeats. Then the streams end with status 503."""
    mocked.get(f"{URL}/schemas/ids/1", status=500)
    registry = registry_at(max_wait_s=0.5)

    monkeypatch.setattr(lookup, "MAX_WAIT_S", 0.05)
    with pytest.raises(DecoderPending):
        registry.schema(1)
    monkeypatch.setattr(lookup, "MAX_WAIT_S", TIMEOUT_S)
    with pytest.raises(RegistryUnavailable) as caught:
        registry.schema(1)

    assert 503 == caught.value.status
    assert "registry.example" not in str(caught.value.problem())


MISCONFIGURED: list[tuple[dict[str, Any], str]] = [
    ({"status": 401, "json": {"error_code": 401}}, "status 401. Check its username and password_file"),
    ({"status": 403}, "status 403. Check its username and password_file"),
    ({"status": 404, "body": "<html>"}, "status 404, and not as a schema registry. Check its url"),
    ({"status": 404, "json": {"error_code": 404}}, "status 404, and not as a schema registry"),
    ({"status": 302, "headers": {"Location": "http://other.example/"}}, "status 302, and not as a schema registry"),
    ({"status": 200, "body": "<html>"}, "status 200, and not as a schema registry"),
    ({"status": 200, "json": {}}, "contains no schema"),
    ({"status": 200, "json": {**FOUND, "references": [{}]}}, "contains no schema"),
    ({"status": 200, "body": "x" * (client.MAX_RESPONSE_BYTES + 1)}, "the response has more than"),
    ({"body": requests.exceptions.SSLError("self-signed certificate")}, "TLS failed: self-signed certificate"),
]


@pytest.mark.parametrize(("answer", "reason"), MISCONFIGURED)
def test_a_wrong_configuration_ends_the_streams(mocked, tmp_path, answer, reason, lines):
    """No record is skipped, clients get no details, and the log says what to check. The request is not repeated."""
    mocked.get(f"{URL}/schemas/ids/1", **answer)
    (tmp_path / "password").write_text("canary")
    registry = registry_at(username="u", password_file=str(tmp_path / "password"))

    for _ in range(3):
        with pytest.raises(RegistryUnavailable) as caught:
            registry.schema(1)

    assert "The schema registry is not available. Retry after 5 s." == caught.value.detail
    (line,) = lines()
    assert reason in line
    assert "canary" not in line
    assert 1 == len(mocked.calls)


def test_a_missing_password_file(mocked, caplog):
    with pytest.raises(RegistryUnavailable):
        registry_at(username="u", password_file="/does/not/exist").schema(1)  # noqa: S106 - a path

    assert "/does/not/exist" in caplog.text


def test_a_registry_that_sends_slowly(server, caplog):

    def drip(connection: Any, address: Any) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while True:
            connection.sendall(b" ")
            gevent.sleep(0.02)

    dripping = StreamServer(("127.0.0.1", 0), drip)
    dripping.start()
    with pytest.raises(RegistryUnavailable):
        registry_at(f"http://127.0.0.1:{dripping.server_port}", max_wait_s=0, timeout_s=0.2).schema(1)
    dripping.stop()

    assert "no response within 0.2 s" in caplog.text


def test_an_unexpected_error_ends_the_streams(server, registry, monkeypatch, caplog):
    """A defect in a lookup does not leave the decoders waiting forever."""
    monkeypatch.setattr(RegistryClient, "schema", lambda *_: 1 / 0)

    with pytest.raises(RegistryUnavailable):
        registry.schema(1)

    assert "The lookup of the schema 1 failed unexpectedly." in caplog.messages


def test_an_error_that_is_remembered_keeps_no_records_in_memory(registry):
    """A traceback refers to the batch of its record, and a thousand errors are remembered."""

    class Records(list[bytes]):
        pass

    def look_up() -> weakref.ref[Records]:
        batch = Records()
        with pytest.raises(DeserializationError):
            registry.schema(5)
        return weakref.ref(batch)

    batches = [look_up(), look_up()]
    gc.collect()

    assert [None, None] == [batch() for batch in batches]
