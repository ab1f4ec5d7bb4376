"""The server accepts every event ID that it issues: it rejects a stream whose event IDs would be too large."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from flask.testing import FlaskClient

from kafkasse.log.memory import MemoryLog
from kafkasse.web import wsgi_server
from kafkasse_client.sse import Parser
from tests.web import clients


def client_of(topics: dict[str, int], **settings: object) -> FlaskClient:
    log = MemoryLog()
    for topic, partitions in topics.items():
        log.create(topic, partitions)
    return clients.client_of(log, None, **settings)


def first_id(client: FlaskClient, path: str) -> str:
    with client.get(path, buffered=False) as response:
        assert 200 == response.status_code
        parser = Parser()
        list(parser.receive(next(iter(response.response))))
        return parser.last_event_id


def test_an_offset_that_would_exceed_the_request_line_is_rejected_at_the_first_request(monkeypatch):
    """And not when the client continues at an offset of the server."""
    monkeypatch.setattr(wsgi_server, "_gunicorn_config", lambda: SimpleNamespace(limit_request_line=1_000))
    monkeypatch.setattr(wsgi_server, "_limit", lambda: (1_000, "a limit"))
    monkeypatch.setattr(wsgi_server, "_problem_of_process", lambda: "")
    client = client_of({"narrow": 10, "wide": 100})

    narrow, wide = (client.get(f"/{name}?offset=-1", buffered=True) for name in ("narrow", "wide"))

    assert [200, 400] == [narrow.status_code, wide.status_code]
    assert "longer than 1000 bytes (limit_request_line)" in wide.get_json(force=True)["detail"]
    uri = {"RAW_URI": f"/narrow?offset=-1&x={'x' * 900}"}
    assert 400 == client.get("/narrow?offset=-1", environ_overrides=uri).status_code


MANY = {f"a.name.of.usual.length.{n}": 50 for n in range(50)}


def test_a_stream_of_as_many_topics_as_the_defaults_allow_can_be_resumed():
    client = client_of(MANY)
    path = "/" + ",".join(MANY)

    event_id = first_id(client, path)

    assert 200 == client.head("/x", headers={"Last-Event-ID": event_id}).status_code


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_last_event_id_bytes": 256, "compact_ids": False}, "longer than 256 bytes (max_last_event_id_bytes)"),
        ({"max_last_event_id_bytes": 256, "id_type": "both"}, "longer than 256 bytes (max_last_event_id_bytes)"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_rejects_a_stream_whose_event_ids_would_be_too_large(settings, reason, method):
    """The error names the setting. It comes before the first byte, not when the client tries to resume."""
    client = client_of({"t": 4, "u": 2}, **settings)

    rejected = client.open("/t,u", method=method)

    assert 400 == rejected.status_code
    assert method == "HEAD" or reason in rejected.json["detail"]
    assert 200 == client.head("/u").status_code


def test_rejects_a_stream_of_too_many_partitions():
    """A client can read a part of it."""
    client = client_of({"t": 2_501})
    selected = json.dumps([{"topic": "t", "partition": n, "offset": 0} for n in range(5)])

    rejected = client.get("/t")

    assert 400 == rejected.status_code
    assert "A stream may have 2500" in rejected.json["detail"]
    assert 200 == client.head("/t", headers={"Last-Event-ID": selected}).status_code
