"""Requests that get no stream: the response is an error in JSON that says how to fix the request, and nothing internal.

Each status has a case here, with the whole body. tests/attacks/requests.py lists all requests that must be rejected.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from kafkasse import schemas
from kafkasse.broker import EmbeddedBroker
from tests.support.client import READ_TIMEOUT_S, Answer, fetch
from tests.support.kafka import Cluster
from tests.support.server import Server
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def server(serve: Callable[..., Server]) -> Server:
    return serve(
        allowed_topics=["t-*", "missing"],
        max_last_event_id_bytes=32_768,
        max_rejections_per_s=0,
        cors_origins=["https://a.example"],
    )


@pytest.fixture(scope="module")
def known(cluster: Cluster) -> str:
    """The topic of most requests."""
    return cluster.create("t-known")


@pytest.fixture
def reject(server: Server, known: str, broker: EmbeddedBroker) -> Callable[..., dict[str, Any]]:
    """Sends a request that must fail with a status, and returns the body, which must match the schema."""

    def reject(status: int, path: str = f"/{known}", method: str = "GET", **headers: str) -> dict[str, Any]:
        return checked(fetch(server.port, path, method, **headers), status, broker)

    return reject


def checked(answer: Answer, status: int, broker: EmbeddedBroker) -> dict[str, Any]:
    """Return the body of an error. It must not contain the address of Kafka or a part of a traceback."""
    body = answer.json

    assert (status, status) == (answer.status, body["status"])
    assert "application/problem+json" == answer.headers["content-type"]
    assert schemas.first_error("problem", body) is None
    for secret in (broker.bootstrap_servers, "Traceback", "File ", ".py"):
        assert secret not in answer.body.decode()
    return dict(body)


def entry(**members: object) -> str:
    return json.dumps([{"topic": "t-known", "partition": 0, "offset": 0} | members])


Reject = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("last_id", "reason"),
    [
        ("[", "not JSON"),
        ("garbage", "not JSON"),
        (entry()[:-2], "not JSON"),
        ("[]", "non-empty"),
        (entry(offset=-2), "[0].offset"),
        (entry(offset=1.5), "whole numbers"),
        (entry(partition=2**32), "[0].partition"),
        (entry(offset=10**40), "[0].offset"),
        (entry(partition=1), "no partition 1 in t-known: it has 1"),
        (entry(offset=7), "beyond its end, 0"),
        ('["\u0219"]', "[0]"),
        ("[" * 30_000, "not JSON"),
        ("~garbage", "compact event ID"),
    ],
    ids=lambda text: text[:30],
)
def test_rejects_an_invalid_id_with_the_reason(reject: Reject, last_id: str, reason: str) -> None:
    """400 with the position of the mistake and the reason, for the header and for the parameter."""
    assert reason in reject(400, Last_Event_ID=last_id.encode().decode("latin-1"))["detail"]
    if len(last_id) < 1000:
        body = reject(400, f"/t-known?last_event_id={quote(last_id)}")
        assert ("InvalidAssignmentError", "KafkaSSE") == (body["name"], body["origin"])
        assert reason in body["message"]


@pytest.mark.parametrize("query", ["timestamp=soon", "since=soon"])
def test_rejects_an_invalid_parameter(reject: Reject, query: str) -> None:
    """400 with the name of the parameter."""
    body = reject(400, f"/t-known?{query}")

    assert query.partition("=")[0] in body["detail"]
    assert "InvalidParameterError" == body["name"]


def test_a_forbidden_topic_looks_like_a_missing_one(
    server: Server, reject: Reject, cluster: Cluster, fresh_name: str
) -> None:
    """404 with each topic that is missing or not allowed. Both get the same response, except for the request ID."""
    cluster.create(f"x-{fresh_name[2:]}")  # exists but is not allowed
    forbidden, missing = f"x-{fresh_name[2:]}", f"t-{'0' * 12}"

    answers = [fetch(server.port, f"/t-known,{each}") for each in (forbidden, missing)]
    several = reject(404, f"/{forbidden},t-known,{missing},other")

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


def test_an_invalid_topic_name_never_reaches_kafka(reject: Reject) -> None:
    """404 for names that are allowed by the configuration and not valid in Kafka."""
    for name in ("t-a%20b", "t-%C3%BC", "t-" + "a" * 300, "t-%00", "t-,t-a%0A", "t-%C8%99", "t-%FF"):
        assert reject(404, f"/{name}")["topics"]


@pytest.mark.parametrize("method", ["POST", "PROPFIND"])
def test_rejects_other_methods(server: Server, reject: Reject, method: str) -> None:
    """405 with the allowed methods."""
    assert reject(405, method=method)["name"].startswith("MethodNotAllowed")
    assert {"GET", "HEAD", "OPTIONS"} <= set(fetch(server.port, "/t-known", method).headers["allow"].split(", "))


def test_rejects_an_unsupported_media_type(reject: Reject) -> None:
    """406 with the media types that the server offers."""
    assert "text/event-stream" in reject(406, Accept="text/html")["offered"]


@pytest.mark.parametrize("path", ["/a/b", "/-/x"])
def test_unknown_paths_have_the_same_form_of_error(reject: Reject, path: str) -> None:
    """A path that no route serves gets a 404 in the same form, whichever part of the server answers."""
    assert "NotFoundError" == reject(404, path)["name"]


def test_rejects_a_header_or_url_that_is_too_long(server: Server, reject: Reject) -> None:
    """431 for a header that is too long for kafkasse or for gunicorn, 414 for a URL, each with advice."""
    for size in (33_000, 70_000):
        assert "compact" in reject(431, Last_Event_ID='["' + "a" * size + '"]')["detail"]
    assert "Last-Event-ID header" in reject(414, "/t-known?last_event_id=" + "a" * 9_000)["detail"]


def raw(server: Server, request: bytes) -> Answer:
    """Send these bytes and return the response."""
    with socket.create_connection(("127.0.0.1", server.port), READ_TIMEOUT_S) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        head, _, body = b"".join(iter(lambda: connection.recv(65_536), b"")).partition(b"\r\n\r\n")
    status, *fields = head.decode().split("\r\n")
    headers = dict(field.split(": ", 1) for field in fields)
    return Answer(int(status.split()[1]), {name.lower(): text for name, text in headers.items()}, body)


@pytest.mark.processes
def test_the_log_has_the_id_of_a_request_that_the_app_never_received() -> None:
    """The worker rejects it. The line names the reason, and no part of the request."""
    with Server("tests.support.apps:in_memory()") as server:
        request_id = fetch(server.port, "/t?last_event_id=" + "a" * 9_000).json["request_id"]

        line = f"request_id={request_id} client=127.0.0.1 status=414 error=RequestTooLarge reason=LimitRequestLine"
        wait_until(lambda: f"A request was rejected: {line}" in server.log)


def test_rejects_invalid_http_in_json(server: Server, known: str, broker: EmbeddedBroker) -> None:
    """400 with the same body as any other error."""
    for request in (b"GET\r\n\r\n", b"GET /t-known HTTP/1.1\r\nLast-Event-ID: \0\r\n\r\n"):
        checked(raw(server, request), 400, broker)


def test_a_page_of_an_allowed_origin_can_read_the_error(server: Server) -> None:
    """The error response has the CORS header of the stream."""
    answer = fetch(server.port, "/missing", Origin="https://a.example")

    assert (404, "https://a.example") == (answer.status, answer.headers["access-control-allow-origin"])
