"""Every error is a problem of the schema that clients are shown, with the status that the tree in errors.py draws."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kafkasse import errors, schemas
from kafkasse.errors import CommandError, KafkasseError, KafkaUnavailable, TopicNotAvailable


def tree(root: type[KafkasseError] = KafkasseError) -> Iterator[type[KafkasseError]]:
    yield root
    for each in root.__subclasses__():
        yield from tree(each)


ALL = [each for each in tree() if not each.__name__.startswith("_")]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_is_a_problem(kind: type[KafkasseError]) -> None:
    """Its object fits problem.schema.json, has a type of its own, and says the sentence in both members."""
    problem = kind("It broke.").problem()

    assert schemas.first_error("problem", problem) is None
    assert "It broke." == problem["detail"] == problem["message"]
    assert 1 == [each("").problem()["type"] for each in ALL].count(problem["type"])


@pytest.mark.parametrize("kind", ALL)
def test_the_drawing_is_right(kind: type[KafkasseError]) -> None:
    """The tree at the top of the module shows every class, and its status where it has one."""
    drawn = dict(re.findall(r"^[ │├└─]*(\w+) +(\d{3})", errors.__doc__ or "", re.MULTILINE))

    assert kind.__name__ in (errors.__doc__ or "")
    assert kind is CommandError or str(kind.status) == drawn[kind.__name__]


def test_what_helps_to_mend_the_request_is_in_the_object() -> None:
    """Whatever the error was given stands beside the members that all have."""
    assert ["t"] == TopicNotAvailable("Not available: t.", topics=["t"]).problem()["topics"]


def test_come_back_later() -> None:
    """Errors that pass say when to come back, in whole seconds."""
    assert {"Retry-After": "7"} == KafkaUnavailable("Gone.", retry_after_s=7).headers
    assert KafkaUnavailable("Gone.").headers["Retry-After"].isdigit()
    assert "retry_after_s" not in KafkaUnavailable("Gone.", retry_after_s=7).problem()
