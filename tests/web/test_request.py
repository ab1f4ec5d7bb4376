"""Parsing a request: the path, the headers and the query parameters."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.datastructures import Headers
from werkzeug.test import EnvironBuilder

from kafkasse.config import Config
from kafkasse.errors import (
    BadRequest,
    HeaderTooLarge,
    InvalidParameter,
    InvalidPosition,
    KafkasseError,
    NotAcceptable,
    RequestTooLarge,
)
from kafkasse.log import Partition
from kafkasse.records.frame import JsonLines, ServerSentEvents
from kafkasse.records.position import Place
from kafkasse.route import Route
from kafkasse.web.request import StreamRequest, is_finite_read, parse_request

OPEN = Route("topics", "/{topics}", None)
ID = '[{"topic":"t","partition":0,"offset":5}]'
EVENTS, LINES, JSON = "text/event-stream", "application/x-ndjson", "application/json"


def stream_request(
    topics: str = "t",
    query: dict[str, str] | str | None = None,
    headers: dict[str, str] | None = None,
    route: Route = OPEN,
    **settings: Any,
) -> StreamRequest:
    environ = EnvironBuilder(f"/{topics}", query_string=query, headers=Headers(headers)).get_environ()
    request = Flask.request_class(environ)
    return parse_request(request, route, topics, Config(**settings).web, is_finite_read(request))


# Topics.


def test_parses_the_topics_of_the_path():
    """The path contains topics separated by commas. Duplicates and surrounding spaces are removed; the order is kept."""
    assert ("b", "a", "c") == stream_request("b,a,%20c,b".replace("%20", " ")).position.topics


@pytest.mark.parametrize("topics", ["a,", ",a", "a,,b", ",", " "])
def test_rejects_an_empty_topic_name(topics):
    with pytest.raises(InvalidParameter, match="empty topic name"):
        stream_request(topics)


def test_a_group_stands_for_its_topics():
    """A client can combine groups and topics, and receives each topic once."""
    route = Route("topics", "/{topics}", None, groups=(("changes", ("eu.c", "us.c")), ("a", ("a", "eu.c"))))

    assert ("eu.c", "us.c", "b", "a") == stream_request("changes,b,a", route=route).position.topics
    with pytest.raises(InvalidParameter, match="You requested 3 topics; a stream can have 2"):
        stream_request("changes,b", route=route, max_topics_per_stream=2)


def test_rejects_too_many_topics():
    """The message contains the requested number and the limit, which applies to event IDs too."""
    for topics, headers in [("a,b,c", {}), ("a", {"Last-Event-ID": '["a","b","c"]'})]:
        with pytest.raises(InvalidParameter, match="You requested 3 topics; a stream can have 2"):
            stream_request(topics, headers=headers, max_topics_per_stream=2)


# Where to start.


def test_the_last_event_id_header_takes_precedence():
    """The header overrides the query parameters and the topics of the path."""
    parsed = stream_request("u", {"last_event_id": '["v"]', "since": "2026-01-01"}, {"Last-Event-ID": ID})

    assert {Partition("t", 0): Place(5)} == parsed.position.starts
    assert (("t",), None) == (parsed.position.topics, parsed.since)


def test_the_names_in_an_event_id_start_at_the_time_of_the_query():
    """As in KafkaSSE, `timestamp` applies to the topics that an event ID contains by name."""
    parsed = stream_request("u", {"timestamp": "7"}, {"Last-Event-ID": '["v",{"topic":"t","partition":0,"offset":5}]'})

    assert (("v",), 7) == (parsed.position.named_topics, parsed.since)


@pytest.mark.parametrize(
    ("start_time_ms", "query", "since"),
    [(5, None, 5), (-60_000, None, 3_600_000 - 60_000), (-7_200_000, None, 0), (5, {"timestamp": "7"}, 7)],
)
def test_the_start_time_of_a_route(monkeypatch, start_time_ms, query, since):
    """A client starts at the route's time, or that long before it connects, unless it requests another time."""
    monkeypatch.setattr("time.time_ns", lambda: 3_600_000 * 1_000_000)
    route = Route("a", "/a", ("t",), start_time_ms=start_time_ms)

    assert since == stream_request(query=query, route=route).since


