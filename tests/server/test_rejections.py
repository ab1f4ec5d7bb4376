"""Requests that get no stream: the response is an error in JSON that says how to fix the request, and nothing internal.

Each status has a case here, with the whole body. tests/attacks/requests.py lists all requests that must be rejected.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from kafkasse import schemas
from tests.support.client import Answer, fetch
from tests.support.kafka import Cluster
from tests.support.server import Server


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server], cluster: Cluster) -> Server:
    cluster.create("t-known")
    return serve(allowed_topics=["t-*", "missing"], max_last_event_id_bytes=32_768, max_rejections_per_s=0)


def checked(answer: Answer, status: int) -> dict[str, Any]:
    """Return the body of an error. tests/attacks checks that the errors of hostile requests contain nothing internal."""
    body = answer.json

    assert (status, status) == (answer.status, body["status"])
    assert "application/problem+json" == answer.headers["content-type"]
    assert schemas.first_error("problem", body) is None
    return dict(body)


def entry(**members: object) -> str:
    return json.dumps([{"topic": "t-known", "partition": 0, "offset": 0} | members])


LAST_IDS = [
    ("[", "not JSON"),
    ("[]", "non-empty"),
    (entry(offset=-2), "[0].offset"),
    (entry(offset=1.5), "whole numbers"),
    (entry(partition=2**32), "[0].partition"),
    (entry(partition=1), "no partition 1 in t-known: it has 1"),
    (entry(offset=7), "beyond its end, 0"),
    ('["\u0219"]', "[0]"),
    ("~garbage", "compact event ID"),
]


@pytest.mark.parametrize(
    ("status", "path", "fields", "member", "expected"),
    [
        *[
            (400, "/t-known", {"Last_Event_ID": text.encode().decode("latin-1")}, "detail", reason)
            for text, reason in LAST_IDS
        ],
        *[(400, f"/t-known?last_event_id={quote(text)}", {}, "detail", reason) for text, reason in LAST_IDS],
        (400, "/t-known?timestamp=soon", {}, "detail", "timestamp"),
        (400, "/t-known?since=soon", {}, "name", "InvalidParameterError"),
        (404, "/t-a%20b", {}, "topics", "t-a b"),
        (404, "/t-%FF", {}, "topics", "t-"),
        (404, "/a/b", {}, "name", "NotFoundError"),
        (404, "/-/x", {}, "name", "NotFoundError"),
        (406, "/t-known", {"Accept": "text/html"}, "offered", "text/event-stream"),
        (414, "/t-known?last_event_id=" + "a" * 9_000, {}, "detail", "Last-Event-ID header"),
        (431, "/t-known", {"Last_Event_ID": '["' + "a" * 33_000 + '"]'}, "detail", "compact"),
        (431, "/t-known", {"Last_Event_ID": '["' + "a" * 70_000 + '"]'}, "detail", "compact"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_says_how_to_fix_the_request(server, status, path, fields, member, expected):
    """Unknown paths and requests that are too long for kafkasse or for gunicorn have the same form of error."""
    assert expected in str(checked(fetch(server.port, path, **fields), status)[member])


def test_a_forbidden_topic_looks_like_a_missing_one(server, cluster, fresh_name):
    """404 with each topic that is missing or not allowed. Both get the same response, except for the request ID."""
    cluster.create(f"x-{fresh_name[2:]}")  # exists but is not allowed
    forbidden, missing = f"x-{fresh_name[2:]}", f"t-{'0' * 12}"

    answers = [fetch(server.port, f"/t-known,{topic}") for topic in (forbidden, missing)]
    several = checked(fetch(server.port, f"/{forbidden},t-known,{missing},other"), 404)

    assert [404, 404] == [answer.status for answer in answers]
    first, second = map(_without_request, answers)
    assert [first[0].replace(forbidden.encode(), missing.encode()), first[1]] == second
    assert [forbidden, missing, "other"] == several["topics"]
    assert "t-known" not in several["detail"].replace(",", " ").split()


def _without_request(answer: Answer) -> list[Any]:
    """Return the body and the headers without the request ID and the time."""
    request_id = answer.headers["x-request-id"]
    headers = {name: text for name, text in answer.headers.items() if name not in ("date", "x-request-id")}
    return [answer.body.replace(request_id.encode(), b""), headers]
