"""Clients whose requests are rejected again and again are slowed down; all others are not."""

from __future__ import annotations

from contextlib import suppress

import pytest

from kafkasse.errors import TooManyRejections
from kafkasse.web import throttle
from kafkasse.web.throttle import BURST, MAX_ADDRESSES, MAX_DELAY_S, MAX_DELAYED, RejectionThrottle

PER_S = 2.0


class Time:
    """A clock that a test moves, and the delays so far."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.delays: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, delay_s: float) -> None:
        """Other clients are served during a delay, so time does not pass."""
        self.delays.append(delay_s)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def rejections(time: Time) -> RejectionThrottle:
    return RejectionThrottle(PER_S, time.clock, time.sleep)


def test_delays_a_client_that_ignores_rejections(time, rejections):
    """A client in a loop gets PER_S per second. Others, and one that retries as seldom as it should, are not delayed."""
    for _ in range(BURST * 10):
        rejections.delay("seldom")
        time.now += 1 / PER_S
    for _ in range(BURST):
        rejections.delay("a")
    assert [] == time.delays

    for _ in range(5):
        rejections.delay("a")
        rejections.delay("b")
        time.now += time.delays[-1]

    assert [1 / PER_S] * 5 == time.delays


def test_answers_429_if_a_request_would_occupy_a_thread(time, rejections):
    """Otherwise, one client could occupy all threads of a server without an event loop."""
    for _ in range(BURST):
        rejections.delay("a", may_wait=False)

    with pytest.raises(TooManyRejections):
        rejections.delay("a", may_wait=False)

    assert [] == time.delays
    time.now += 1 / PER_S
    rejections.delay("a", may_wait=False)


def test_answers_429_if_a_client_sends_requests_in_parallel(time, rejections):
    """At most PER_S * MAX_DELAY_S requests of one address wait at the same time."""
    for _ in range(BURST + int(PER_S * MAX_DELAY_S)):
        rejections.delay("a")

    with pytest.raises(TooManyRejections) as rejected:
        rejections.delay("a")

    assert int(PER_S * MAX_DELAY_S) == len(time.delays)
    assert {"Retry-After": "5"} == rejected.value.headers


def test_forgets_the_address_whose_last_rejection_is_the_oldest(time, rejections):
    """The table has a maximum size, whatever clients send."""
    for n in range(MAX_ADDRESSES + 1):
        rejections.delay(f"{n}")
        with suppress(TooManyRejections):
            rejections.delay("busy")

    assert MAX_ADDRESSES == len(rejections._buckets)
    assert "busy" in rejections._buckets
    assert "0" not in rejections._buckets


def test_the_number_of_delayed_responses_is_limited(time, rejections, monkeypatch):
    """Above the limit, rejections are sent at once: each delayed response takes a greenlet and a connection."""
    monkeypatch.setattr(throttle, "BURST", 0)
    waiting = []

    def sleep_while_the_next_client_is_rejected(delay_s: float) -> None:
        waiting.append(delay_s)
        if len(waiting) < 50:
            nested.delay(f"{len(waiting)}")

    nested = RejectionThrottle(PER_S, time.clock, sleep_while_the_next_client_is_rejected)
    monkeypatch.setattr(throttle, "MAX_DELAYED", 10)
    nested.delay("first")

    assert 10 == len(waiting) < MAX_DELAYED