def test_topics_without_a_position_start_at_the_start_time_of_the_route():
    """A topic that was added to the route after the event ID was issued starts where the route starts new clients."""
    route = Route("a", "/a", ("t", "added"), start_time_ms=5)
    issued = '[{"topic":"t","partition":0,"offset":5,"topic_id":"kQ3d8y1Z"}]'

    parsed = stream_request(headers={"Last-Event-ID": issued}, route=route)

    assert (("added",), 5) == (route.adapt(parsed.position).named_topics, parsed.since)


@pytest.mark.parametrize("name", ["last_event_id", "lastEventId"])
def test_a_query_parameter_can_replace_the_header(name):
    """Browsers cannot set the header when they connect for the first time. Both spellings work."""
    assert {Partition("t", 0): Place(5)} == stream_request("u", {name: ID}).position.starts


def test_an_empty_event_id_counts_as_absent():
    """Some clients send an empty Last-Event-ID header until they have received an ID. The next source then applies."""
    empty = {"Last-Event-ID": ""}

    assert 7 == stream_request("t", {"timestamp": "7", "last_event_id": ""}, empty).since
    parsed = stream_request("u", {"last_event_id": "", "lastEventId": ID}, empty)
    assert {Partition("t", 0): Place(5)} == parsed.position.starts


@pytest.mark.parametrize("place", ["header", "last_event_id", "lastEventId"])
@pytest.mark.parametrize("text", ["0", "null", "[", "[[", '["é"]', '["\u0219"]', "~", "\x7f"])
def test_rejects_an_invalid_event_id(place, text):
    """An invalid event ID is an error in the header and in the query. Zilla would start at the beginning."""
    by_header, by_query = {"Last-Event-ID": text.encode().decode("latin-1")}, {place: text}

    with pytest.raises(InvalidPosition):
        _ = stream_request(headers=by_header) if place == "header" else stream_request(query=by_query)


def test_rejects_an_event_id_that_is_too_long():
    """The status is 431 for the header and 414 for the query, both with advice. An ID of the maximum length is parsed."""
    fits = '["' + "a" * 252 + '"]'

    with pytest.raises(HeaderTooLarge, match=r"longer than 256 bytes.*compact"):
        stream_request(headers={"Last-Event-ID": fits + " "}, max_last_event_id_bytes=256)
    with pytest.raises(RequestTooLarge, match=r"longer than 256 bytes.*compact"):
        stream_request(query={"last_event_id": fits + " "}, max_last_event_id_bytes=256)
    with pytest.raises(InvalidPosition, match="does not match"):
        stream_request(headers={"Last-Event-ID": fits}, max_last_event_id_bytes=256)


@pytest.mark.parametrize(
    ("query", "since"),
    [
        ("timestamp=0", 0),
        ("timestamp=1790000000000", 1790000000000),
        ("timestamp=9223372036854775807", 2**63 - 1),
        ("since=1970-01-01", 0),
        ("since=2026-11-21T10:00:00Z", 1795255200000),
        ("since=2026-11-21T10:00:00", 1795255200000),
        ("since=2026-11-21T10:00:00.123Z", 1795255200123),
        ("since=2026-11-21T12:00:00%2B02:00", 1795255200000),
        ("since=2026-11-21T12:00:00+02:00", 1795255200000),  # a "+" that was not escaped
        ("since=2026-11-21T05:00:00-05:00", 1795255200000),
        ("since=2026-11-21%2010:00:00", 1795255200000),
        ("since=20261121T100000Z", 1795255200000),
        ("since=20261121", 1795219200000),
        ("since=1795255200000", 1795255200000),
        ("since=1711231200000", 1711231200000),  # Python would read it as a time on 1711-12-31
        ("since=9999-12-31T23:59:59-23:59", 253402387139000),  # beyond the calendar, in UTC
        ("utm_source=x&timestamps=x", None),  # they may belong to a proxy or to the host app
    ],
)
def test_parses_times(query, since):
    """Milliseconds and ISO 8601 times, in UTC or with an offset, become milliseconds since 1970."""
    assert since == stream_request(query=query).since


