"""Long polls of a stream over HTTP: `?live=events`. The log is in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gevent
import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from kafkasse.feed.reader import Reader
from kafkasse.process.open_streams import streams
from kafkasse.web import event_poll, finite_reads
from tests.support.issuer import SETTINGS, key_set, token
from tests.support.sse import Event, read_events, read_until
from tests.support.waiting import TIMEOUT_S
from tests.web.clients import client_of


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll waits until a record arrives."""
    monkeypatch.setattr(finite_reads, "LONG_POLL_S", TIMEOUT_S)


def events(response: TestResponse) -> list[Event]:
    assert 200 == response.status_code, response.text
    assert "text/event-stream; charset=utf-8" == response.headers["Content-Type"]
    return read_events(response.data)


def poll(client: FlaskClient, path: str = "/t", last_event_id: str = "", **headers: str) -> list[Event]:
    """Return the events of a poll without those of the type `position`."""
    separator = "&" if "?" in path else "?"
    sent = {"Last-Event-ID": last_event_id, **headers}
    found = events(client.get(f"{path}{separator}live=events", headers=sent))
    return [event for event in found if event.type != "position"]


def while_waiting(monkeypatch: pytest.MonkeyPatch, action: Callable[..., object], *arguments: Any) -> None:
    """Call `action` once, when a poll has started to wait."""
    wait = finite_reads.wait_for_lines

    def wait_and_act(reader: Reader) -> bytes:
        monkeypatch.setattr(finite_reads, "wait_for_lines", wait)
        gevent.spawn(action, *arguments)
        return wait(reader)

    monkeypatch.setattr(finite_reads, "wait_for_lines", wait_and_act)


def data(found: list[Event]) -> list[tuple[str, Any]]:
    return [(event.type, json.loads(event.data).get("n")) for event in found]


def test_a_poll_has_the_events_of_the_stream(client, log):
    """Each event has its ID. The poll at that ID returns the next events."""
    with client.get("/t?timestamp=0", buffered=False) as response:
        stream = read_events(read_until(response.response, b'"offset":3'))

    found = events(client.get("/t?timestamp=0&live=events"))

    assert stream == found
    assert ["message"] * 3 == [event.type for event in found[1:]]
    assert [2] == [json.loads(event.data)["n"] for event in poll(client, last_event_id=found[2].id)]
    assert [2] == [json.loads(event.data)["n"] for event in poll(client, f"/t?last_event_id={found[2].id}")]


def test_a_poll_waits_for_a_record(client, log, monkeypatch):
    while_waiting(monkeypatch, log.append, "t", b'{"n":3}')

    assert [("message", 3)] == data(poll(client))


def test_a_poll_without_records_returns_the_position(client, impatient):
    """The client resumes at the end of the log, although it has received no record."""
    [position] = events(client.get("/t?live=events"))

    assert ("position", "{}") == (position.type, position.data)
    assert [] == poll(client, last_event_id=position.id)


def test_a_poll_moves_past_records_that_it_does_not_return(log, impatient):
    client = client_of(log, None, client_filters=["key"])

    *_, position = events(client.get("/t?timestamp=0&key=other&live=events"))

    assert [] == poll(client, last_event_id=position.id)


def test_a_long_backlog_comes_in_several_polls(client, log, monkeypatch):
    """Each of them ends as soon as it is large."""
    monkeypatch.setattr(event_poll, "MAX_BYTES", 10_000)
    for n in range(3, 3_000):
        log.append("t", b'{"n":%d}' % n)

    found, sizes = poll(client, "/t?timestamp=0"), []
    while len(found) < 3_000:
        more = poll(client, last_event_id=found[-1].id)
        sizes.append(len(more))
        found += more

    assert [*range(3_000)] == [json.loads(event.data)["n"] for event in found]
    assert len(sizes) > 1
    assert max(sizes) < 3_000


def test_tombstones_and_text_are_those_of_the_stream(log):
    client = client_of(log, None, routes={"values": {"path": "/values", "topics": ["t"], "format": "value"}})
    log.append("t", None, key=b"k")
    log.append("t", b"two\nlines", key=b"k")

    found = poll(client, "/values?timestamp=0")

    assert ["message"] * 3 + ["delete", "message"] == [event.type for event in found]
    assert "two\nlines" == found[-1].data


def test_lost_records_are_a_gap(client, log):
    """In contrast to a chunk, which gets status 410."""
    start = events(client.get("/t?timestamp=0&live=events"))[0].id
    log.drop_before("t", 2)

    gap, message = poll(client, last_event_id=start)

    assert ("gap", "message") == (gap.type, message.type)
    assert (0, 2) == (json.loads(gap.data)["from"], json.loads(gap.data)["to"])


def test_a_snapshot_comes_in_one_poll(log, monkeypatch):
    routes = {"rows": {"path": "/rows", "topics": ["t"], "format": "value", "start": "snapshot"}}
    client = client_of(log, None, routes=routes)

    *rows, complete = events(client.get("/rows?live=events"))

    assert ["", "", ""] == [row.id for row in rows]
    assert {"snapshot": "complete"} == json.loads(complete.data)
    while_waiting(monkeypatch, log.append, "t", b'{"n":3}')
    assert [("message", 3)] == data(poll(client, "/rows", complete.id))


def test_each_visitor_polls_its_own_records(log, tmp_path):
    (tmp_path / "jwks.json").write_bytes(key_set("rsa-1"))
    guards = {"users": {"jwt": {**SETTINGS, "jwks_file": str(tmp_path / "jwks.json")}}}
    route = {"path": "/mine", "topics": ["t"], "access": ["users"], "where": {"key": "{claims.sub}"}}
    client = client_of(log, None, guards=guards, routes={"mine": route})

    found = poll(client, "/mine?timestamp=0", Authorization=f"Bearer {token(sub='k1')}")

    assert [("message", 1)] == data(found)
    assert 401 == client.get("/mine?live=events").status_code


def test_no_cache_keeps_a_poll(log):
    client = client_of(log, None, shared_cache_s=3600)

    assert "no-store, no-transform" == client.get("/t?timestamp=0&live=events").headers["Cache-Control"]


def test_a_poll_has_no_offset(client):
    response = client.get("/t?live=events&offset=-1")

    assert (400, True) == (response.status_code, "Do not send offset" in response.json["detail"])


def test_a_poll_ends_when_the_server_stops(client, monkeypatch):
    monkeypatch.setattr(finite_reads, "CHECK_S", 0.01)
    while_waiting(monkeypatch, monkeypatch.setattr, streams, "stopping", True)

    assert [] == poll(client)
    rejected = client.get("/t?live=events")  # or the client would repeat it in a loop
    assert (503, "1") == (rejected.status_code, rejected.headers["Retry-After"])


def test_a_poll_counts_as_a_stream_while_it_lasts(log, impatient):
    client = client_of(log, None, max_streams=1)
    with client.get("/t?live=events", buffered=False):
        assert 503 == client.get("/t?live=events").status_code

    assert 200 == client.get("/t?live=events").status_code
