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
    MethodNotAllowed,
    NotAcceptable,
    RequestTooLarge,
)
from kafkasse.frame import JsonLines, ServerSentEvents
from kafkasse.log import Partition
from kafkasse.position import PartitionStart
from kafkasse.route import Route
from kafkasse.web.request import StreamRequest, parse_request

OPEN = Route("topics", "/<topics>", None)
NAMED = Route("topn", "/topn/updates", ("topn", "more"))
ID = '[{"topic":"t","partition":0,"offset":5}]'
EVENTS, LINES, JSON = "text/event-stream", "application/x-ndjson", "application/json"


def ask(
    topics: str = "t",
    query: dict[str, str] | str | None = None,
    headers: dict[str, str] | None = None,
    route: Route = OPEN,
    method: str = "GET",
    **settings: Any,
) -> StreamRequest:
    environ = EnvironBuilder(f"/{topics}", query_string=query, headers=Headers(headers), method=method).get_environ()
    return parse_request(Flask.request_class(environ), route, topics, Config(**settings).web)


# Topics.


def test_parses_the_topics_of_the_path() -> None:
    """Separated by commas, each once, in order, without surrounding white space."""
    assert ("b", "a", "c") == ask("b,a,%20c,b".replace("%20", " ")).position.topics


@pytest.mark.parametrize("topics", ["a,", ",a", "a,,b", ",", " "])
def test_refuses_an_empty_topic_name(topics: str) -> None:
    """An extra comma is a mistake, not a topic."""
    with pytest.raises(InvalidParameter, match="empty topic name"):
        ask(topics)


def test_a_route_has_its_own_topics() -> None:
    """The path names none."""
    assert ("topn", "more") == ask("", route=NAMED).position.topics


def test_refuses_too_many_topics() -> None:
    """The message has both numbers. The limit applies to event IDs too."""
    with pytest.raises(InvalidParameter, match="You requested 3 topics; a stream can have 2"):
        ask("a,b,c", max_topics_per_stream=2)
    with pytest.raises(InvalidParameter, match="You requested 3 topics; a stream can have 2"):
        ask("a", headers={"Last-Event-ID": '["a","b","c"]'}, max_topics_per_stream=2)


# Where to start.


def test_the_last_event_id_header_takes_precedence() -> None:
    """Over its query parameters, over times, and over the topics of the path."""
    asked = ask("u", {"last_event_id": '["v"]', "since": "2026-01-01"}, {"Last-Event-ID": ID})

    assert ({Partition("t", 0): PartitionStart(5)}, ("t",), None) == (
        asked.position.starts,
        asked.position.topics,
        asked.since,
    )


@pytest.mark.parametrize("name", ["last_event_id", "lastEventId"])
def test_a_query_parameter_can_replace_the_header(name: str) -> None:
    """Browsers cannot set the header when they connect for the first time. Both spellings work."""
    assert {Partition("t", 0): PartitionStart(5)} == ask("u", {name: ID}).position.starts


@pytest.mark.parametrize("place", ["header", "last_event_id", "lastEventId"])
@pytest.mark.parametrize("text", ["", "0", "null", "[", "[[", '["é"]', '["\u0219"]', "~", "\x7f"])
def test_refuses_an_invalid_event_id(place: str, text: str) -> None:
    """In the header and in the query. Zilla starts at the beginning instead."""
    by_header, by_query = {"Last-Event-ID": text.encode().decode("latin-1")}, {place: text}

    with pytest.raises(InvalidPosition):
        _ = ask(headers=by_header) if place == "header" else ask(query=by_query)


