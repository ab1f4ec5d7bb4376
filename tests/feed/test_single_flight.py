"""Calls of many greenlets run one at a time, and share a failure."""

from __future__ import annotations

import gevent
import pytest
from gevent.event import Event

from kafkasse.errors import KafkaUnavailable
from kafkasse.feed.single_flight import SingleFlight


def test_runs_one_call_at_a_time() -> None:
    """No call starts while another one runs."""
    single_flight = SingleFlight()
    inside: list[int] = []

    def enter() -> int:
        inside.append(1)
        gevent.sleep(0)
        count = sum(inside)
        inside.pop()
        return count

    waiting = [gevent.spawn(single_flight.run, enter) for _ in range(20)]

    assert [1] * 20 == [each.get() for each in waiting]


def test_a_failure_is_shared_with_the_callers_that_waited() -> None:
    """While Kafka is unavailable, a hundred requests take one timeout, not a hundred."""
    single_flight = SingleFlight()
    calls: list[int] = []
    fail = Event()

    def fail_slowly() -> None:
        calls.append(1)
        fail.wait()
        raise KafkaUnavailable("Kafka cannot be reached.")

    waiting = [gevent.spawn(single_flight.run, fail_slowly) for _ in range(100)]
    gevent.sleep(0)
    fail.set()
    gevent.joinall(waiting)

    assert (1, {KafkaUnavailable}) == (len(calls), {type(each.exception) for each in waiting})


def test_a_call_after_a_failure_runs_again() -> None:
    """A call that starts after a failure does not receive that failure."""
    single_flight = SingleFlight()

    def fail_slowly() -> None:
        raise KafkaUnavailable("Kafka cannot be reached.")

    with pytest.raises(KafkaUnavailable):
        single_flight.run(fail_slowly)

    assert "found" == single_flight.run(lambda: "found")
