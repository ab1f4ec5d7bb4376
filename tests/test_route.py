"""Which topics a route allows: names, patterns, internal topics, and errors that do not reveal which topics exist."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasse.errors import TopicNotAvailable
from kafkasse.records.position import Position, parse
from kafkasse.route import Route


def open_route(*allowed: str) -> Route:
    return Route("topics", "/{topics}", None, allowed)


ALL_TOPICS = Route("topics", "/{topics}", None, ("*",))


@pytest.mark.parametrize(
    ("route", "allowed", "rejected"),
    [
        (ALL_TOPICS, ["t", "_t", "a.b"], ["__consumer_offsets", "__t"]),
        (open_route("events"), ["events"], ["Events", "events.a", "event", "xevents"]),
        (open_route("events.*"), ["events.", "events.a", "events.a.b"], ["events", "eventsxa", "xevents.a"]),
        (open_route("a?", "b[12]"), ["a1", "b2"], ["a", "a11", "b3"]),
        (open_route("*"), ["t"], ["__consumer_offsets"]),
        (open_route("__*"), [], ["__t", "t"]),
        (open_route("__t", "*"), ["__t", "u"], ["__u"]),
        (open_route(), [], ["t", ""]),
        (Route("topn", "/topn", ("topn", "__t")), ["topn", "__t"], ["t", "topn*"]),
    ],
)
def test_a_route_allows_only_its_topics(route, allowed, rejected):
    """A name or pattern must match the whole topic name, and case matters. Internal topics need their exact name."""
    assert [True] * len(allowed) == [route.allows(topic) for topic in allowed]
    assert [False] * len(rejected) == [route.allows(topic) for topic in rejected]


@given(st.from_regex(r"[a-zA-Z0-9._-]*", fullmatch=True))  # "__*" itself is no name of a topic
def test_no_pattern_matches_an_internal_topic(name):
    assert not open_route("*", "_*", "__*", "[_]*").allows(f"__{name}")


def rejection(route: Route, topics: list[str], existing: list[str]) -> TopicNotAvailable:
    with pytest.raises(TopicNotAvailable) as rejected:
        route.check(topics, existing)
    return rejected.value


def test_the_error_names_only_the_topics_that_are_not_available():
    """The error does not list other topics. KafkaSSE's error lists all topics of the cluster."""
    rejected = rejection(open_route("a", "b", "c"), ["a", "missing", "b", "secret"], ["a", "b", "c", "secret"])

    assert ["missing", "secret"] == rejected.extra["topics"]
    assert rejected.detail.endswith("does not exist, or the server does not allow it: missing, secret.")


def test_accepts_topics_that_are_allowed_and_exist():
    open_route("a*").check(["a1", "a2"], ["a1", "a2", "b"])


def test_topics_are_internal_by_their_name_in_kafka():
    """A topic prefix cannot turn an allowed name into that of an internal topic, but the exact name opens it."""

    def route(prefix: str, *allowed: str) -> Route:
        return Route("topics", "/{topics}", None, allowed, prefix)

    assert not route("__", "*").allows("consumer_offsets")
    assert not route("_", "*").allows("_consumer_offsets")
    assert route("__", "consumer_offsets").allows("consumer_offsets")
    assert route("shop.", "*").allows("__t")


# Event IDs from the time before the topics of a route were edited.


EDITED = Route("edited", "/edited", ("kept", "added"))


def issued(*topics: str, only: bool = False) -> str:
    entries = [{"topic": topic, "partition": 0, "offset": 5, "topic_id": "x"} for topic in topics]
    return json.dumps([entry | {"only": True} for entry in entries] if only else entries)


@pytest.mark.parametrize(
    ("event_id", "started", "named"),
    [
        (issued("kept"), {"kept"}, ("added",)),  # a topic that was added starts where the route starts new clients
        (issued("removed", "kept"), {"kept"}, ("added",)),  # a topic that was removed is dropped
        (issued("removed"), set(), ("kept", "added")),  # without any topic left, it is a new stream
        # A client of selected partitions gets no other topic. If nothing is left, the route rejects the position.
        (issued("kept", only=True), {"kept"}, ()),
        (issued("removed", "kept", only=True), {"kept"}, ()),
        (issued("removed", only=True), {"removed"}, ()),
    ],
)
def test_a_returning_client_gets_the_topics_of_the_route(event_id, started, named):
    position = EDITED.adapt(parse(event_id))

    assert (started, named) == ({partition.topic for partition in position.starts}, position.named_topics)


@pytest.mark.parametrize(
    ("route", "event_id"),
    [
        (EDITED, '["kept"]'),
        (EDITED, '[{"topic":"removed","partition":0,"offset":5}]'),
        (ALL_TOPICS, issued("a", "b")),  # the open route has no topics of its own
    ],
)
def test_an_event_id_for_topics_that_the_client_chooses_is_not_changed(route, event_id):
    """A client that writes its own event ID receives an error if a topic is not available."""
    assert parse(event_id) == route.adapt(parse(event_id))


MATCHING = Route("events", "/events", ("orders", "events.*"))


def test_a_pattern_of_a_route_matches_no_internal_topic():
    assert ["_a", "a"] == Route("all", "/all", ("*",)).matching(["__consumer_offsets", "a", "_a"])
    assert Route("all", "/all", ("*", "__consumer_offsets")).allows("__consumer_offsets")


def test_a_new_client_reads_the_topics_that_match():
    position = MATCHING.adapt(Position(), ["events.a", "events.b"])

    assert ("orders", "events.a", "events.b") == position.named_topics


def test_a_topic_that_was_created_since_is_read_from_its_first_record():
    """A topic that no longer exists is dropped."""
    position = MATCHING.adapt(parse(issued("orders", "events.a")), ["events.b"])

    assert ({"orders"}, ("events.b",)) == ({partition.topic for partition in position.starts}, position.added_topics)


def test_a_stream_without_topics_is_rejected():
    """The error lists the patterns."""
    route = Route("events", "/events", ("events.*",))

    with pytest.raises(TopicNotAvailable, match=r"events\.\*"):
        route.check(route.adapt(Position()).topics, [])


def test_matching_takes_linear_time():
    route = Route("stars", "/stars", ("*a" * 60 + "*b",))

    assert [] == route.matching(["a" * 249] * 200)