@given(st.integers(0, 253402300799999))
def test_keeps_the_milliseconds_of_a_time(milliseconds):
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)

    assert milliseconds == stream_request(query={"since": moment.isoformat()}).since


@pytest.mark.parametrize(
    "query",
    [
        *[f"timestamp={text}" for text in ("", "-1", "1.5", "1e3", "now", 2**63, "%D9%A3", "0x10", "%201", "1_000")],
        *[f"since={text}" for text in ("", "yesterday", "1969-12-31", "2026-13-01", "2026-11-21T25:00", "0001-01-01")],
        *[f"since={text}" for text in (2**63, "%D9%A1", "%00", "2026-11-21&timestamp=0")],
        "timestamp=" + "9" * 5000,
    ],
)
def test_rejects_an_invalid_time(query):
    """The message names the parameter."""
    with pytest.raises(InvalidParameter, match=r"timestamp|since"):
        stream_request(query=query)


# Wire formats.


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (None, EVENTS),
        ("", EVENTS),
        ("*/*", EVENTS),
        ("text/*", EVENTS),
        (EVENTS, EVENTS),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", EVENTS),
        (f"{EVENTS};charset=utf-8", EVENTS),
        (JSON, JSON),
        (LINES, LINES),
        ("application/*", LINES),
        (f"{JSON}, {EVENTS}", EVENTS),
        (f"{JSON};q=0.5, {EVENTS};q=0.4", JSON),
        (f"{JSON}, {EVENTS};q=0", JSON),
        (f"{JSON}, */*;q=0.1", JSON),
        (f"{EVENTS};q=0, */*", LINES),
        (JSON.upper(), JSON),
    ],
)
def test_negotiates_the_content_type(accept, content_type):
    parsed = stream_request(headers={} if accept is None else {"Accept": accept})

    assert f"{content_type}; charset=utf-8" == parsed.content_type
    assert (ServerSentEvents if content_type == EVENTS else JsonLines) is type(parsed.wire)


@pytest.mark.parametrize(
    "accept", ["text/html", "image/*", f"{EVENTS};q=0", "*/*;q=0", "x", ";;;", "text/plain, application/xml"]
)
def test_rejects_a_request_that_accepts_no_offered_type(accept):
    with pytest.raises(NotAcceptable) as rejected:
        stream_request(headers={"Accept": accept})

    assert {EVENTS, LINES, JSON} == set(rejected.value.extra["offered"])


# Any request.


@given(st.text(), st.text(), st.dictionaries(st.sampled_from(["timestamp", "since", "last_event_id"]), st.text()))
def test_parses_or_rejects_any_request(topics, accept, query):
    """Every combination of path, headers and parameters is parsed, or raises an error that can be sent as JSON."""
    environ = EnvironBuilder("/", query_string=query).get_environ()
    environ["HTTP_ACCEPT"] = accept.encode("utf-8", "replace").decode("latin-1")
    environ["HTTP_LAST_EVENT_ID"] = topics.encode("utf-8", "replace").decode("latin-1")
    try:
        parse_request(Flask.request_class(environ), OPEN, topics, Config().web, is_finite=False)
    except KafkasseError as rejected:
        assert isinstance(rejected, BadRequest | NotAcceptable)  # noqa: PT017 - it need not be rejected
        json.dumps(rejected.problem(), ensure_ascii=False).encode()
