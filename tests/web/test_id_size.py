"""The server accepts every event ID that it issues: it rejects a stream whose event IDs would be too large."""

from __future__ import annotations

import json

import pytest
from flask.testing import FlaskClient

from kafkasse.log.memory import MemoryLog
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


MANY = {f"a.name.of.usual.length.{n}": 50 for n in range(50)}


def test_a_stream_of_as_many_topics_as_the_defaults_allow_can_be_resumed():
    client = client_of(MANY)
    path = "/" + ",".join(MANY)

    event_id = first_id(client, path)

    assert 200 == client.head("/x", headers={"Last-Event-ID": event_id}).status_code


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_last_event_id_entries": 5}, "more than 5 entries (max_last_event_id_entries)"),
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


def test_counts_only_the_selected_partitions():
    """A client can read a part of a stream that is too large."""
    client = client_of({"t": 6}, max_last_event_id_entries=5)
    selected = json.dumps([{"topic": "t", "partition": n, "offset": 0} for n in range(5)])

    assert 400 == client.head("/t").status_code
    assert 200 == client.head("/t", headers={"Last-Event-ID": selected}).status_code
