"""Which topics a route allows: names, patterns, internal topics, and errors that do not reveal which topics exist."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasse.errors import TopicNotAvailable
from kafkasse.route import Route


def open_route(*allowed: str) -> Route:
    return Route("topics", "/<topics>", None, allowed)


ALL_TOPICS = Route("topics", "/<topics>", None, ("*",))


@pytest.mark.parametrize(
    ("route", "allowed", "refused"),
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
def test_a_route_allows_only_its_topics(route: Route, allowed: list[str], refused: list[str]) -> None:
    """A name or pattern must match the whole topic name, and case matters. Internal topics need their exact name."""
    assert [True] * len(allowed) == [route.allows(topic) for topic in allowed]
    assert [False] * len(refused) == [route.allows(topic) for topic in refused]


@given(st.text())
def test_no_pattern_matches_an_internal_topic(name: str) -> None:
    """A pattern never matches a name that starts with two underscores, not even a pattern that starts with them."""
    assert not open_route("*", "_*", "__*", "[_]*").allows(f"__{name}")


def refusal(route: Route, topics: list[str], existing: list[str]) -> TopicNotAvailable:
    with pytest.raises(TopicNotAvailable) as refused:
        route.check(topics, existing)
    return refused.value


def test_the_error_names_only_the_topics_that_are_not_available() -> None:
    """The error does not list other topics. KafkaSSE's error lists all topics of the cluster."""
    refused = refusal(open_route("a", "b", "c"), ["a", "missing", "b", "secret"], ["a", "b", "c", "secret"])

    assert ["missing", "secret"] == refused.extra["topics"]
    assert refused.detail.endswith("does not exist, or the server does not allow it: missing, secret.")


def test_a_forbidden_topic_looks_like_a_missing_one() -> None:
    """The error for a topic that is not allowed is equal to the error for a topic that does not exist."""
    route = open_route("m*")

    forbidden, missing = (
        refusal(route, ["mine", "other"], ["mine", "other"]),
        refusal(route, ["mine", "other"], ["mine"]),
    )

    assert forbidden.problem() == missing.problem()
    assert "The topic other does not exist, or the server does not allow it." == missing.detail


def test_accepts_topics_that_are_allowed_and_exist() -> None:
    """check() does not raise."""
    open_route("a*").check(["a1", "a2"], ["a1", "a2", "b"])


def test_topics_are_internal_by_their_name_in_kafka() -> None:
    """A topic prefix cannot turn an allowed name into that of an internal topic, but the exact name opens it."""

    def route(prefix: str, *allowed: str) -> Route:
        return Route("topics", "/<topics>", None, allowed, prefix)

    assert not route("__", "*").allows("consumer_offsets")
    assert not route("_", "*").allows("_consumer_offsets")
    assert route("__", "consumer_offsets").allows("consumer_offsets")
    assert route("shop.", "*").allows("__t")
