"""Streams with a decoder: what clients receive, and what happens while the registry fails."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

import kafkasse.records.registry
from kafkasse.config import Config
from kafkasse.errors import ConfigurationError
from kafkasse.log.memory import MemoryLog
from kafkasse.records.registry import lookup
from kafkasse.web.blueprint import streams_blueprint
from kafkasse_client.sse import Event
from tests.registry.avro_values import encoded
from tests.support.metric_values import value_of
from tests.support.registry import Registry, framed
from tests.support.sse import read_events, read_until, without_positions
from tests.web import clients

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "amount", "type": "double"}, {"name": "raw", "type": "bytes"}],
}
HEARTBEAT_S = 0.05  # of client_of()


def avro(schema_id: int, amount: float) -> bytes:
    return framed(schema_id, encoded(ORDER, {"amount": amount, "raw": b"\xff"}))


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    log.create("t")
    return log


def client_of(log: MemoryLog, server: Registry, **settings: Any) -> FlaskClient:
    registry = {"url": server.url, "max_wait_s": 1, **settings.pop("registry", {})}
    return clients.client_of(log, None, **{"decoder": "registry", "schema_registry": registry, **settings})


def body_of(client: FlaskClient, path: str = "/t?timestamp=0", until: bytes = b"\n\n\n", **headers: str) -> bytes:
    """Return the body of a stream up to and including `until`, or to its end."""
    with client.get(path, headers=headers, buffered=False) as response:
        assert 200 == response.status_code
        return read_until(response.response, until)


def events_of(client: FlaskClient, path: str = "/t?timestamp=0", until: str = '"end"') -> list[Event]:
    return without_positions(read_events(body_of(client, path, until.encode())))


def skipped(client: FlaskClient, reason: str) -> int:
    service = client.application.extensions["kafkasse"]["kafkasse"]
    return int(value_of(service.observer.metrics, "records_skipped", topic="t", reason=reason))


def test_cloudevents_in_binary_mode(server, log):
    """The data of a CloudEvent is the decoded value, and its content type is JSON."""
    headers = [("ce_type", b"order.created"), ("ce_id", b"5"), ("content-type", b"application/avro")]
    log.append("t", avro(server.register("t-value", ORDER), 1.5), headers=headers)
    routes = {"orders": {"path": "/orders", "topics": ["t"], "format": "cloudevents", "start": "earliest"}}

    (event,) = events_of(client_of(log, server, routes=routes), "/orders", "amount")

    envelope = json.loads(event.data)
    assert {"amount": 1.5, "raw": "/w=="} == envelope["data"]
    assert ("application/json", "order.created", "5") == (envelope["datacontenttype"], envelope["type"], envelope["id"])


def test_filters_and_projections_read_the_decoded_value(server, log):
    schema_id = server.register("t-value", ORDER)
    for amount in (1.0, 2.0):
        log.append("t", avro(schema_id, amount))
    where = {"path": "/o", "topics": ["t"], "start": "earliest", "where": {"fields": {"amount": 2.0}}}
    routes = {"o": {**where, "fields": ["amount"], "format": "value"}}

    (event,) = events_of(client_of(log, server, routes=routes), "/o", "amount")

    assert '{"amount":2.0}' == event.data


def test_only_the_routes_that_say_so_decode(server, log):
    log.append("t", b'"end"')
    routes = {"r": {"path": "/r", "topics": ["t"], "decoder": "registry"}}
    client = client_of(log, server, decoder="json", routes=routes)

    assert ['"end"'] == [event.data for event in events_of(client)]
    assert [] == server.requests


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{}", "no_schema_id"),
        (framed(99, b"\0"), "unknown_schema"),
        (framed(1, b""), "undecodable"),
        (framed(2, b"5"), "invalid"),
    ],
)
def test_records_that_cannot_be_decoded_are_counted(server, log, value, reason):
    """They are skipped, and the label of the counter is the reason. The following records are sent."""
    server.register("order", ORDER)
    text = server.register("text", {"type": "string"}, "JSON")
    log.append("t", value)
    log.append("t", framed(text, b'"end"'))
    client = client_of(log, server, validate_values=True)

    assert ['"end"'] == [event.data for event in events_of(client)]
    assert 1 == skipped(client, reason)


def fail(server: Registry, times: int) -> None:
    """Let this many requests to the registry fail."""
    answers = iter([(500, None)] * times)
    server.failure = lambda: next(answers, None)


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits for a schema ends long before the next request."""
    monkeypatch.setattr(lookup, "MAX_WAIT_S", HEARTBEAT_S)
    monkeypatch.setattr(lookup, "FIRST_REGISTRY_BACKOFF_S", 4 * HEARTBEAT_S)


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("path", ["/t?timestamp=0", "/table"], ids=["stream", "snapshot"])
def test_a_new_stream_waits_for_the_registry(server, log, path):
    """The client receives heartbeats, and then the records. A snapshot is complete."""
    schema_id = server.register("text", {"type": "string"}, "JSON")
    log.append("t", framed(schema_id, b'"a"'), key=b"a")
    log.append("t", framed(schema_id, b'"end"'), key=b"b")
    fail(server, 3)
    routes = {"table": {"path": "/table", "topics": ["t"], "start": "snapshot", "format": "value"}}

    body = body_of(client_of(log, server, registry={"max_wait_s": 60}, routes=routes), path, until=b'"end"')

    assert body.count(b"\n:") >= 1
    events = without_positions(read_events(body))
    assert ['"a"', '"end"'] == [event.data for event in events if event.type == "message"]


