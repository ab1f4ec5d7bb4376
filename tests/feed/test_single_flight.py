"""Many greenlets ask Kafka the same question at once."""

from __future__ import annotations

import gevent
import pytest
from gevent.event import Event

from kafkasse.errors import KafkaUnavailable
from kafkasse.feed.single_flight import SingleFlight


def test_runs_one_question_at_a_time() -> None:
    """No question starts while another one runs."""
    one = SingleFlight()
    inside: list[int] = []

    def enter() -> int:
        inside.append(1)
        gevent.sleep(0)
        count = sum(inside)
        inside.pop()
        return count

    waiting = [gevent.spawn(one.run, enter) for _ in range(20)]

    assert [1] * 20 == [each.get() for each in waiting]


def test_a_failure_is_shared_with_the_questions_that_waited() -> None:
    """While Kafka is away, a hundred requests take one timeout, not a hundred."""
    one = SingleFlight()
    asked: list[int] = []
    fail = Event()

    def ask() -> None:
        asked.append(1)
        fail.wait()
        raise KafkaUnavailable("Kafka cannot be reached.")

    waiting = [gevent.spawn(one.run, ask) for _ in range(100)]
    gevent.sleep(0)
    fail.set()
    gevent.joinall(waiting)

    assert (1, {KafkaUnavailable}) == (len(asked), {type(each.exception) for each in waiting})


def test_a_question_after_a_failure_runs_again() -> None:
    """A failure does not answer a later question."""
    one = SingleFlight()

    def ask() -> None:
        raise KafkaUnavailable("Kafka cannot be reached.")

    with pytest.raises(KafkaUnavailable):
        one.run(ask)

    assert "found" == one.run(lambda: "found")
