"""The OpenAPI and AsyncAPI documents are valid, and real streams match the schemas in them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from jsonschema import Draft7Validator, Draft202012Validator
from werkzeug.test import TestResponse

from kafkasse.log.memory import MemoryLog
from kafkasse.records.frame import FORMATS
from kafkasse.web import finite_reads, value_schemas
from tests.support.registry import Registry as FakeRegistry
from tests.support.server import ROOT
from tests.support.sse import read_events, read_until
from tests.web.clients import client_of

ASYNCAPI = json.loads((Path(__file__).parent / "asyncapi-3.0.0.schema.json").read_text())
VALUES = (b'{"a": 1}', b'{"_kafka": 1}', b"[1]", b'"text"', b"text", b"\xff", b"a\rb", None)
GUARDS: dict[str, Any] = {"partners": None, "public": lambda request: None}
KEYS = (b"key", b"\xff", None)
PATHS = [*(f"/{name}" for name in FORMATS), "/table", "/{topics}"]
OLD_OFFSET = "a1.dCBpIDow"  # of the first record of the topic t, which was removed


@pytest.fixture
def log() -> MemoryLog:
    """A topic with every kind of value and key, of which the first records were removed."""
    log = MemoryLog()
    log.create("t")
    for _ in range(3):
        log.append("t", b"1")
    for value in VALUES:
        for key in KEYS:
            log.append("t", value, key=key, headers=[("type", b"created"), ("binary", b"\xff"), ("none", None)])
    log.append("t", b'"last"', key=b"last")
    log.drop_before("t", 2)
    return log


@pytest.fixture
def client(log: MemoryLog, tmp_path: Path) -> FlaskClient:
    """A client of an app with a route for each format, and with a blueprint at a prefix."""
    routes: dict[str, Any] = {"check_table": {"path": "/check", "topics": ["t"]}}
    for name in FORMATS:
        described = {"format": name, "description": f"All in {name}."}
        routes[name] = {"path": f"/{name}", "topics": ["t"], "start": "earliest", **described}
    routes["table"] = {"path": "/table", "topics": ["t"], "start": "snapshot"}
    routes["plain"] = routes["table"] | {"path": "/plain", "position_events": False}
    routes["mine"] = {
        "path": "/mine/{customer}",
        "topics": ["t", "t.*"],
        "start": "-15m",
        "where": {"key": "{customer}"},
    }
    routes["mine"] |= {"access": [*GUARDS], "listed": True, "fields": ["a", "b.c"]}
    routes["mine"] |= {"client_filters": ["key", "header.type", "field.*", "filter"]}
    (tmp_path / "keys").write_text("")
    guards = GUARDS | {"partners": {"api_keys": {"file": str(tmp_path / "keys")}, "cookie": "__Host-key"}}
    topics = {"allowed_topics": ["t", "events.*", "events_*"], "topic_groups": {"group": ["t", "events.a"]}}
    return client_of(log, routes=routes, catalog=True, guards=guards, tickets=True, **topics)


def document(client: FlaskClient, name: str) -> dict[str, Any]:
    return dict(client.get(f"/streams/-/{name}.json").get_json())


def test_the_openapi_document_is_valid(client):
    """The validator of the OpenAPI ecosystem accepts it as OpenAPI 3.2, and would notice a missing parameter."""
    openapi = document(client, "openapi")

    errors = list(openapi_errors(openapi))

    assert [] == errors
    assert "3.2.0" == openapi["openapi"]
    paths = {"/check", "/table", "/plain", "/mine/{customer}", "/{topics}", "/-/ticket"}
    assert paths | {f"/{name}" for name in FORMATS} == openapi["paths"].keys()
    assert [{"url": "/streams"}] == openapi["servers"]
    del openapi["paths"]["/{topics}"]["get"]["parameters"][0]
    assert any(openapi_errors(openapi))


def test_the_asyncapi_document_is_valid(client):
    """It matches the official schema of AsyncAPI 3.0, which notices a wrong type, and its references have targets."""
    asyncapi = document(client, "asyncapi")

    errors = [error.message for error in Draft7Validator(ASYNCAPI).iter_errors(asyncapi)]

    assert [] == errors
    assert {"localhost"} == {server["host"] for name, server in asyncapi["servers"].items() if name == "http"}
    for reference in references(asyncapi):
        assert resolve(asyncapi, reference) is not None
    asyncapi["channels"]["stream_value"]["servers"] = "http"
    assert not Draft7Validator(ASYNCAPI).is_valid(asyncapi)


PARSER = "@asyncapi/parser@3.6.3"
PARSE = """
import { Parser } from "@asyncapi/parser";
let text = "";
for await (const chunk of process.stdin) text += chunk;
console.log(JSON.stringify((await new Parser().parse(text)).diagnostics));
"""
WARNING = 1  # 0 is an error; a newer version of AsyncAPI is only information


@pytest.mark.processes
@pytest.mark.long  # npm downloads the parser
def test_the_parser_of_asyncapi_accepts_the_document(client):
    """AsyncAPI's own parser finds no error and no reason for a warning."""
    folder = ROOT / "build" / "asyncapi"
    if not (folder / "node_modules" / "@asyncapi" / "parser").exists():
        npm = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", PARSER]
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(npm, check=True)
    (folder / "parse.mjs").write_text(PARSE)

    text = json.dumps(document(client, "asyncapi"))
    done = subprocess.run(["node", folder / "parse.mjs"], input=text, capture_output=True, text=True, check=True)

    assert [] == [problem for problem in json.loads(done.stdout) if problem["severity"] <= WARNING]


