"""Callers that look up the same keys at the same time share requests, results and failures."""

from __future__ import annotations

import time
from collections.abc import Iterable

import gevent
import pytest
from gevent.event import Event

from kafkasse.errors import KafkaUnavailable, TopicNotAvailable, Unavailable
from kafkasse.feed import lookup
from kafkasse.feed.lookup import OffsetRanges, SharedLookup
from kafkasse.log import OffsetRange, Partition
from kafkasse.log.memory import MemoryLog
from tests.support.waiting import TIMEOUT_S


class Service:
    """Answers each request once the test calls answer.set()."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []
        self.answer = Event()

    def respond_to(self, callers: list[gevent.Greenlet]) -> None:
        """Answer when all callers wait, and return when they have their results."""
        gevent.sleep(0)
        self.answer.set()
        gevent.joinall(callers)

    def look_up(self, keys: list[str]) -> dict[str, str]:
        self.requests.append(keys)
        self.answer.wait()
        if "broken" in keys:
            raise KafkaUnavailable("Kafka cannot be reached.")
        return {key: key.upper() for key in keys if key != "missing"}


def test_callers_with_the_same_key_share_a_request():
    """A key without a value is absent from the result."""
    service = Service()
    shared = SharedLookup(service.look_up, TIMEOUT_S)
    callers = [gevent.spawn(shared.get, ["a", "missing"]) for _ in range(100)]
    service.respond_to(callers)

    assert [{"a": "A"}] * 100 == [caller.get() for caller in callers]
    assert [["a", "missing"]] == service.requests


def test_collects_keys_while_a_request_is_in_flight(monkeypatch):
    """The next request contains the keys of all callers that waited, up to a limit."""
    monkeypatch.setattr(lookup, "MAX_KEYS", 3)
    service = Service()
    shared = SharedLookup(service.look_up, TIMEOUT_S)
    callers = [gevent.spawn(shared.get, [key]) for key in "abcdef"]
    service.respond_to(callers)

    assert [["a"], ["b", "c", "d"], ["e", "f"]] == service.requests


def test_results_that_are_too_old_for_a_caller_are_replaced_once(monkeypatch):
    """Callers that need a newer result wait until the cached one expires, and then share a request."""
    now = 100.0
    requested_at = []
    sleep = gevent.sleep

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds
        sleep(0)

    def look_up(keys: list[str]) -> dict[str, str]:
        requested_at.append(now)
        return service.look_up(keys)

    monkeypatch.setattr(gevent, "sleep", advance)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    service = Service()
    service.answer.set()
    shared = SharedLookup(look_up, TIMEOUT_S, max_cached=10)
    max_age_s = 0.5
    shared.get(["a", "missing"], max_age_s)
    advance(0.125)
    since = now
    callers = [gevent.spawn(shared.get, ["a", "missing"], max_age_s, since) for _ in range(10)]

    assert [{"a": "A"}] * 10 == [caller.get() for caller in callers]
    assert [["a", "missing"]] * 2 == service.requests
    assert [100.0, 100.0 + max_age_s] == requested_at
    assert {"a": "A"} == shared.get(["a"], max_age_s, since)
    assert 2 == len(service.requests)


def test_a_request_that_was_sent_too_early_does_not_count():
    service = Service()
    shared = SharedLookup(service.look_up, TIMEOUT_S, max_cached=10)
    early = gevent.spawn(shared.get, ["a"])
    gevent.sleep(0)
    gevent.sleep(0)
    assert [["a"]] == service.requests
    late = gevent.spawn(shared.get, ["a"], 0.01, time.monotonic())
    gevent.sleep(0)
    service.answer.set()

    assert {"a": "A"} == early.get() == late.get()
    assert [["a"], ["a"]] == service.requests


def test_a_failure_is_shared_with_the_callers_that_waited():
    """While Kafka is unavailable, a hundred requests take one timeout, not a hundred."""
    service = Service()
    shared = SharedLookup(service.look_up, TIMEOUT_S)
    callers = [gevent.spawn(shared.get, [key]) for key in ["broken", *"abcdef"]]
    service.respond_to(callers)

    assert {KafkaUnavailable} == {type(caller.exception) for caller in callers}
    assert [["broken"]] == service.requests
    assert {"a": "A"} == shared.get(["a"])  # a later call does not receive that failure


@pytest.mark.parametrize("interruption", [gevent.Timeout, gevent.GreenletExit])
def test_an_interrupted_request_fails_at_once_and_only_once(interruption):
    """For example by a timeout that a function of the app has set, and does not catch."""
    errors = [interruption()]

    def look_up(keys: list[str]) -> dict[str, str]:
        if errors:
            raise errors.pop()
        return {key: key.upper() for key in keys}

    shared = SharedLookup(look_up, TIMEOUT_S)

    with pytest.raises(Unavailable, match="was interrupted"):
        shared.get(["a", "b"])
    assert {"a": "A", "b": "B"} == shared.get(["a", "b"])


def test_a_caller_waits_no_longer_than_its_timeout():
    """The request continues, and a later caller receives its result."""
    service = Service()
    shared = SharedLookup(service.look_up, timeout_s=0.01)

    with pytest.raises(KafkaUnavailable, match=r"within 0\.01 s"):
        shared.get(["a"])
    service.answer.set()

    assert {"a": "A"} == shared.get(["a"])
    assert [["a"]] == service.requests


class SlowLog(MemoryLog):
    """Reads the offsets when a request arrives, and answers once the test calls answer.set()."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[list[Partition]] = []
        self.answer = Event()

    def offset_ranges(self, partitions: Iterable[Partition]) -> dict[Partition, OffsetRange]:
        self.requests.append(list(partitions))
        ranges = super().offset_ranges(self.requests[-1])
        self.answer.wait()
        return ranges


def test_no_caller_receives_offsets_from_before_its_call():
    """A thousand callers that come while a request is in flight share the next request."""
    log, partition = SlowLog(), Partition("t", 0)
    log.create("t")
    ranges = OffsetRanges(log, TIMEOUT_S)
    first = gevent.spawn(ranges.get, [partition])
    gevent.sleep(0)
    gevent.sleep(0)
    log.append("t", b"{}")
    later = [gevent.spawn(ranges.get, [partition]) for _ in range(1000)]
    gevent.sleep(0)
    log.answer.set()

    assert {partition: OffsetRange(0, 0)} == first.get()
    assert [{partition: OffsetRange(0, 1)}] * 1000 == [caller.get() for caller in later]
    assert 2 == len(log.requests)


def test_a_topic_that_does_not_exist_fails_only_its_own_lookup():
    log = SlowLog()
    log.create("t")
    log.answer.set()
    ranges = OffsetRanges(log, TIMEOUT_S)
    both = [Partition(name, 0) for name in ("missing", "t")]
    gevent.spawn(ranges.get, both)  # the others wait for the end of this request
    missing, existing = (gevent.spawn(ranges.get, [partition]) for partition in both)

    assert {Partition("t", 0): OffsetRange(0, 0)} == existing.get()
    with pytest.raises(TopicNotAvailable):
        missing.get()
    assert 2 == log.requests.count(both)


def test_a_lookup_of_offsets_takes_no_longer_than_its_timeout():
    log = SlowLog()
    log.create("t")

    with pytest.raises(KafkaUnavailable, match=r"within 0\.01 s"):
        OffsetRanges(log, 0.01).get([Partition("t", 0)])