def test_refuses_an_event_id_that_is_too_long() -> None:
    """431 for the header, 414 for the query, both with advice; an ID of the maximum length is parsed."""
    fits = '["' + "a" * 252 + '"]'

    with pytest.raises(HeaderTooLarge, match=r"longer than 256 bytes.*compact"):
        ask(headers={"Last-Event-ID": fits + " "}, max_last_event_id_bytes=256)
    with pytest.raises(RequestTooLarge, match=r"longer than 256 bytes.*compact"):
        ask(query={"last_event_id": fits + " "}, max_last_event_id_bytes=256)
    with pytest.raises(InvalidPosition, match="does not match"):
        ask(headers={"Last-Event-ID": fits}, max_last_event_id_bytes=256)


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
        ("since=9999-12-31T23:59:59-23:59", 253402387139000),  # beyond the calendar, in UTC
    ],
)
def test_parses_times(query: str, since: int) -> None:
    """Milliseconds, or ISO 8601 with an offset or in UTC, as milliseconds since 1970."""
    assert since == ask(query=query).since


@given(st.integers(0, 253402300799999))
def test_keeps_the_milliseconds_of_a_time(milliseconds: int) -> None:
    """No rounding."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)

    assert milliseconds == ask(query={"since": moment.isoformat()}).since


@pytest.mark.parametrize(
    "query",
    [
        *(
            "timestamp=",
            "timestamp=-1",
            "timestamp=1.5",
            "timestamp=1e3",
            "timestamp=now",
            "timestamp=9223372036854775808",
        ),
        *("timestamp=%D9%A3", "timestamp=0x10", "timestamp=" + "9" * 5000, "timestamp=%201", "timestamp=1_000"),
        *(
            "since=",
            "since=yesterday",
            "since=1969-12-31",
            "since=2026-13-01",
            "since=2026-11-21T25:00",
            "since=0001-01-01",
        ),
        *("since=1790000000000", "since=%00", "timestamp=0&since=2026-11-21"),
    ],
)
def test_refuses_an_invalid_time(query: str) -> None:
    """The message names the parameter."""
    with pytest.raises(InvalidParameter, match=r"timestamp|since"):
        ask(query=query)


def test_ignores_unknown_parameters() -> None:
    """They may belong to a proxy or to the host app."""
    assert ask(query={"utm_source": "x", "timestamps": "x"}).since is None


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
def test_negotiates_the_content_type(accept: str | None, content_type: str) -> None:
    """Server-Sent Events, unless the client prefers JSON lines under either of their names."""
    asked = ask(headers={} if accept is None else {"Accept": accept})

    assert f"{content_type}; charset=utf-8" == asked.content_type
    assert (ServerSentEvents if content_type == EVENTS else JsonLines) is type(asked.wire)


@pytest.mark.parametrize(
    "accept", ["text/html", "image/*", f"{EVENTS};q=0", "*/*;q=0", "x", ";;;", "text/plain, application/xml"]
)
def test_refuses_a_request_that_accepts_no_offered_type(accept: str) -> None:
    """The error lists the offered types."""
    with pytest.raises(NotAcceptable) as refused:
        ask(headers={"Accept": accept})

    assert {EVENTS, LINES, JSON} == set(refused.value.extra["offered"])


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_accepts_get_and_head_only(method: str) -> None:
    """HEAD is parsed like GET."""
    with pytest.raises(MethodNotAllowed, match=method):
        ask(method=method)
    assert ask(method="HEAD").position.topics == ("t",)


# Any request.


@given(st.text(), st.text(), st.dictionaries(st.sampled_from(["timestamp", "since", "last_event_id"]), st.text()))
def test_parses_or_refuses_any_request(topics: str, accept: str, query: dict[str, str]) -> None:
    """Every path, header and parameter gives a parsed request, or an error that can be sent."""
    environ = EnvironBuilder("/", query_string=query).get_environ()
    environ["HTTP_ACCEPT"] = accept.encode("utf-8", "replace").decode("latin-1")
    environ["HTTP_LAST_EVENT_ID"] = topics.encode("utf-8", "replace").decode("latin-1")
    if not topics:
        del environ["HTTP_LAST_EVENT_ID"]
    try:
        parse_request(Flask.request_class(environ), OPEN, topics, Config().web)
    except KafkasseError as refused:
        assert isinstance(refused, BadRequest | NotAcceptable)  # noqa: PT017 - it need not be refused
        json.dumps(refused.problem(), ensure_ascii=False).encode()
