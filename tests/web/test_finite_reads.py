"""Finite reads over HTTP, with the Durable Streams protocol. The log is in memory."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
import pytest
from flask import Response
from flask import session as flask_session
from flask.testing import FlaskClient
from werkzeug.test import TestResponse, create_environ, run_wsgi_app

from kafkasse import end_streams, schemas
from kafkasse.access import Visitor
from kafkasse.access.api_keys import create_key
from kafkasse.feed import shared_chunks
from kafkasse.feed.chunks import Chunks
from kafkasse.feed.core import chunk as core
from kafkasse.feed.feeds import MAX_DESCRIPTION_AGE_S, Feeds
from kafkasse.log.memory import MemoryLog
from kafkasse.process.open_streams import streams
from kafkasse.records.frame import FORMATS
from kafkasse.records.position import stream_offset
from kafkasse.web import finite_reads, wsgi_server
from kafkasse.web.finite_reads import next_cursor
from kafkasse.web.throttle import BURST
from kafkasse_client.sse import Event, Parser
from tests.support.issuer import SETTINGS, key_set, token
from tests.support.metric_values import value_of
from tests.support.sse import read_events, read_until
from tests.support.waiting import TIMEOUT_S, wait_until
from tests.web.clients import client_of

NEXT, LAST, CURSOR = "Stream-Next-Offset", "Stream-Up-To-Date", "Stream-Cursor"
SOON_S = 0.02
THREADS = {"SERVER_SOFTWARE": "threads", "wsgi.multithread": True}  # a server without an event loop


@pytest.fixture(autouse=True)
def one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response with events ends after the first chunk. A long poll waits until a record arrives."""
    monkeypatch.setattr(finite_reads, "LONG_POLL_S", TIMEOUT_S)
    monkeypatch.setattr(finite_reads, "LIVE_S", 0.0)


def numbers(response: TestResponse) -> list[int]:
    assert 200 == response.status_code, response.text
    return [message["n"] for message in response.get_json()]


def append_soon(log: MemoryLog, value: bytes = b'{"n":3}', **record: Any) -> None:
    gevent.spawn_later(SOON_S, log.append, "t", value, **record)