def test_only_guarded_streams_need_credentials(client):
    openapi = document(client, "openapi")
    guarded, public = (openapi["paths"][path]["get"] for path in ("/mine/{customer}", "/value"))

    schemes = {name for requirement in guarded["security"] for name in requirement}
    assert {"partners", "partners-cookie", "public", "ticket-in-query"} == schemes
    assert schemes == openapi["components"]["securitySchemes"].keys()
    assert [] == public["security"]
    assert {"401", "403"} == guarded["responses"].keys() - public["responses"].keys()


def test_the_parameters_of_a_stream_are_in_the_document(client):
    parameters = document(client, "openapi")["paths"]["/mine/{customer}"]["get"]["parameters"]

    own = [parameter["name"] for parameter in parameters if "name" in parameter]
    shared = [parameter["$ref"].rpartition("/")[2] for parameter in parameters if "$ref" in parameter]
    assert ["customer", "key", "header.type", "field.NAME", "filter"] == own
    assert ["Last-Event-ID", "lastEventId", "timestamp", "since", "offset", "live", "cursor"] == shared


class TestSchemas:
    """The schemas of the topics' values, from a schema registry."""

    @pytest.fixture
    def registry(self) -> Iterator[FakeRegistry]:
        registry = FakeRegistry()
        yield registry
        registry.close()

    @pytest.fixture
    def client(self, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
        """An app with routes over topics with an Avro schema, a JSON Schema with references, and no schema."""
        monkeypatch.setattr(value_schemas, "REFRESH_S", 0.0)
        monkeypatch.setattr(value_schemas, "RETRY_S", 0.0)
        avro = {"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "double"}]}
        node = {
            "$id": "https://x.example/node",
            "properties": {"servers": {}, "next": {"$ref": "#"}, "size": {"$ref": "#/definitions/s"}},
        }
        registry.register("shop.orders-value", avro)
        registry.register("shop.nodes-value", node | {"definitions": {"s": {"type": "integer"}}}, "JSON")
        routes = {
            name: {"path": f"/{name}", "topics": topics, "format": "value"}
            for name, topics in {"orders": ["orders"], "both": ["orders", "nodes"], "other": ["other"]}.items()
        }
        settings = {"decoder": "registry", "schema_registry": {"url": registry.url}, "topic_prefix": "shop."}
        return client_of(MemoryLog(), catalog=True, routes=routes, allowed_topics=[], **settings)

    def test_the_documents_contain_them(self, client):
        """The newest schema of each topic describes its values. The documents are valid with it."""
        openapi, asyncapi = document(client, "openapi"), document(client, "asyncapi")

        assert "amount" in str(openapi["components"]["schemas"]["Value.orders"])
        record = asyncapi["channels"]["topic_nodes"]["messages"]["record"]
        assert {"$ref": "#/components/schemas/Value.nodes"} == record["payload"]
        assert [] == list(openapi_errors(openapi))
        assert [] == list(Draft7Validator(ASYNCAPI).iter_errors(asyncapi))
        assert 1 == json.dumps(asyncapi).count('"host": "localhost"')
        for description in (openapi, asyncapi):
            assert all(resolve(description, reference) is not None for reference in references(description))

    @pytest.mark.parametrize(
        ("path", "value", "valid"),
        [("orders", {"amount": 1}, True), ("orders", {"amount": []}, False), ("other", {"amount": []}, True)],
    )
    def test_values_match_them(self, client, path, value, valid):
        """A value in an event must match the schema of its topic. Without a schema, every value matches."""
        api = document(client, "openapi")
        schema = api["paths"][f"/{path}"]["get"]["responses"]["200"]["content"]["application/x-ndjson"]["itemSchema"]

        assert valid == is_valid(api, schema, value)

    def test_a_new_version_changes_the_documents(self, client, registry):
        """The next refresh replaces the schema in the cached documents."""
        before = document(client, "openapi")
        registry.register("shop.orders-value", {"type": "record", "name": "Order", "fields": []})

        after = document(client, "openapi")

        assert "amount" in str(before["components"]["schemas"]["Value.orders"])
        assert "amount" not in str(after["components"]["schemas"]["Value.orders"])

    def test_the_documents_do_not_need_the_registry(self, client, registry):
        """If the registry fails, the documents contain the schemas that were known, or none."""
        registry.failure = lambda: (503, {})
        without = document(client, "openapi")
        registry.failure = lambda: None
        known = document(client, "openapi")
        registry.failure = lambda: (503, {})

        assert known == document(client, "openapi")
        assert "Value.orders" not in without["components"]["schemas"]


def test_the_parameter_topics_lists_the_groups(client):
    openapi = document(client, "openapi")
    (parameter, *_) = openapi["paths"]["/{topics}"]["get"]["parameters"]

    assert ["group"] == parameter["schema"]["items"]["anyOf"][0]["enum"]
    check(openapi, parameter["schema"], ["group", "events.a"])
    catalog = client.get("/streams/-/catalog").get_json()
    (stream,) = [entry for entry in catalog["streams"] if entry["path"] == "/{topics}"]
    assert {"group": ["t", "events.a"]} == stream["groups"]


@pytest.mark.parametrize("path", PATHS)
def test_real_events_match_the_openapi_document(client, path):
    """Each event of a real stream, with its data, matches the schema of exactly one event in the document."""
    openapi = document(client, "openapi")
    schema = openapi["paths"][path]["get"]["responses"]["200"]["content"]["text/event-stream"]["itemSchema"]

    events = sse(client, path)

    assert {"message"} | ({"delete", "gap"} if path != "/table" else set()) <= {event["event"] for event in events}
    for event in events:
        check(openapi, schema, event)
        (matching,) = [subschema for subschema in schema["oneOf"] if is_valid(openapi, subschema, event)]
        if "contentSchema" in matching["properties"]["data"]:
            check(openapi, matching["properties"]["data"]["contentSchema"], json.loads(event["data"]))


@pytest.mark.parametrize("path", [*PATHS, "/plain"])
def test_real_lines_match_the_openapi_document(client, path):
    openapi = document(client, "openapi")
    schema = openapi["paths"][path]["get"]["responses"]["200"]["content"]["application/x-ndjson"]["itemSchema"]

    for line in body(client, path, "application/x-ndjson").splitlines():
        if line:
            check(openapi, schema, json.loads(line))


@pytest.mark.parametrize("path", [*PATHS, "/plain"])
def test_real_chunks_match_the_openapi_document(client, monkeypatch, path):
    """So do the headers of the response, and the same chunk as events."""
    monkeypatch.setattr(finite_reads, "LIVE_S", 0.0)
    openapi = document(client, "openapi")
    content = openapi["paths"][path]["get"]["responses"]["200"]["content"]

    url = f"/streams{path.replace('{topics}', 't')}?offset=-1"
    chunk = client.get(url)
    events = read_events(client.get(f"{url}&live=sse").data)

    is_snapshot = path in ("/table", "/plain")
    assert len(chunk.get_json()) > (1 if is_snapshot else len(VALUES))
    check_headers(openapi, "GET", chunk, "Stream-Next-Offset", "Stream-Up-To-Date", *(() if is_snapshot else ["ETag"]))
    check(openapi, content["application/json"]["schema"], chunk.get_json())
    assert ["data", "control"] == [event.type for event in events]
    for event in events:
        schemas = content["text/event-stream"]["itemSchema"]["oneOf"]
        (matching,) = [
            subschema
            for subschema in schemas
            if is_valid(openapi, subschema, {"event": event.type, "data": event.data})
        ]
        check(openapi, matching["properties"]["data"]["contentSchema"], json.loads(event.data))


def test_real_answers_without_a_chunk_match_the_openapi_document(client, monkeypatch):
    """HEAD, a long poll without records, an unchanged chunk, and an offset whose records are gone."""
    monkeypatch.setattr(finite_reads, "LONG_POLL_S", 0.0)
    openapi = document(client, "openapi")
    chunk = client.get("/streams/kafkasse?offset=-1")
    offset = chunk.headers["Stream-Next-Offset"]

    head = client.head("/streams/kafkasse")
    poll = client.get(f"/streams/kafkasse?offset={offset}&live=long-poll&cursor=1")
    unchanged = client.get("/streams/kafkasse?offset=-1", headers={"If-None-Match": chunk.headers["ETag"]})

    assert [200, 204, 304] == [head.status_code, poll.status_code, unchanged.status_code]
    check_headers(openapi, "HEAD", head, "Stream-Next-Offset")
    check_headers(openapi, "GET", poll, "Stream-Next-Offset", "Stream-Up-To-Date", "Stream-Cursor")
    check_headers(openapi, "GET", unchanged, "Stream-Next-Offset", "Stream-Up-To-Date", "ETag")
    for value in ("-1", "now", offset):
        check(openapi, openapi["components"]["parameters"]["offset"]["schema"], value)


@pytest.mark.parametrize(
    ("status", "path", "headers"),
    [
        (400, "/t?since=x", {}),
        (400, "/t?live=sse", {}),
        (410, f"/t?offset={OLD_OFFSET}", {}),
        (400, "/t", {"Last-Event-ID": "x"}),
        (404, "/missing", {}),
        (406, "/t", {"Accept": "text/html"}),
        (431, "/t", {"Last-Event-ID": "x" * 70_000}),
    ],
)
def test_real_errors_match_the_openapi_document(client, status, path, headers):
    openapi = document(client, "openapi")
    response = client.get(f"/streams{path}", headers=headers)
    schema = openapi["components"]["responses"][str(status)]["content"]["application/problem+json"]["schema"]

    assert status == response.status_code
    check(openapi, schema, response.get_json())


def test_the_openapi_document_says_which_errors_may_be_temporary(client):
    responses = document(client, "openapi")["components"]["responses"]

    assert {"429", "500", "503"} == {
        status for status, response in responses.items() if "Retry-After" in response.get("headers", ())
    }


@pytest.mark.parametrize(("path", "has_positions"), [("/table", True), ("/plain", False)])
def test_the_documents_list_position_events_only_if_the_stream_has_them(client, path, has_positions):
    """With `position_events: false`, only JSON lines contain the end of a snapshot."""
    openapi, asyncapi = document(client, "openapi"), document(client, "asyncapi")
    content = openapi["paths"][path]["get"]["responses"]["200"]["content"]
    [channel] = [candidate for candidate in asyncapi["channels"].values() if candidate["address"] == path]

    events, lines = (content[media_type]["itemSchema"] for media_type in ("text/event-stream", "application/x-ndjson"))
    assert has_positions == ("position" in channel["messages"])
    assert has_positions == is_valid(openapi, events, {"event": "position", "data": "{}", "id": "[]"})
    assert is_valid(openapi, lines, {"event": "position", "snapshot": "complete"})
    assert b'"snapshot":"complete"' in body(client, path, "application/x-ndjson")


def test_every_event_id_of_a_stream_matches_its_parameter(client):
    """An event ID that the server sends is valid as the header Last-Event-ID."""
    openapi = document(client, "openapi")
    parameter = openapi["components"]["parameters"]["Last-Event-ID"]["schema"]

    for event in sse(client, "/kafkasse"):
        check(openapi, parameter, event["id"])
        check(openapi, parameter["anyOf"][0]["contentSchema"], json.loads(event["id"]))


def openapi_errors(openapi: dict[str, Any]) -> Iterator[Any]:
    # Not at the top, so that the other tests can be collected before `make setup` has installed it.
    validator = import_module("openapi_spec_validator")
    return iter(validator.OpenAPIV32SpecValidator(openapi).iter_errors())


def check(openapi: dict[str, Any], schema: dict[str, Any], value: object) -> None:
    assert [] == [error.message for error in validator_of(openapi, schema).iter_errors(value)]


def check_headers(openapi: dict[str, Any], method: str, response: TestResponse, *names: str) -> None:
    """A response has these headers of finite reads and no others, and the document describes them."""
    described = openapi["paths"]["/kafkasse"][method.lower()]["responses"][str(response.status_code)]["headers"]
    headers = {name for name, _ in response.headers if name.startswith("Stream-") or name == "ETag"}

    assert {*names} == headers <= described.keys()
    for name in headers:
        check(openapi, resolve(openapi, described[name]["$ref"])["schema"], response.headers[name])


def is_valid(openapi: dict[str, Any], schema: dict[str, Any], value: object) -> bool:
    return bool(validator_of(openapi, schema).is_valid(value))


def validator_of(openapi: dict[str, Any], schema: dict[str, Any]) -> Draft202012Validator:
    """Return a validator for a schema inside a document, whose references point into the document."""
    return Draft202012Validator(schema | {"components": openapi["components"]})


def sse(client: FlaskClient, path: str) -> list[dict[str, str]]:
    """Return the events of a stream, up to the topic's last record, as objects with their fields."""
    events = read_events(body(client, path, "text/event-stream"))
    return [{"event": event.type, "data": event.data, "id": event.id} for event in events]


def body(client: FlaskClient, path: str, accept: str) -> bytes:
    """Return the body of a stream from the first offset to the topic's last record and the position after it."""
    is_table = path in ("/table", "/plain")
    last_event_id = "" if is_table else '[{"topic":"t","partition":0,"offset":0}]'
    address = f"/streams{path.replace('{topics}', 't')}"
    headers = {"Accept": accept, "Last-Event-ID": last_event_id}
    with client.get(address, headers=headers, buffered=False) as response:
        assert 200 == response.status_code
        return read_until(response.response, b"complete" if is_table else b'"last"')


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for member in value.values():
            yield from references(member)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def resolve(node: Any, reference: str) -> Any:
    for name in reference.removeprefix("#/").split("/"):
        node = node[name]
    return node