@pytest.mark.usefixtures("short_waits")
def test_a_live_stream_waits_for_the_registry(server, log):
    """A record with a new schema waits in the shared feed. Records before it are sent at once, and those of other topics."""
    known = server.register("text", {"type": "string"}, "JSON")
    log.append("t", framed(known, b'"a"'))
    log.create("other")
    log.append("other", framed(known, b'"a"'))
    client = client_of(log, server, registry={"max_wait_s": 60})
    with (
        client.get("/t?timestamp=0", buffered=False) as response,
        client.get("/other?timestamp=0", buffered=False) as other,
    ):
        body = read_until(response.response, b'"a"') + read_until(response.response, b"\n:")
        read_until(other.response, b'"a"')
        fail(server, 3)
        new = server.register("number", {"type": "string", "maxLength": 9}, "JSON")
        log.append("t", framed(known, b'"b"'))
        log.append("t", framed(new, b'"end"'))
        body += read_until(response.response, b'"b"')
        log.append("other", framed(known, b'"b"'))
        read_until(other.response, b'"b"')
        requests = len(server.requests)
        body += read_until(response.response, b'"end"')

    assert ['"a"', '"b"', '"end"'] == [event.data for event in without_positions(read_events(body))]
    assert requests < len(server.requests)


def test_a_stream_ends_with_503_if_the_registry_stays_down(server, log, monkeypatch):
    """A client that resumes at its last ID receives the record later. No record is lost, and none is counted as skipped."""
    schema_id = server.register("text", {"type": "string"}, "JSON")
    for value in (b'"a"', b'"end"'):
        log.append("t", framed(schema_id, value))
    server.failure = lambda: (500, None)
    monkeypatch.setattr(lookup, "UNAVAILABLE_FOR_S", 0.0)
    client = client_of(log, server)

    *_, error = read_events(body_of(client))
    server.failure = lambda: None
    resumed = body_of(client, "/t", until=b'"end"', **{"Last-Event-ID": error.id})

    assert ("error", 503) == (error.type, json.loads(error.data)["status"])
    assert ['"a"', '"end"'] == [event.data for event in without_positions(read_events(resumed))]


@pytest.mark.parametrize("package", ["requests", "fastavro", "google.protobuf"])
def test_a_missing_package_is_a_configuration_error(server, log, package, monkeypatch):
    """The app does not start, and the error names the extra. Without a decoder, the packages are not needed."""
    for name in list(sys.modules):
        if name.startswith("kafkasse.records.registry."):
            monkeypatch.delitem(sys.modules, name)
            monkeypatch.delattr(kafkasse.records.registry, name.rpartition(".")[2])
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ConfigurationError, match=rf'needs the package {package}.*pip install "kafkasse\[schemas\]"'):
        client_of(log, server)
    client_of(log, server, decoder="json")


def test_clusters_may_have_registries_of_their_own(server, log):
    """The same schema ID means another schema in another cluster. The documents contain the schemas of `schema_registry`."""
    with closing(Registry()) as other:
        for registry, schema in ((server, {"type": "string"}), (other, {"type": "integer"})):
            registry.register("t-value", schema, "JSON")
        log.append("t", framed(1, b"7"))
        log.append("t", framed(1, b'"end"'))
        log.append("t", framed(1, b"8"))
        route = {"topics": ["t"], "format": "value"}
        config = Config(
            public=True,
            decoder="registry",
            validate_values=True,
            clusters={"eu": {"bootstrap_servers": ["kafka.example:9092"]}},
            schema_registry={"url": server.url},
            schema_registries={"eu": {"url": other.url}},
            routes={"here": {**route, "path": "/here"}, "eu": {**route, "path": "/eu", "cluster": "eu"}},
        )
        app = Flask("host")
        app.register_blueprint(streams_blueprint(config, lambda cluster: log, "kafkasse", catalog=True, console=False))

        here, eu = (
            events_of(app.test_client(), f"/{name}?since=0", last)
            for name, last in (("here", 'data: "end'), ("eu", "data: 8"))
        )
        schemas = app.test_client().get("/-/openapi.json").get_json()["components"]["schemas"]

    assert (['"end"'], ["7", "8"]) == ([event.data for event in here], [event.data for event in eu])
    assert "string" == schemas["Value.t"]["type"]


SERVER_WITH_THREADS = """
import threading
from urllib.request import urlopen
from werkzeug.serving import make_server
from kafkasse.log.memory import MemoryLog
from tests.registry.test_streams import client_of
from tests.support.registry import Registry, framed

registry, log, requested, answer = Registry(), MemoryLog(), threading.Event(), threading.Event()
registry.failure = lambda: requested.set() or answer.wait() and None
log.create("t"), log.create("other")
log.append("t", framed(registry.register("text", {"type": "string"}, "JSON"), b'"a"'))
log.append("other", b'"b"')
routes = {"r": {"path": "/r", "topics": ["t"], "decoder": "registry"}}
app = client_of(log, registry, decoder="json", routes=routes).application
server = make_server("127.0.0.1", 0, app, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()

def get(path):
    return urlopen(f"http://127.0.0.1:{server.server_port}{path}?offset=-1").read()

def get_decoded():
    decoded.append(get("/r"))

decoded = []
thread = threading.Thread(target=get_decoded)
thread.start()
requested.wait()
assert b'["b"]' == get("/other")
answer.set()
thread.join()
assert [b'["a"]'] == decoded, decoded
"""


@pytest.mark.processes
def test_a_slow_registry_blocks_no_other_finite_read_under_a_server_with_threads():
    """The registry answers only after the other read. Without gevent, a request blocks its thread."""
    subprocess.run([sys.executable, "-c", SERVER_WITH_THREADS], check=True)
