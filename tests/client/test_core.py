"""The rules that all clients share."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasse_client.core import (
    MAX_BACKOFF_S,
    MAX_RETRY_S,
    MIN_BACKOFF_S,
    Core,
    End,
    Retryable,
    Silence,
    StreamError,
    retry_after_s,
    wait_s,
)
from kafkasse_client.fallback import FIRST_EVENT_S, Fallback
from kafkasse_client.sse import Event
from tests.client.script import message

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *[("5", 5), ("0", 0), (format_datetime(NOW + timedelta(seconds=90)), 90)],
        *[("", None), ("soon", None), ("-1", None), ("Fri, 99 Foo 2026 12:00:00 GMT", None)],
        ("Fri, 31 Jan 2026 12:00:00 +99999999999999999", None),
    ],
)
def test_parses_retry_after(value, seconds):
    assert seconds == retry_after_s(value, NOW)


@given(st.integers(0, 10**6), st.floats(0, 10**12), st.floats(-(10**12), 10**12))
def test_the_wait_has_limits(failures, retry_s, requested_s):
    waited_s = wait_s(failures, retry_s, requested_s)

    assert min(MAX_RETRY_S, max(retry_s, requested_s)) <= waited_s <= 1.5 * MAX_RETRY_S


POSITION = b"retry: 2000\n\nevent: position\ndata: {}\nid: 0\n\n"


@pytest.mark.parametrize(
    ("received", "open_s", "waits_s"),
    [
        (POSITION, 1, [2, 4, 8]),  # every stream starts with a position, even if an error follows
        (POSITION + message(1), 1, [2, 2, 2]),
        (POSITION, MAX_BACKOFF_S + 1, [2, 2, 2]),  # a quiet stream that was open for a long time
    ],
)
def test_a_success_resets_the_wait(monkeypatch, received, open_s, waits_s):
    """Without a success, the wait doubles after each connection. The first one is that of the field `retry`."""
    monkeypatch.setattr("random.uniform", lambda least, most: least)
    core = Core("")
    found = []
    for _ in waits_s:
        core.open(200, "text/event-stream")
        list(core.receive(received))
        found.append(core.wait_s(Retryable("the server ended the stream"), open_s))

    assert waits_s == found


def test_retry_0_disables_only_the_first_wait(monkeypatch):
    monkeypatch.setattr("random.uniform", lambda least, most: least)

    assert [0, 2 * MIN_BACKOFF_S, 4 * MIN_BACKOFF_S] == [wait_s(failures, 0, 0) for failures in range(3)]


def test_a_page_of_a_proxy_is_temporary_after_the_stream_was_open():
    """Before, the URL is probably wrong."""
    core = Core("")
    with pytest.raises(StreamError):
        core.open(200, "text/html")

    core.open(200, "text/event-stream")

    with pytest.raises(Retryable):
        core.open(200, "text/html")


def test_an_error_event_moves_the_position():
    """Its ID may be newer than that of the last record. The client receives no event of the type `error`."""
    core = Core("")
    core.open(200, "text/event-stream")
    events: list[Event] = []

    with pytest.raises(Retryable):
        events.extend(core.receive(POSITION + message(1) + b'event: error\ndata: {"status":503}\nid: 9\n\n'))

    assert [("position", "0"), ("message", "1"), ("position", "9")] == [(event.type, event.id) for event in events]


CONTRACT = json.loads(Path(__file__).with_name("fallback_contract.json").read_text())  # kafkasse.js has the same


@pytest.mark.parametrize("case", CONTRACT, ids=lambda case: case["name"])
def test_falls_back_to_long_polls_as_the_contract_says(case):
    fallback = Fallback()

    for connection in case["connections"]:
        fallback.ended(connection.get("silent", False), connection["received"], connection["seconds"])

        assert connection["polls_next"] == fallback.polls, connection


def test_the_start_of_a_stream_has_a_short_timeout():
    """A stream whose heartbeats are less frequent than that is proven, and gets the long timeout."""
    fallback = Fallback()
    timeouts = []
    for is_silent, has_received in [(True, True), (True, True), (True, False), (False, True)]:
        timeouts.append(fallback.timeout_s(60))
        fallback.ended(is_silent, has_received, 1)

    assert [FIRST_EVENT_S, 60, FIRST_EVENT_S, 60] == timeouts
    assert 3 == Fallback().timeout_s(3)


@pytest.fixture
def polling() -> Core:
    core = Core("5")
    core.request_headers()
    core.wait_s(Silence("nothing arrived"), 15)
    assert {"live": "events"} == core.request_parameters()
    return core


def polled(core: Core, received: bytes, open_s: float) -> float:
    core.request_headers()
    core.open(200, "text/event-stream")
    if received:
        list(core.receive(received))
    return core.wait_s(End(), open_s)


def test_polls_follow_each_other_at_once(polling):
    """A poll of a busy stream would otherwise fetch each record separately."""
    assert 0 < polled(polling, POSITION + message(1), 0) < 0.3
    assert polling.continues_polling
    assert 0 == polled(polling, POSITION, 8)


def test_polls_without_events_back_off(polling):
    """Without a wait, the client would repeat them in a loop if the server or a proxy returns them at once."""
    waits = [polled(polling, received, 0.1) for received in (POSITION, b"", POSITION)]

    assert not polling.continues_polling
    assert 1 <= waits[0] < waits[1] < waits[2]


def test_polls_need_no_position_events(polling):
    """Without them, a poll of a quiet topic contains only an ID, which may be the one of the request."""
    assert 0 == polled(polling, b"retry: 2000\n\nid: 5\n\n", 8)
    assert polling.continues_polling
    assert 0 < polled(polling, b"retry: 2000\n\nid: 5\n\n" + message(6), 0) < 0.3
    assert 1 <= polled(polling, b"", 8)


def test_a_gateway_timeout_of_a_stream_is_a_silence():
    """The proxy has waited for the end of the response."""
    core = Core("")

    core.wait_s(Retryable("the server answered 504", status=504), 1)
    assert {} == core.request_parameters()

    core.wait_s(Retryable("the server answered 504", status=504), 10)
    assert {"live": "events"} == core.request_parameters()


def test_the_reason_says_that_the_client_polls():
    failure = Silence("nothing arrived")

    Core("").wait_s(failure, 15)

    assert "nothing arrived; continuing with long polls" == str(failure)
