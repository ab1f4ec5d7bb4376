"""Every error body matches the published schema and has the status that the diagram in errors.py shows."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kafkasse import errors, schemas
from kafkasse.errors import CommandError, KafkasseError, KafkaUnavailable, TopicNotAvailable


def class_tree(root: type[KafkasseError] = KafkasseError) -> Iterator[type[KafkasseError]]:
    yield root
    if root is not CommandError:  # the server never sends its subclasses
        for subclass in root.__subclasses__():
            yield from class_tree(subclass)


ERROR_CLASSES = [error_class for error_class in class_tree() if not error_class.__name__.startswith("_")]


@pytest.mark.parametrize("error_class", ERROR_CLASSES)
def test_every_error_matches_the_schema(error_class):
    """The body matches problem.schema.json, has a unique type, and repeats the detail as message."""
    problem = error_class("It broke.").problem()

    assert schemas.first_error("problem", problem) is None
    assert "It broke." == problem["detail"] == problem["message"]
    assert 1 == [other("").problem()["type"] for other in ERROR_CLASSES].count(problem["type"])


@pytest.mark.parametrize("error_class", ERROR_CLASSES)
def test_the_diagram_is_correct(error_class):
    diagram = dict(re.findall(r"^[ │├└─]*(\w+) +(\d{3})", errors.__doc__ or "", re.MULTILINE))

    assert error_class.__name__ in (errors.__doc__ or "")
    assert error_class is CommandError or str(error_class.status) == diagram[error_class.__name__]


def test_extra_members_are_in_the_body():
    assert ["t"] == TopicNotAvailable(
        "The topic t does not exist, or the server does not allow it.", topics=["t"]
    ).problem()["topics"]


def test_temporary_errors_have_retry_after():
    assert {"Retry-After": "7"} == KafkaUnavailable("Gone.", retry_after_s=7).headers
    assert KafkaUnavailable("Gone.").headers["Retry-After"].isdigit()
    assert "retry_after_s" not in KafkaUnavailable("Gone.", retry_after_s=7).problem()
