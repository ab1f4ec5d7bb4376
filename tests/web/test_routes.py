"""The settings of a route over HTTP: its path and where its streams start. The log is in memory."""

from __future__ import annotations

import json
import time
from itertools import islice
from typing import Any

import pytest
from flask.testing import FlaskClient

from kafkasse.log.memory import MemoryLog
from kafkasse.records.frame import FORMATS
from kafkasse.records.frame.json_text import TOKENS_PER_TURN
from kafkasse_client.sse import Event
from tests.support.sse import read_events, read_until, without_positions
from tests.support.turns import turns_given_by
from tests.web.clients import client_of


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    for topic in ("t", "u"):
        log.create(topic)
        log.append(topic, json.dumps({"topic": topic}).encode())
    return log


def client_with(log: MemoryLog, **routes: dict[str, Any]) -> FlaskClient:
    """A client of a host app with these routes. A route has the topic `t` and starts at the first record by default."""
    return client_of(
        log, routes={name: {"topics": ["t"], "start": "earliest", **route} for name, route in routes.items()}
    )


def read(client: FlaskClient, path: str) -> list[Event]:
    """Return the events up to the first heartbeat."""
    with client.get(path, buffered=False) as response:
        assert 200 == response.status_code
        body = read_until(response.response, b":heartbeat")
        return without_positions(read_events(body.replace(b":heartbeat\n\n", b"")))


def topics(events: list[Event]) -> list[str]:
    return [json.loads(event.data)["topic"] for event in events]


def with_parameters(path: str, *names: str) -> dict[str, Any]:
    """The settings of a route that uses these path parameters."""
    return {"path": path, "where": {"fields": {"topic": [f"{{{name}}}" for name in names]}}}


# Paths.


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/p/DE", 200),
        ("/p/D%C3%A9%20%26", 200),
        ("/p/a.b,c", 200),
        ("/p", 404),
        ("/p/", 404),
        ("/p/DE/", 404),
        ("/p/DE/x", 404),
        ("/p/D%2FE", 404),
        ("/P/DE", 404),
    ],
)
def test_a_path_parameter_matches_one_segment(log, path, status):
    """The segment may contain any characters except a slash, and cannot be empty."""
    client = client_with(log, prices=with_parameters("/p/{currency}", "currency"))

    assert status == client.head(f"/streams{path}").status_code


def test_a_fixed_segment_takes_precedence_over_a_parameter(log):
    """The order of the routes in the file makes no difference."""
    client = client_with(log, any=with_parameters("/p/{name}", "name"), all={"path": "/p/all", "topics": ["u"]})

    assert (["t"], ["u"]) == (topics(read(client, "/streams/p/t")), topics(read(client, "/streams/p/all")))


def test_the_segments_of_a_path_may_be_python_keywords(log):
    client = client_with(log, r=with_parameters("/{class}/{from}/{self}", "class", "from", "self"))

    assert ["t"] == topics(read(client, "/streams/a/t/c"))


# Starts.


def test_a_route_starts_at_a_duration_back_from_now(log):
    """A client receives the records of that duration, and no older ones. When it resumes, no record is sent again."""
    now_ms = time.time_ns() // 1_000_000
    log.create("v")
    for n, age_s in enumerate((3600, 1000, 800, 0)):
        log.append("v", b'{"topic":"%d"}' % n, timestamp=now_ms - age_s * 1000)

    client = client_with(log, r={"path": "/r", "topics": ["v"], "start": "-15m"})

    events = read(client, "/streams/r")
    assert ["2", "3"] == topics(events)
    assert [] == read(client, f"/streams/r?last_event_id={events[-1].id}")


def test_a_route_starts_at_a_time(log):
    """A client receives the records since that time. A time in the query takes precedence."""
    log.create("v")
    for second in range(3):
        log.append("v", b'{"topic":"%d"}' % second, timestamp=second * 1000)

    client = client_with(log, r={"path": "/r", "topics": ["v"], "start": "1970-01-01T00:00:01Z"})

    assert ["1", "2"] == topics(read(client, "/streams/r"))
    assert ["2"] == topics(read(client, "/streams/r?timestamp=2000"))


# Projections. tests/frame/test_projection.py has the details.


MEMBERS = {"kafkasse": {"_kafka"}, "value": set(), "envelope": {"headers"}, "cloudevents": {"specversion"}}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("projection", [{"fields": ["id", "customer.name"]}, {"redact": ["customer.email"]}])
def test_a_route_sends_only_some_members(log, format, projection):
    """This applies to every format, and to records that a client reads from its own cursor or from the ring."""
    log.create("v")
    log.append("v", b'{"id":1,"customer":{"name":"Ann","email":"secret-1"}}')
    client = client_with(log, r={"path": "/r", "topics": ["v"], "format": format, **projection})

    with client.get("/streams/r", buffered=False) as response:
        chunks = iter(response.response)
        caught_up = read_until(chunks, b'"id":1')
        log.append("v", b'{"id":2,"customer":{"name":"Ann","email":"secret-2"}}')
        live = read_until(chunks, b'"id":2')

    assert (1, 1) == (caught_up.count(b"Ann"), live.count(b"Ann"))
    assert b"secret" not in caught_up + live
    [event] = without_positions(read_events(live))
    assert MEMBERS[format] == {"_kafka", "headers", "specversion"} & json.loads(event.data).keys()


def test_a_large_value_is_encoded_in_pieces(log):
    """A lone surrogate makes encoding slow. Without pieces, the other streams of the worker would wait for a large value."""
    turns: list[bool] = []
    log.create("v")
    log.append("v", b'{"\\ud800":1,"_kafka":1,"customer":[%b]}' % b",".join([b"{}"] * 20_000))
    client = client_with(log, r={"path": "/r", "topics": ["v"], "redact": ["customer.email"]})

    with turns_given_by(turns.append):
        [event] = read(client, "/streams/r")

    assert 20_000 == len(json.loads(event.data)["customer"])
    assert len(turns) > 20_000 / TOKENS_PER_TURN


# Settings that override the general ones.


def test_a_route_has_its_own_settings(log):
    """The general settings apply to all other routes. The general heartbeat of the test is twenty times as frequent."""
    different = {"position_events": False, "start": "latest", "heartbeat_s": 1}
    client = client_with(log, own={"path": "/own", **different}, other={"path": "/other"})

    with client.get("/streams/own", buffered=False) as own, client.get("/streams/other", buffered=False) as other:
        own_start, other_start = (b"".join(islice(response.response, 2)) for response in (own, other))
        started_at = time.monotonic()
        read_until(own.response, b":heartbeat")

    assert (False, True) == (b"event: position" in own_start, b"event: position" in other_start)
    assert 0.5 < time.monotonic() - started_at


def test_a_route_limits_its_streams(log):
    """The limits of a route do not restrict other routes. A stream that ends makes room for another one."""
    client = client_with(
        log,
        full={"path": "/full", "max_streams": 1},
        busy={"path": "/busy", "max_streams_per_client": 1},
        other={"path": "/other"},
    )

    with client.get("/streams/full", buffered=False), client.get("/streams/busy", buffered=False):
        rejected = [client.get(f"/streams/{path}") for path in ("full", "busy")]
        assert 200 == client.head("/streams/other").status_code

    assert [503, 429] == [response.status_code for response in rejected]
    assert "This route has too many streams (max_streams=1). Retry later." == rejected[0].get_json()["detail"]
    assert [200, 200] == [client.head(f"/streams/{path}").status_code for path in ("full", "busy")]