def while_waiting(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Call `action` once, when a long poll has started to wait."""
    wait = finite_reads.RecordSource._wait

    def wait_and_act(*arguments: Any) -> Any:
        monkeypatch.setattr(finite_reads.RecordSource, "_wait", wait)
        gevent.spawn_later(SOON_S, action)
        return wait(*arguments)

    monkeypatch.setattr(finite_reads.RecordSource, "_wait", wait_and_act)


# Chunks.


def test_a_read_from_the_beginning_returns_a_chunk(client):
    """A JSON array of the messages, as a stream of JSON lines has them."""
    response = client.get("/t?offset=-1")

    assert [0, 1, 2] == numbers(response)
    assert "application/json" == response.headers["Content-Type"]
    with client.get("/t?since=1970-01-01", headers={"Accept": "application/x-ndjson"}, buffered=False) as stream:
        lines = read_until(stream.response, b"k2").split(b"\n")
    assert [json.loads(line) for line in lines if line] == response.get_json()


def test_a_read_continues_at_the_next_offset(client, log):
    first = client.get("/t?offset=-1")
    assert "true" == first.headers[LAST]
    log.append("t", b'{"n":3}')

    second = client.get(f"/t?offset={first.headers[NEXT]}")
    third = client.get(f"/t?offset={second.headers[NEXT]}")

    assert [[3], []] == [numbers(second), numbers(third)]
    assert b"[]" == third.data
    assert "true" == third.headers[LAST]
    assert first.headers[NEXT] < second.headers[NEXT] == third.headers[NEXT]


def test_now_is_the_end_of_the_log(client):
    response = client.get("/t?offset=now")

    assert b"[]" == response.data
    assert ("true", client.get("/t?offset=-1").headers[NEXT]) == (response.headers[LAST], response.headers[NEXT])
    assert "ETag" not in response.headers


def test_head_returns_the_offset_at_the_end(client, log):
    older = client.get("/t?offset=-1").headers[NEXT]
    log.append("t", b'{"n":3}')
    for offset in ("-1", "now", older, client.get("/t?offset=-1").headers[NEXT]):
        response = client.head(f"/t?offset={offset}")

        assert (200, b"") == (response.status_code, response.data)
        assert client.get("/t?offset=now").headers[NEXT] == response.headers[NEXT]
        assert "no-store" in response.headers["Cache-Control"]
        assert "Content-Length" not in response.headers


@pytest.mark.parametrize("server", [{}, THREADS], ids=["event loop", "threads"])
def test_head_of_a_stream_returns_the_offset_at_the_end(log, monkeypatch, server):
    """Clients of the protocol send this request without an offset, also to a server that cannot serve the stream."""
    monkeypatch.setattr(wsgi_server, "is_patched", lambda: False)
    client = client_of(log, None)
    response = client.head("/t", environ_overrides=server)

    assert 200 == client.head("/t?offset=now&live=sse", environ_overrides=server).status_code
    assert client.get("/t?offset=now").headers[NEXT] == response.headers[NEXT]
    assert "text/event-stream" in response.headers["Content-Type"]
    assert "Content-Length" not in response.headers


def test_an_offset_converts_to_an_event_id(client, log):
    """A client can change from one protocol to the other."""
    offset = client.get("/t?offset=-1").headers[NEXT]
    log.append("t", b'{"n":3}')

    stream = client.get("/t", headers={"Last-Event-ID": f"~~{offset.partition('.')[2]}~"}, buffered=False)

    body = read_until(stream.response, b'"n":3')
    stream.close()
    assert b'"n":2' not in body


def test_tombstones_text_and_binary_values_are_events_as_in_json_lines(log):
    client = client_of(log, None, routes={"r": {"path": "/r", "topics": ["t"], "format": "value"}})
    offset = client.get("/r?offset=now").headers[NEXT]
    for value in (None, b"text", b"\xff", b'{"event":"gap"}', b"[1,\n2]"):
        log.append("t", value, key=b"k")

    assert [
        {"event": "delete", "key": "k"},
        "text",
        {"event": "base64", "data": "/w=="},
        {"event": "message", "data": {"event": "gap"}},
        [1, 2],
    ] == client.get(f"/r?offset={offset}").get_json()


def test_an_unchanged_chunk_is_not_sent_again(client, log):
    response = client.get("/t?offset=-1")
    etag = {"If-None-Match": response.headers["ETag"]}

    repeated = client.get("/t?offset=-1", headers=etag)

    assert (304, b"") == (repeated.status_code, repeated.data)
    assert response.headers[NEXT] == repeated.headers[NEXT]
    log.append("t", b"{}")
    changed = client.get("/t?offset=-1", headers=etag)
    assert 200 == changed.status_code
    assert response.headers["ETag"] != changed.headers["ETag"]


def test_if_match_is_ignored(log):
    """Otherwise, a response with status 412 could replace a chunk in a cache."""
    client = client_of(log, None, shared_cache_s=3600)

    assert [0, 1, 2] == numbers(client.get("/t?offset=-1", headers={"If-Match": '"x"'}))


def test_a_time_does_not_replace_the_end(client):
    assert [] == numbers(client.get("/t?offset=now&since=1970-01-01"))


def test_a_time_can_replace_the_beginning(log):
    for n, when in enumerate((1000, 2000, 3000)):
        log.append("t", b'{"n":%d}' % (10 + n), timestamp=when)
    client = client_of(log, None)

    assert [11, 12] == [n for n in numbers(client.get("/t?offset=-1&timestamp=2000")) if n >= 10][-2:]


# Rejections.


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("offset=", "exactly as you received it"),
        ("offset=12", "exactly as you received it"),
        ("offset=-2", "exactly as you received it"),
        ("offset=b3.x", "exactly as you received it"),
        ("offset=a%2Cb", "exactly as you received it"),
        ("offset=-1&offset=-1", "Send one offset"),
        ("live=long-poll", "Send one offset"),
        ("live=sse", "Send one offset"),
        ("offset=-1&live=true", "live must be long-poll, sse or events"),
        ("offset=-1&since=x", "since must be"),
        ("offset=-1&key=k", "does not allow the filter"),
    ],
)
def test_an_invalid_request_is_rejected(client, query, detail):
    """With the body that all errors have."""
    response = client.get(f"/t?{query}")

    assert 400 == response.status_code
    assert detail in response.get_json(force=True)["detail"]
    assert schemas.first_error("problem", response.get_json(force=True)) is None
    assert "nosniff" == response.headers["X-Content-Type-Options"]


@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
@pytest.mark.parametrize("offset", ["-1", "now"])
def test_a_missing_topic_is_not_found(client, offset, live):
    assert 404 == client.get(f"/missing?offset={offset}{live}").status_code


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_writes_are_not_allowed(client, method):
    response = client.open("/t?offset=-1", method=method)

    assert (405, "GET, HEAD, OPTIONS") == (response.status_code, response.headers["Allow"])


@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
def test_an_offset_whose_records_were_removed_is_gone(client, log, live):
    offset = client.get("/t?offset=-1").headers[NEXT]
    for _ in range(4):
        log.append("t", b"{}")
    log.drop_before("t", 5)

    response = client.get(f"/t?offset={offset}{live}")

    problem = response.get_json(force=True)
    assert (410, "OffsetGoneError") == (response.status_code, problem["name"])
    assert [{"topic": "t", "partition": 0, "from": 3, "to": 5, "reason": "removed by retention"}] == problem["gaps"]
    assert schemas.first_error("problem", problem) is None
    metrics = client.application.extensions["kafkasse"]["kafkasse"].observer.metrics
    assert 1 == value_of(metrics, "gaps", route="topics", reason="removed by retention")
    assert 2 == len(client.get(f"/t?offset={problem['next_offset']}").get_json())


def test_a_topic_that_is_recreated_before_a_read(client, log):
    """The server has described the former topic a moment before."""
    offset = client.get("/t?offset=now").headers[NEXT]
    log.delete("t")
    log.create("t")
    for n in range(7, 12):
        log.append("t", b'{"n":%d}' % n)

    assert 410 == client.get(f"/t?offset={offset}").status_code
    assert [7, 8, 9, 10, 11] == numbers(client.get("/t?offset=-1"))


def test_a_long_poll_of_a_topic_that_is_recreated_is_not_up_to_date(log, monkeypatch):
    client = client_of(log, None, metadata_refresh_s=0.05)
    offset = client.get("/t?offset=now").headers[NEXT]

    def recreate() -> None:
        log.delete("t")
        log.create("t")

    while_waiting(monkeypatch, recreate)
    poll = client.get(f"/t?offset={offset}&live=long-poll")

    assert (200, b"[]", None) == (poll.status_code, poll.data, poll.headers.get(LAST))
    assert 410 == client.get(f"/t?offset={poll.headers[NEXT]}&live=long-poll").status_code


@pytest.mark.usefixtures("impatient")
def test_a_long_poll_of_a_partition_without_a_leader_is_not_up_to_date(log):
    """It waits for the others, and for a new leader."""
    log.create("t", 2)
    client = client_of(log, None)
    offset = client.get("/t?offset=now").headers[NEXT]
    log.lose_leader("t", 1)

    poll = client.get(f"/t?offset={offset}&live=long-poll")
    assert (200, b"[]", None) == (poll.status_code, poll.data, poll.headers.get(LAST))

    log.append("t", b'{"n":3}', partition=1)
    gevent.spawn_later(SOON_S, log.elect_leader, "t", 1)
    while (poll := client.get(f"/t?offset={offset}&live=long-poll")).data == b"[]":
        pass
    assert [3] == numbers(poll)


@pytest.mark.usefixtures("impatient")
def test_a_long_poll_that_waits_for_a_cursor_is_not_up_to_date(log, monkeypatch):
    """A record arrives before the long poll has a reader, and others use all cursors."""
    client = client_of(log, None, max_catch_ups=1)
    offset = client.get("/t?offset=now").headers[NEXT]
    open_reader = Feeds.open

    def open_late(feeds: Feeds, *arguments: Any) -> Any:
        feeds._slots.request("another address", lambda: None)
        log.append("t", b'{"n":3}')
        return open_reader(feeds, *arguments)

    monkeypatch.setattr(Feeds, "open", open_late)

    poll = client.get(f"/t?offset={offset}&live=long-poll")

    assert (200, b"[]", None) == (poll.status_code, poll.data, poll.headers.get(LAST))
    assert offset == poll.headers[NEXT]


def test_a_topic_is_deleted_while_another_is_recreated(client, log, monkeypatch):
    log.create("u")
    open_cursor = log.cursor

    def change_topics(*args: Any, **options: Any) -> Any:
        log.delete("u")
        log.delete("t")
        log.create("t")
        return open_cursor(*args, **options)

    monkeypatch.setattr(log, "cursor", change_topics)

    assert 404 == client.get("/t,u?offset=-1").status_code


def test_an_offset_of_a_topic_that_the_route_does_not_allow_is_not_found(log):
    """An offset names its topics, as an event ID does."""
    log.create("secret")
    other = client_of(log, None).get("/secret?offset=now").headers[NEXT]
    client = client_of(log, None, allowed_topics=["t"])

    assert 404 == client.get(f"/t?offset={other}").status_code


@pytest.mark.usefixtures("impatient")
def test_a_finite_read_counts_as_a_stream_while_it_lasts(log):
    client = client_of(log, None, max_streams=1)
    with client.get("/t", buffered=False):
        assert 503 == client.get("/t?offset=-1").status_code

    for query in ("offset=-1", "offset=now&live=long-poll", "offset=now&live=sse", "offset=x"):
        client.get(f"/t?{query}", buffered=True)
        assert 200 == client.get("/t?offset=-1", buffered=True).status_code
    with client.get("/t?offset=-1&live=sse", buffered=False):
        assert 503 == client.get("/t?offset=-1").status_code


@pytest.mark.usefixtures("impatient")
def test_metrics_count_finite_reads(log):
    client = client_of(log, None)
    metrics = client.application.extensions["kafkasse"]["kafkasse"].observer.metrics

    def sent() -> tuple[float, ...]:
        return tuple(
            value_of(metrics, name) for name in ("streams_opened", "events_sent", "bytes_sent", "streams_open")
        )

    size = len(client.get("/t?offset=-1", buffered=True).data)
    assert (1, 3, size, 0) == sent()
    client.get("/t?offset=now&live=long-poll", buffered=True)
    client.get("/t?offset=-1", headers={"If-None-Match": "*"}, buffered=True)
    assert (3, 3, size, 0) == sent()
    with client.get("/t?offset=-1&live=sse", buffered=False) as response:
        assert b"k2" in read_until(response.response, b"k2")
        assert 1 == value_of(metrics, "stream_states", route="topics", state="finite_read")
        (status,) = streams.statuses()
        assert (3, size) == (status["events"], status["bytes"])
    assert (4, 6, 2 * size, 0) == sent()
    assert 4 == value_of(metrics, "streams_closed", route="topics", reason="complete")


def test_a_client_that_repeats_an_invalid_request_occupies_no_thread(log, monkeypatch):
    """Under a server without an event loop, all rejections are answered at once."""
    monkeypatch.setattr(wsgi_server, "is_patched", lambda: False)
    client = client_of(log, None)
    responses = [client.get("/t?offset=x", environ_overrides=THREADS) for _ in range(BURST + 1)]

    assert [400] * BURST + [429] == [response.status_code for response in responses]


def failing(response: Response) -> Response:
    raise RuntimeError


def replacing(response: Response) -> Response:
    return Response("another one")


@pytest.mark.parametrize("hook", [failing, replacing])
@pytest.mark.parametrize("live", ["", "&live=sse"])
def test_a_read_whose_response_an_app_discards_does_not_count(log, hook, live):
    client = client_of(log, None, max_streams=1)
    client.application.config["PROPAGATE_EXCEPTIONS"] = False
    client.application.after_request(hook)

    client.get(f"/t?offset=-1{live}")

    gevent.idle()
    del client.application.after_request_funcs[None][:]
    assert 200 == client.get("/t?offset=-1", buffered=True).status_code


# Long polls.


def test_a_long_poll_returns_what_is_there(client):
    response = client.get("/t?offset=-1&live=long-poll")

    assert [0, 1, 2] == numbers(response)
    assert "true" == response.headers[LAST]
    assert response.headers[CURSOR].isdigit()


def test_a_long_poll_waits_for_a_record(client, log, monkeypatch):
    offset = client.get("/t?offset=-1").headers[NEXT]
    for start in (offset, "now"):
        while_waiting(monkeypatch, lambda: log.append("t", b'{"n":3}'))

        response = client.get(f"/t?offset={start}&live=long-poll")

        assert 3 in numbers(response)
        assert client.get("/t?offset=now").headers[NEXT] == response.headers[NEXT]
        assert "true" == response.headers[LAST]


@pytest.mark.usefixtures("impatient")
def test_a_long_poll_without_records_ends_with_204(client):
    response = client.get("/t?offset=now&live=long-poll")

    assert (204, b"") == (response.status_code, response.data)
    assert client.get("/t?offset=-1").headers[NEXT] == response.headers[NEXT]
    assert "true" == response.headers[LAST]
    assert response.headers[CURSOR].isdigit()
    for start in ("-1", response.headers[NEXT]):  # a cache must not answer 304, which has no cursor
        assert "ETag" not in client.get(f"/t?offset={start}&live=long-poll").headers


@pytest.mark.usefixtures("impatient")
def test_a_long_poll_without_records_has_no_content_type(client):
    """The client of an old Werkzeug adds the header to the response."""
    environ = create_environ("/t?offset=now&live=long-poll")

    _, status, headers = run_wsgi_app(client.application, environ)

    assert "204 NO CONTENT" == status
    assert "Content-Type" not in headers


@pytest.mark.usefixtures("impatient")
def test_a_long_poll_moves_past_records_that_it_does_not_return(log):
    """So that the next one does not read them again."""
    client = client_of(log, None, client_filters=["key"])
    append_soon(log, key=b"other")

    response = client.get("/t?offset=now&live=long-poll&key=k1")

    assert 204 == response.status_code
    assert client.get("/t?offset=now&key=k1").headers[NEXT] == response.headers[NEXT]


def test_a_long_poll_ends_when_the_server_stops(client, monkeypatch):
    monkeypatch.setattr(finite_reads, "CHECK_S", 0.01)
    while_waiting(monkeypatch, lambda: monkeypatch.setattr(streams, "stopping", True))

    assert 204 == client.get("/t?offset=now&live=long-poll").status_code
    rejected = client.get("/t?offset=now&live=long-poll")  # or the client would repeat it in a loop
    assert (503, "1") == (rejected.status_code, rejected.headers["Retry-After"])
    assert [0, 1, 2] == numbers(client.get("/t?offset=-1&live=long-poll"))


def test_a_long_poll_of_many_partitions(monkeypatch):
    """A stream may have 2,500 partitions."""
    log = MemoryLog()
    log.create("t", 2_500)
    client = client_of(log, None)
    while_waiting(monkeypatch, lambda: log.append("t", b'{"n":3}'))

    assert [3] == numbers(client.get("/t?offset=now&live=long-poll"))


def test_a_new_long_poll_has_a_later_cursor():
    """Otherwise, a cache could answer it with the same empty response again and again."""
    now = finite_reads.CURSOR_EPOCH_S + 10.0

    assert (
        "1000" == next_cursor(now, "") == next_cursor(now, "999") == next_cursor(now, "x") == next_cursor(now, "9" * 99)
    )
    assert "1001" == next_cursor(now, "1000") == next_cursor(now + 0.01, "1000")
    assert "5001" == next_cursor(now, "5000")


def test_long_polls_that_end_together_have_equal_cursors(client, log):
    """Otherwise, the clients behind a shared cache that came at different times would send a request each, for ever."""
    offset = client.get("/t?offset=now").headers[NEXT]
    first = client.get("/t?offset=-1&live=long-poll").headers[CURSOR]
    second = client.get(f"/t?offset=-1&live=long-poll&cursor={first}").headers[CURSOR]
    polls = [
        gevent.spawn(client.get, f"/t?offset={offset}&live=long-poll{query}")
        for query in ("", f"&cursor={first}", f"&cursor={second}")
    ]
    wait_until(lambda: len(streams) == 3)
    append_soon(log)

    cursors = [poll.get().headers[CURSOR] for poll in polls]

    assert 1 == len(set(cursors))
    assert int(first) < int(second) < int(cursors[0])


# Events.


def events(response: TestResponse) -> list[Event]:
    assert (200, "text/event-stream") == (response.status_code, response.headers["Content-Type"])
    return read_events(response.data)


def test_events_contain_chunks_and_control_messages(client, log, monkeypatch):
    monkeypatch.setattr(finite_reads, "LIVE_S", TIMEOUT_S)

    with client.get("/t?offset=-1&live=sse", buffered=False) as response:
        parts = iter(response.response)
        body = read_until(parts, b"control")
        append_soon(log)
        body += read_until(parts, b'"n":3')

    first, control, second, last, *_ = read_events(body)
    assert ["data", "control", "data", "control"] == [first.type, control.type, second.type, last.type]
    chunks = [[message["n"] for message in json.loads(event.data)] for event in (first, second)]
    assert [[0, 1, 2], [3]] == chunks
    state = json.loads(control.data)
    assert {"streamNextOffset", "streamCursor", "upToDate"} == set(state)
    assert state["upToDate"] is True
    assert client.get("/t?offset=now").headers[NEXT] == json.loads(last.data)["streamNextOffset"]


def test_events_end_with_an_error(client, log, monkeypatch):
    """The client reconnects, and gets the error as an HTTP status."""
    monkeypatch.setattr(finite_reads, "LIVE_S", TIMEOUT_S)
    monkeypatch.setattr(finite_reads, "LONG_POLL_S", 0.05)

    with client.get("/t?offset=-1&live=sse", buffered=False) as response:
        parts = iter(response.response)
        body = read_until(parts, b"control")
        log.delete("t")
        body += b"".join(parts)

    last = read_events(body)[-1]
    assert "control" == last.type
    offset = json.loads(last.data)["streamNextOffset"]
    assert 404 == client.get(f"/t?offset={offset}&live=sse").status_code


def test_a_chunk_of_several_parts_is_one_event(client, log):
    for number in range(3, 6):
        log.append("t", json.dumps({"n": number, "text": "x" * 70_000}).encode())

    with client.get("/t?offset=-1&live=sse", buffered=False) as response:
        parts = list(response.response)

    assert 3 <= len(parts)
    data, control, *_ = read_events(b"".join(parts))
    assert ["data", "control"] == [data.type, control.type]
    assert client.get("/t?offset=-1").get_json() == json.loads(data.data)


def test_events_start_with_a_control_message_if_there_are_no_records(client):
    first, *_ = events(client.get("/t?offset=now&live=sse"))

    assert "control" == first.type
    assert client.get("/t?offset=now").headers[NEXT] == json.loads(first.data)["streamNextOffset"]


def test_a_value_cannot_end_an_event(log):
    client = client_of(log, None, routes={"r": {"path": "/r", "topics": ["t"], "format": "value"}})
    text = "a\n\nevent: control\ndata: {}\n\n"
    log.append("t", text.encode())

    data, control, *_ = events(client.get("/r?offset=-1&live=sse"))

    assert text == json.loads(data.data)[-1]
    assert "control" == control.type


# As for streams.


def test_filters_fields_and_path_parameters(log):
    route = {"path": "/r/{key}", "topics": ["t"], "where": {"key": "{key}"}, "fields": ["n"], "format": "value"}
    client = client_of(log, None, client_filters=["filter"], routes={"r": route})
    log.append("t", b'{"n":7,"secret":1}', key=b"k1")

    assert [{"n": 1}, {"n": 7}] == client.get("/r/k1?offset=-1").get_json()
    assert [{"n": 7}] == client.get("/r/k1?offset=-1&filter=value.n>3").get_json()
    assert [] == client.get("/r/other?offset=-1").get_json()
    offset = client.get("/r/k1?offset=now").headers[NEXT]
    gevent.spawn_later(SOON_S, log.append, "t", b'{"n":8,"secret":1}', key=b"k1")
    assert [{"n": 8}] == client.get(f"/r/k1?offset={offset}&live=long-poll").get_json()


@pytest.mark.parametrize(
    "settings",
    [
        *({"format": name} for name in FORMATS),
        {"fields": ["n"]},
        {"where": {"key": ["k0", "k2"]}},
        {"where": {"expression": "offset != 1"}},
        {"newest_by": {"header": "v"}},
    ],
    ids=str,
)
def test_a_chunk_contains_the_lines_of_the_stream(log, settings):
    """Whatever the route says, byte for byte."""
    log.append("t", b'{"n":1}', key=b"k2")
    log.append("t", None, key=b"k0")
    client = client_of(log, None, routes={"r": {"path": "/r", "topics": ["t"], **settings}})
    chunk = client.get("/r?offset=-1").data

    with client.get("/r?since=1970-01-01", headers={"Accept": "application/x-ndjson"}, buffered=False) as stream:
        lines = read_until(stream.response, b"delete").strip()
    assert 3 <= len(json.loads(chunk))
    assert [*json.loads(chunk)] == [json.loads(line) for line in lines.split(b"\n") if line]
    assert sorted(line.strip(b",") for line in chunk[1:-1].split(b"\n")) == sorted(filter(None, lines.split(b"\n")))


def test_archived_records_are_not_gone(log, tmp_path):
    pytest.importorskip("pyarrow", reason="pip install pyarrow")
    from kafkasse.archive.directory import ArchiveDirectory
    from kafkasse.archive.log import ArchivedLog, ArchiveReader
    from tests.support.archive import archive

    offset = client_of(log, None).get("/t?offset=-1").headers[NEXT]
    directory = ArchiveDirectory(tmp_path)
    directory.create()
    for n in range(3, 9):
        log.append("t", b'{"n":%d}' % n)
    archive(tmp_path, log, "t")
    log.drop_before("t", 7)
    with closing(ArchivedLog(log, ArchiveReader(directory))) as archived:
        client = client_of(archived, None)

        assert [*range(9)] == numbers(client.get("/t?offset=-1"))
        assert [*range(3, 9)] == numbers(client.get(f"/t?offset={offset}"))


def test_a_client_has_a_limit(log):
    client = client_of(log, None, max_streams_per_client=1)
    with client.get("/t?offset=-1&live=sse", buffered=False):
        assert 429 == client.get("/t?offset=-1").status_code


def test_a_route_that_starts_with_a_snapshot(log):
    """The first chunk is the snapshot: the newest record of each key."""
    client = client_of(log, None, routes={"r": {"path": "/r", "topics": ["t"], "start": "snapshot"}})
    log.append("t", b'{"n":4}', key=b"k1")

    first = client.get("/r?offset=-1")
    log.append("t", b'{"n":5}', key=b"k1")

    *rows, end = first.get_json()
    assert [0, 2, 4] == sorted(row["n"] for row in rows)
    assert {"event": "position", "snapshot": "complete"} == end
    assert [5] == numbers(client.get(f"/r?offset={first.headers[NEXT]}"))


@pytest.fixture
def snapshots(log: MemoryLog) -> FlaskClient:
    """A route whose snapshot has several parts."""
    for n in range(3, 9):
        log.append("t", b'{"n":%d,"pad":"%s"}' % (n, b"x" * 100_000), key=b"k%d" % n)
    return client_of(log, None, routes={"r": {"path": "/r", "topics": ["t"], "start": "snapshot"}})


def test_a_snapshot_is_sent_in_parts(snapshots):
    """No response contains all of a large snapshot at once."""
    with snapshots.get("/r?offset=-1", buffered=False) as response:
        parts = list(response.response)

    assert "Content-Length" not in response.headers
    assert "ETag" not in response.headers
    assert 3 <= len(parts)
    *rows, _ = json.loads(b"".join(parts))
    assert [*range(9)] == sorted(row["n"] for row in rows)
    assert [] == numbers(snapshots.get(f"/r?offset={response.headers[NEXT]}"))


def test_events_contain_a_snapshot(snapshots):
    data, control, *_ = events(snapshots.get("/r?offset=-1&live=sse"))

    assert ["data", "control"] == [data.type, control.type]
    assert 10 == len(json.loads(data.data))


def test_a_snapshot_whose_rows_are_lost_is_cut_off(snapshots):
    """The client notices that the response is incomplete."""
    with snapshots.get("/r?offset=-1", buffered=False) as response:
        body = iter(response.response)
        assert b"[" == next(body)[:1]
        (read,) = streams.statuses()
        streams.end(read["id"])

        with pytest.raises(ConnectionResetError):
            list(body)


def test_a_read_whose_snapshot_ends_before_it_is_complete(log, monkeypatch):
    """Because the topic was recreated. The event loop runs meanwhile."""
    monkeypatch.setattr(finite_reads, "LONG_POLL_S", math.inf)
    route = {"path": "/r", "topics": ["t"], "start": "snapshot"}
    client = client_of(log, None, metadata_refresh_s=0.02, routes={"r": route})
    monkeypatch.setattr(type(log.cursor({})), "poll", lambda _, timeout_s: gevent.sleep(timeout_s) or [])
    gevent.spawn_later(0.2, lambda: (log.delete("t"), log.create("t", 2)))

    assert 503 == client.get("/r?offset=-1").status_code


def test_topics_that_match_a_pattern_join(log):
    route = {"path": "/r", "topics": ["t*"]}
    offset = client_of(log, None, routes={"r": route}).get("/r?offset=now").headers[NEXT]
    log.create("t2")
    log.append("t2", b'{"n":9}')

    response = client_of(log, None, routes={"r": route}).get(f"/r?offset={offset}")

    assert {"t", "t2"} == set(stream_offset.parse(response.headers[NEXT]).topics)
    assert [9] == numbers(response)


@pytest.mark.parametrize("offset", ["-1", "of another chunk"])
def test_a_topic_of_a_pattern_may_be_deleted_during_a_read(log, offset, monkeypatch):
    """The descriptions of the topics are up to a second old. Clients would end with an error."""
    log.create("t2")
    client = client_of(log, None, routes={"r": {"path": "/r", "topics": ["t*"]}})
    if offset != "-1":
        offset = client.get("/r?offset=-1").headers[NEXT]
        log.append("t", b'{"n":3}')
    start = finite_reads.RecordSource.start

    def delete_and_start(*arguments: Any) -> Any:
        monkeypatch.setattr(finite_reads.RecordSource, "start", start)
        log.delete("t2")
        return start(*arguments)

    monkeypatch.setattr(finite_reads.RecordSource, "start", delete_and_start)

    response = client.get(f"/r?offset={offset}")

    assert ([0, 1, 2] if offset == "-1" else [3]) == numbers(response)
    assert {"t"} == set(stream_offset.parse(response.headers[NEXT]).topics)


def test_pages_can_read_the_headers(log):
    client = client_of(log, None, cors_origins=["*"])

    exposed = client.get("/t?offset=-1", headers={"Origin": "https://x.example"}).headers[
        "Access-Control-Expose-Headers"
    ]

    assert {NEXT, LAST, CURSOR, "ETag"} <= set(exposed.split(", "))


@pytest.fixture
def guarded(log: MemoryLog, tmp_path: Path) -> FlaskClient:
    """A route in which each visitor has its own records."""
    (tmp_path / "jwks.json").write_bytes(key_set("rsa-1"))
    guards = {"customers": {"jwt": {**SETTINGS, "leeway_s": 0, "jwks_file": str(tmp_path / "jwks.json")}}}
    route = {"path": "/me", "topics": ["t"], "access": ["customers"], "where": {"key": "{claims.sub}"}}
    return client_of(log, None, guards=guards, routes={"me": route}, shared_cache_s=3600)


def bearer(sub: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(sub=sub)}"}


@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
def test_each_visitor_reads_its_own_records(guarded, live):
    assert 401 == guarded.get(f"/me?offset=-1{live}").status_code
    for n in (1, 2):
        response = guarded.get(f"/me?offset=-1{live}", headers=bearer(f"k{n}"))
        body = Parser().receive(response.data).__next__().data if live.endswith("sse") else response.text
        assert [n] == [message["n"] for message in json.loads(body)]


@dataclass
class Login:
    """The login of an app. Its guard identifies one visitor."""

    expires_at: float = math.inf

    def __call__(self, _: object) -> Visitor | None:
        return Visitor(name="grace", expires_at=self.expires_at)

    def expire(self) -> None:
        self.expires_at = time.time() + 0.5  # after the request was identified

    def log_out(self) -> None:
        gevent.spawn(lambda: self._opened() and end_streams("grace"))

    def end(self) -> None:
        """As an operator does."""
        gevent.spawn(lambda: streams.end(self._opened()["id"]))

    def _opened(self) -> dict[str, Any]:
        """Wait until the visitor reads, and return the status of the read."""
        while True:
            for status in streams.statuses():
                if ("r", "grace", "finite_read") == (status["route"], status["visitor"], status["state"]):
                    return status
            gevent.sleep(SOON_S)


@pytest.fixture
def login() -> Login:
    return Login()


@pytest.fixture
def session(log: MemoryLog, login: Login) -> FlaskClient:
    """A route that the visitor of an app reads."""
    route = {"path": "/r", "topics": ["t"], "access": ["session"]}
    return client_of(log, None, guards={"session": login}, routes={"r": route})


ENDS = [(Login.expire, 401), (Login.log_out, 401), (Login.end, 503)]


@pytest.mark.parametrize(("end", "status"), ENDS)
def test_a_long_poll_ends_when_access_ends(session, login, end, status):
    """Without a record."""
    offset = session.get("/r?offset=now", buffered=True).headers[NEXT]
    end(login)

    response = session.get(f"/r?offset={offset}&live=long-poll")

    assert (status, "no-store") == (response.status_code, response.headers["Cache-Control"])


@pytest.mark.parametrize(("end", "_"), ENDS)
def test_events_end_when_access_ends(session, login, monkeypatch, end, _):
    monkeypatch.setattr(finite_reads, "LIVE_S", math.inf)
    if end is Login.expire:
        end(login)

    with session.get("/r?offset=now&live=sse", buffered=False) as response:
        parts = iter(response.response)
        body = read_until(parts, b"control")
        if end is not Login.expire:
            end(login)
        body += b"".join(parts)

    assert ["control"] == [event.type for event in read_events(body)]


def test_a_long_poll_outlives_one_whose_access_ends(session, login, log):
    """They share a read."""
    url = f"/r?offset={session.get('/r?offset=now', buffered=True).headers[NEXT]}&live=long-poll"
    other = gevent.spawn(session.application.test_client().get, url)
    gevent.sleep(0)
    login.expire()

    assert 401 == session.get(url).status_code
    log.append("t", b'{"n":3}')
    assert [3] == numbers(other.get())


def test_a_long_poll_ends_when_its_api_key_is_revoked(log, tmp_path, monkeypatch):
    key, line = create_key("a")
    (keys := tmp_path / "keys").write_text(line)
    guards = {"partners": {"api_keys": {"file": str(keys)}}}
    client = client_of(log, None, guards=guards, routes={"r": {"path": "/r", "topics": ["t"], "access": ["partners"]}})
    while_waiting(monkeypatch, lambda: keys.write_text(""))

    response = client.get("/r?offset=now&live=long-poll", headers={"Authorization": f"Bearer {key}"})

    assert 401 == response.status_code


QUERIES = ["offset=-1", "offset=now", "offset=-1&live=long-poll", "offset=now&live=long-poll", "offset=-1&live=sse"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("query", QUERIES)
def test_no_cache_stores_the_records_of_a_visitor(guarded, query):
    """Not even if the setting for public streams allows caches."""
    for method in ("GET", "HEAD"):
        headers = guarded.open(f"/me?{query}", method=method, headers=bearer("k1")).headers

        assert {"private", "no-store"} <= set(headers["Cache-Control"].split(", "))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("query", QUERIES)
def test_by_default_no_cache_stores_a_stream(client, query):
    """The app around the blueprint may check a login."""
    for method in ("GET", "HEAD"):
        headers = client.open(f"/t?{query}", method=method).headers

        assert {"private", "no-store"} <= set(headers["Cache-Control"].split(", "))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("query", QUERIES)
def test_no_cache_stores_the_cookie_of_a_visitor(log, query):
    """An app may start a session with any request. Its cookie must not reach another visitor with the chunk."""
    client = client_of(log, None, shared_cache_s=3600)
    client.application.secret_key = "secret"  # noqa: S105 - of a test
    client.application.before_request(lambda: flask_session.update(visits=1))

    first, second = (client.get(f"/t?{query}").headers for _ in range(2))

    assert "Set-Cookie" in first
    assert {"private", "no-store"} <= set(first["Cache-Control"].split(", "))
    assert "Set-Cookie" not in second


def test_a_client_cannot_put_links_into_a_cache(log):
    """The links start with X-Forwarded-Prefix, which a proxy may forward from a client."""
    for seconds in (0, 3600):
        headers = client_of(log, None, shared_cache_s=seconds, catalog=True).get("/t?offset=-1").headers

        assert ("Link" in headers) == ("public" not in headers["Cache-Control"]) == (seconds == 0)


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full chunks have two records."""
    monkeypatch.setattr(core, "BLOCK_OFFSETS", 2)
    monkeypatch.setattr(core, "CHUNK_BLOCKS", 1)


@pytest.fixture
def cached(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> FlaskClient:
    """Shared caches may keep chunks. Blocks have two records."""
    small_blocks(monkeypatch)
    return client_of(log, None, shared_cache_s=3600)


@pytest.mark.parametrize("cache", ["the memory of the worker", "a CDN"])
def test_a_client_that_waits_passes_cached_chunks_of_a_lost_history(monkeypatch, cache):
    """The long poll that notices the truncation answers 410. The next offset differs from those of the lost records."""
    small_blocks(monkeypatch)
    if cache == "a CDN":
        monkeypatch.setattr(shared_chunks, "MAX_AGE_S", 0.0)
    log = MemoryLog()
    log.create("t")
    log.elect_leader("t")
    for n in range(5):
        log.append("t", b'{"n":%d}' % n)
    client = client_of(log, None, shared_cache_s=3600)
    cdn: dict[str, TestResponse] = {}
    received: list[Any] = []

    def read(offset: str, live: str = "") -> TestResponse:
        url = f"/t?offset={offset}{live}"
        response = cdn.get(url) or client.get(url)
        if cache == "a CDN" and "max-age=3600" in response.headers["Cache-Control"]:
            cdn[url] = response
        for message in response.get_json() if response.status_code == 200 else [response.status_code]:
            received.append(message if message == 410 else message.get("n", message.get("event")))
        return response

    def read_to_end(offset: str) -> str:
        while not (response := read(offset)).headers.get(LAST):
            offset = response.headers[NEXT]
        return response.headers[NEXT]

    offset = read_to_end("-1")
    for n in range(5, 8):
        log.append("t", b'{"n":%d}' % n)
    offset = read_to_end(offset)
    while_waiting(monkeypatch, lambda: log.append("t", b'{"n":8}'))
    offset = read(offset, "&live=long-poll").headers[NEXT]
    received.clear()
    while_waiting(monkeypatch, lambda: log.truncate("t", 5))
    offset = read(offset, "&live=long-poll").headers[NEXT]
    for n in range(100, 103):
        log.append("t", b'{"n":%d}' % n)
    read_to_end(offset)

    assert [410, 100, 101, 102] == received


@pytest.mark.parametrize("cache", ["the memory of the worker", "a CDN"])
@pytest.mark.parametrize("truncated_at", [4, 5, 0])
def test_clients_pass_cached_chunks_of_a_lost_history(monkeypatch, cache, truncated_at):
    """After the truncation, their offsets differ from those of the lost history, so that they get other chunks."""
    small_blocks(monkeypatch)
    if cache == "a CDN":
        monkeypatch.setattr(shared_chunks, "MAX_AGE_S", 0.0)
    log = MemoryLog()
    log.create("t", 2)
    for partition in range(2):
        log.elect_leader("t", partition)
        for n in range(9):
            log.append("t", b'{"n":%d}' % n, partition=partition)
    client = client_of(log, None, shared_cache_s=3600)
    cdn: dict[str, TestResponse] = {}

    def read(offset: str) -> TestResponse:
        response = cdn.get(offset) or client.get(f"/t?offset={offset}")
        if cache == "a CDN" and "max-age=3600" in response.headers["Cache-Control"]:
            cdn[offset] = response
        return response

    def read_to_end(offset: str) -> tuple[list[Any], str]:
        messages: list[Any] = []
        while not (response := read(offset)).headers.get(LAST):
            assert len(messages) < 100
            messages += response.get_json() if response.status_code == 200 else [response.status_code]
            offset = response.headers[NEXT]
        return messages + response.get_json(), response.headers[NEXT]

    _, offset = read_to_end("-1")
    for truncation in range(1, 4):
        log.truncate("t", truncated_at, partition=1)
        for n in range(6):
            log.append("t", b'{"n":%d}' % (100 * truncation + n), partition=1)

        messages, offset = read_to_end(offset)
        assert [410, *(100 * truncation + n for n in range(6))] == [
            message if message == 410 else message["n"] for message in messages
        ]


def test_a_long_poll_waits_after_a_truncation(client, log):
    """Also before the new leader has written records."""
    log.elect_leader("t")
    log.append("t", b'{"n":3}')
    offset = client.get("/t?offset=-1").headers[NEXT]
    log.truncate("t", 2)
    offset = client.get(f"/t?offset={offset}").get_json()["next_offset"]
    append_soon(log, b'{"n":4}')

    assert [4] == numbers(client.get(f"/t?offset={offset}&live=long-poll"))


def test_a_cache_keeps_no_chunk_for_much_longer_than_the_setting(log):
    caching = client_of(log, None, shared_cache_s=2).get("/t?offset=-1").headers["Cache-Control"]

    assert "public, max-age=1, stale-while-revalidate=2" == caching


@pytest.mark.parametrize("live", ["", "&live=long-poll", "&live=sse"])
def test_an_offset_of_other_topics_is_gone(log, live):
    """A route may lose topics. A client continues at the start of the others, and knows that it has done so."""
    log.create("u")
    routes = {name: {"path": f"/{name}", "topics": [name]} for name in "tu"}
    client = client_of(log, None, routes=routes, shared_cache_s=3600)
    offset = client.get("/u?offset=now").headers[NEXT]

    response = client.get(f"/t?offset={offset}{live}")

    assert 410 == response.status_code
    assert [0, 1, 2] == numbers(client.get(f"/t?offset={response.headers[NEXT]}"))


@pytest.mark.usefixtures("impatient")
def test_a_shared_cache_may_keep_a_full_chunk_for_long(cached, log):
    """And all others only so long that it collapses the requests of many clients. Errors and events are not stored.

    While one request replaces a chunk, others may get the old one.
    """
    log.append("t", b'{"n":3}')
    first = cached.get("/t?offset=-1")
    full = cached.get(f"/t?offset={(start := first.headers[NEXT])}")
    log.append("t", b'{"n":4}')
    full_again = cached.get(f"/t?offset={start}")
    last = cached.get(f"/t?offset={full.headers[NEXT]}")
    poll = cached.get(f"/t?offset={last.headers[NEXT]}&live=long-poll")

    responses = [first, full, full_again, last, poll]
    assert [0, 1] == numbers(first)
    assert [2, 3] == numbers(full_again)
    # The first chunk changes with retention, and the second one was the last one.
    caching = [f"public, max-age={age}, stale-while-revalidate=10" for age in (1, 1, 3600, 1, 1)]
    assert caching == [response.headers["Cache-Control"] for response in responses]
    for query in ("offset=now", "offset=-1&live=sse", "offset=x"):
        assert "no-store" in cached.get(f"/t?{query}").headers["Cache-Control"]
    assert "no-store" in cached.head("/t?offset=now").headers["Cache-Control"]


# Sharing reads.


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """The offsets of all chunks that have been read."""
    reads: list[str] = []
    read = Chunks.read
    monkeypatch.setattr(
        Chunks, "read", lambda self, start, *rest: reads.append(stream_offset.of(start.ids)) or read(self, start, *rest)
    )
    return reads


def test_a_full_chunk_is_read_once(cached, log, reads):
    """Also for a client that would wait at the end of the log. The last chunk is read again."""
    for n in range(3, 6):
        log.append("t", b'{"n":%d}' % n)
    start = cached.get("/t?offset=-1").headers[NEXT]
    reads.clear()

    responses = [cached.get(f"/t?offset={start}{live}") for live in ("", "", "&live=long-poll")]

    assert [[2, 3]] * 3 == [numbers(response) for response in responses]
    assert [start] == reads
    for _ in range(2):
        cached.get(f"/t?offset={responses[0].headers[NEXT]}")
    assert 3 == len(reads)


def test_equal_requests_share_a_read(client, log, reads):
    """Requests for other topics do not."""
    log.create("u")
    log.append("u", b'{"n":7}')
    urls = ["/t?offset=-1"] * 5 + ["/u?offset=-1"] * 5

    tasks = [gevent.spawn(client.application.test_client().get, url) for url in urls]

    assert [[0, 1, 2]] * 5 + [[7]] * 5 == [numbers(task.get()) for task in tasks]
    assert 2 == len(reads)


def test_different_selections_do_not_share_chunks(log, monkeypatch):
    """One after the other, and at the same time."""
    small_blocks(monkeypatch)
    client = client_of(log, None, client_filters=["filter"])
    for n in range(3, 6):
        log.append("t", b'{"n":%d}' % n)
    start = client.get("/t?offset=-1").headers[NEXT]
    for _ in range(2):
        for n in (2, 3):
            assert [n] == numbers(client.get(f"/t?offset={start}&filter=value.n=={n}"))
    log.append("t", b'{"n":9}', timestamp=1)
    urls = ["/t?offset=-1&since=1970-01-01", "/t?offset=-1&since=2999-01-01"]

    tasks = [gevent.spawn(client.application.test_client().get, url) for url in urls]

    assert [[0, 1], []] == [numbers(task.get()) for task in tasks]


def test_the_chunk_at_the_beginning_is_not_kept(cached, log):
    """Retention may remove its records, and a client whose next offset is gone starts there again."""
    for n in range(3, 6):
        log.append("t", b'{"n":%d}' % n)
    assert [0, 1] == numbers(cached.get("/t?offset=-1"))
    log.drop_before("t", 2)

    assert [2, 3] == numbers(cached.get("/t?offset=-1"))


def test_a_read_does_not_wait_with_a_long_poll(client, log):
    offset = client.get("/t?offset=now").headers[NEXT]
    poll = gevent.spawn(client.application.test_client().get, f"/t?offset={offset}&live=long-poll")
    gevent.sleep(0)

    assert [] == numbers(client.get(f"/t?offset={offset}"))
    log.append("t", b'{"n":3}')
    assert [3] == numbers(poll.get())


def test_long_polls_at_one_offset_share_a_reader(client, log, monkeypatch):
    """One wake-up answers all of them."""
    opened = []
    open_reader = Feeds.open
    monkeypatch.setattr(Feeds, "open", lambda *args, **options: opened.append(1) or open_reader(*args, **options))
    url = f"/t?offset={client.get('/t?offset=now').headers[NEXT]}&live=long-poll"
    tasks = [gevent.spawn(client.application.test_client().get, url) for _ in range(20)]
    wait_until(lambda: opened)
    log.append("t", b'{"n":3}')

    assert [[3]] * 20 == [numbers(task.get()) for task in tasks]
    assert 1 == len(opened)


def test_a_chunk_of_a_recreated_topic_is_not_kept(cached, log):
    for n in range(3, 6):
        log.append("t", b'{"n":%d}' % n)
    start = cached.get("/t?offset=-1").headers[NEXT]
    assert [2, 3] == numbers(cached.get(f"/t?offset={start}"))
    log.delete("t")
    log.create("t")
    gevent.sleep(MAX_DESCRIPTION_AGE_S)

    assert 410 == cached.get(f"/t?offset={start}").status_code


def test_visitors_do_not_share_the_chunks_of_their_streams(guarded, log, monkeypatch):
    """Also with the same offset, whose chunk is full, and at the same time."""
    small_blocks(monkeypatch)
    log.append("t", b'{"n":3}', key=b"k2")
    log.append("t", b"{}")
    start = guarded.get("/me?offset=-1", headers=bearer("k1")).headers[NEXT]
    url = f"/me?offset={start}"

    for _ in range(2):
        assert [[], [], [2, 3]] == [numbers(guarded.get(url, headers=bearer(f"k{n}"))) for n in range(3)]
    tasks = [gevent.spawn(guarded.application.test_client().get, url, headers=bearer(f"k{n % 3}")) for n in range(6)]
    assert [[], [], [2, 3]] * 2 == [numbers(task.get()) for task in tasks]
