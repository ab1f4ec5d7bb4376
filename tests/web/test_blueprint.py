"""The blueprint and its hooks in a host app, without Kafka and without a server."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Mapping
from typing import Any
from unittest import mock

import gevent
import pytest
from flask import Flask, Response, abort, request, session
from flask.testing import FlaskClient
from werkzeug.wrappers import Response as BaseResponse

from kafkasse import schemas
from kafkasse.app import blueprint
from kafkasse.config import Config
from kafkasse.errors import ConfigurationError, KafkaUnavailable, TopicNotAvailable
from kafkasse.log import Partition, Topic
from kafkasse.log.memory import MemoryCursor, MemoryLog
from kafkasse.process.open_streams import streams
from kafkasse.process.stream_services import stream_services
from kafkasse.records.frame.hooks import TopicRecord
from kafkasse.web import throttle, wsgi_server
from kafkasse_client.sse import Event
from tests.support.metric_values import value_of
from tests.support.sse import read_events, read_until, without_positions
from tests.support.waiting import wait_until
from tests.web.clients import client_of


class CountingLog(MemoryLog):
    def __init__(self) -> None:
        super().__init__()
        self.cursors = 0

    def cursor(self, offsets: Mapping[Partition, int], **options: Any) -> MemoryCursor:
        self.cursors += not options.get("tail")
        return super().cursor(offsets, **options)


@pytest.fixture
def log() -> CountingLog:
    log = CountingLog()
    log.create("t")
    for n in range(3):
        log.append("t", b'{"n":%d}' % n, key=b"k%d" % n)
    return log


def take(response: BaseResponse, until: bytes) -> bytes:
    """Return the body up to and including some bytes, or to its end."""
    body = read_until(response.response, until)
    response.close()
    return body


def events(client: FlaskClient, path: str, until: bytes, **headers: str) -> list[Event]:
    with client.get(path, headers=headers, buffered=False) as response:
        assert 200 == response.status_code
        return without_positions(read_events(take(response, until)))


def test_blueprints_of_a_process_share_the_capacity_of_the_server(log, monkeypatch):
    """If the server can have two streams, each of two blueprints can have one."""
    gc.collect()
    gevent.idle()  # until the responses that other tests have discarded are closed
    already_open = sum(service.limits.count for service in stream_services)
    monkeypatch.setattr(wsgi_server, "_limit", lambda: (2 * (already_open + 2), "a limit"))
    first, second = client_of(log), client_of(log)

    streams = [client.get("/streams/t", buffered=False) for client in (first, second, first, second)]
    for stream in streams:
        stream.close()

    assert [200, 200, 503, 503] == [stream.status_code for stream in streams]


# In a host app.


@pytest.mark.parametrize(
    "path", ["//t", "//-/catalog", "/-//problems/not-found", "//-/ticket?path=/t", "/-//console/app.js"]
)
def test_no_redirect_repeats_the_host_of_the_request(log, path):
    """A client can forge the Host header, and a shared cache could send the redirect to others."""
    client = client_of(log, catalog=True, console=True, tickets=True)

    response = client.post(f"/streams{path}", base_url="http://evil.example")

    assert 404 == response.status_code
    assert "Location" not in response.headers


@pytest.fixture
def host(log: CountingLog) -> FlaskClient:
    """A host app with routes, error handlers, a session and a hook that sees every request."""
    app = Flask("host")
    app.secret_key = "for a test"  # noqa: S105

    @app.before_request
    def reject_strangers() -> tuple[str, int] | None:
        return ("no strangers", 403) if request.headers.get("X-Stranger") else None

    @app.after_request
    def sign(response: Response) -> Response:
        response.headers["X-Host"] = "yes"
        return response

    @app.errorhandler(404)
    def not_found(error: Exception) -> tuple[str, int]:
        return "the host's own 404", 404

    @app.errorhandler(Exception)
    def broken(error: Exception) -> tuple[str, int]:
        return "the host's own 500", 500

    @app.get("/")
    def index() -> str:
        session["visits"] = session.get("visits", 0) + 1
        return f"visit {session['visits']}"

    for name, topics in {"streams": ["*"], "other": ["other"]}.items():
        config = Config(heartbeat_s=0.05, allowed_topics=topics, public=True)
        app.register_blueprint(blueprint(config, log, name=name), url_prefix=f"/{name}")
    return app.test_client()


def test_leaves_the_host_app_alone(host):
    """The host's routes, session, error handlers and hooks work as before. Its error handlers do not see our errors."""
    assert "visit 1" == host.get("/").text
    assert [0, 1, 2] == [json.loads(e.data)["n"] for e in events(host, "/streams/t?timestamp=0", b'"n":2')]
    assert "visit 2" == host.get("/").text

    assert "the host's own 404" == host.get("/nowhere").text
    assert "the host's own 404" == host.get("/streams/").text
    assert 403 == host.get("/streams/t", headers={"X-Stranger": "1"}).status_code
    rejected = host.get("/streams/missing")
    assert ("application/problem+json", "yes") == (rejected.mimetype, rejected.headers["X-Host"])
    assert "Set-Cookie" not in rejected.headers
    assert [200, 404] == [host.head(f"/{mount}/t").status_code for mount in ("streams", "other")]


# Requests that open no cursor.


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", ["/streams/t", "/streams/t?timestamp=0", "/streams/missing", "/streams/t?timestamp=x"])
def test_rejects_every_method_but_get_without_opening_a_cursor(log, method, path):
    client = client_of(log)

    client.open(path, method=method)

    metrics = client.application.extensions["kafkasse"]["kafkasse"].observer.metrics
    assert (0, 0) == (log.cursors, value_of(metrics, "streams_opened"))


@pytest.mark.parametrize(
    ("path", "last_id", "status"),
    [
        ("/streams/t", "", 200),
        ("/streams/missing", "", 404),
        ("/streams/t?since=never", "", 400),
        ("/streams/t", '[{"topic":"t","partition":0,"offset":3}]', 200),
        ("/streams/t", '[{"topic":"t","partition":0,"offset":9}]', 400),
        ("/streams/t", '[{"topic":"t","partition":7,"offset":0}]', 400),
        ("/streams/t", '["u"]', 404),
        ("/streams/t", "[", 400),
    ],
)
def test_head_has_the_status_and_headers_of_get(log, path, last_id, status):
    """And the end of the log, for clients of the Durable Streams protocol."""
    client = client_of(log)

    headers = {"Last-Event-ID": last_id, "X-Request-ID": "the-same"}
    with client.get(path, headers=headers, buffered=False) as got:
        head = client.head(path, headers=headers)

    assert status == 200 or log.cursors == 0
    assert (status, status) == (got.status_code, head.status_code)
    expected = dict(got.headers) | {"Content-Length": ""}
    if status == 200:
        expected["Stream-Next-Offset"] = head.headers["Stream-Next-Offset"]
    assert expected == dict(head.headers) | {"Content-Length": ""}
    assert b"" == head.data


# Rejections.


def test_an_event_id_cannot_reach_a_topic_that_is_not_allowed(log):
    """Topics in an event ID replace those of the path, and need the same permission."""
    log.create("secret")
    client = client_of(log, allowed_topics=["t"], routes={"r": {"path": "/r", "topics": ["t"]}})

    for path in ("/streams/t", "/streams/r"):
        for last_id in ('["secret"]', '["t","secret"]', '[{"topic":"secret","partition":0,"offset":0}]'):
            rejected = client.get(path, headers={"Last-Event-ID": last_id})
            assert (404, ["secret"]) == (rejected.status_code, rejected.get_json()["topics"])


def test_a_client_can_resume_after_the_topics_of_its_route_were_edited(log):
    """The client receives the added topic from where the route starts, and no more records of the removed topic."""
    for topic in ("old", "new"):
        log.create(topic)
        log.append(topic, b'{"topic":"%b"}' % topic.encode())

    def read(topics: list[str], until: bytes, **headers: str) -> list[Event]:
        route = {"path": "/r", "topics": topics, "start": "earliest"}
        return events(client_of(log, routes={"r": route}), "/streams/r", until, **headers)

    last = read(["old", "t"], b'"n":2')[-1]
    log.append("old", b'{"topic":"old"}')
    [event] = read(["t", "new"], b'"new","_kafka"', **{"Last-Event-ID": last.id})

    assert {"topic": "new"}.items() <= json.loads(event.data).items()
    assert {"t", "new"} == {entry["topic"] for entry in json.loads(event.id)}


class UnavailableLog(MemoryLog):
    def describe(self, topics: Any) -> dict[str, Topic]:
        raise KafkaUnavailable("Kafka cannot be reached.") from OSError("kafka-1.internal:9092")


def test_answers_503_while_kafka_is_unavailable():
    """Pages of allowed origins can read Retry-After. event.error is called for errors of the server, not of clients."""
    calls: list[Exception] = []
    client = client_of(UnavailableLog(), cors_origins=[A], kafka_event_handlers={"event.error": calls.append})

    rejected = client.get("/streams/t", headers={"Origin": A})
    client.get("/streams/t?timestamp=x")

    assert 503 == rejected.status_code
    assert int(rejected.headers["Retry-After"]) > 0
    assert "X-Request-ID" in rejected.headers
    assert {"Retry-After", "X-Request-ID"} <= set(rejected.headers["Access-Control-Expose-Headers"].split(", "))
    assert schemas.first_error("problem", rejected.get_json()) is None
    assert "internal" not in rejected.text
    assert ["KafkaUnavailable"] == [type(error).__name__ for error in calls]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("secret"), "A request failed unexpectedly: request_id=req-1"),
        (ConfigurationError("Patch first."), "because of the server's configuration: Patch first."),
    ],
)
def test_logs_an_unexpected_error_and_does_not_show_it(log, monkeypatch, caplog, error, line):
    """The response is a 500 with the usual JSON body and the ID of the request; the log has the cause."""
    monkeypatch.setattr(CountingLog, "describe", mock.Mock(side_effect=error))

    rejected = client_of(log).get("/streams/t", headers={"X-Request-ID": "req-1"})

    assert (500, "req-1") == (rejected.status_code, rejected.get_json()["request_id"])
    assert schemas.first_error("problem", rejected.get_json()) is None
    assert "secret" not in rejected.text
    assert str(error) in caplog.text
    assert line in caplog.text


A, B = "https://a.example", "https://b.example"


@pytest.mark.parametrize(
    ("allowed", "origin", "shown", "varies"),
    [
        ([], A, None, False),
        ([A], A, A, True),
        ([A], B, None, True),
        ([A], None, None, True),
        (["*"], B, "*", False),
        (["*"], None, "*", False),
    ],
)
def test_only_allowed_origins_may_read(log, allowed, origin, shown, varies):
    """Streams, rejections and preflight requests have CORS headers for allowed origins only, and Vary if that matters."""
    client = client_of(log, cors_origins=allowed)
    headers = {"Origin": origin} if origin else {}

    for method, path in (("HEAD", "/streams/t"), ("GET", "/streams/missing"), ("OPTIONS", "/streams/t")):
        response = client.open(path, method=method, headers=headers)
        assert (shown, varies) == (response.headers.get("Access-Control-Allow-Origin"), "Origin" in response.vary)
        assert "Access-Control-Allow-Credentials" not in response.headers
        name = "Allow-Headers" if method == "OPTIONS" else "Expose-Headers"
        assert (shown is not None) == (f"Access-Control-{name}" in response.headers)


def test_a_preflight_request_allows_the_headers_of_a_stream(log):
    """A page may send an event ID and a token. The response lists the methods, and has no body."""
    response = client_of(log, cors_origins=[A]).options("/streams/t", headers={"Origin": A})

    assert {"Last-Event-ID", "Authorization"} <= set(response.headers["Access-Control-Allow-Headers"].split(", "))
    assert (204, "GET, HEAD, OPTIONS", b"") == (response.status_code, response.headers["Allow"], response.data)


def test_a_post_is_answered_with_the_get_request_to_send_instead(log):
    """A library for fetch() can send POST. The request in the error opens the stream that the client meant."""
    client = client_of(log, cors_origins=[A])
    address = "/streams/t%2Ct?timestamp=0"
    headers = {"Origin": A, "Last-Event-ID": '[{"topic":"t","partition":0,"offset":2}]'}

    preflight = client.options(address, headers=headers | {"Access-Control-Request-Headers": "content-type"})
    rejected = client.post(address, json={"since": "2026-01-31"}, headers=headers)

    problem = rejected.get_json()
    assert (405, "GET, HEAD, OPTIONS") == (rejected.status_code, rejected.headers["Allow"])
    assert "Content-Type" in preflight.headers["Access-Control-Allow-Headers"]
    assert A == rejected.headers["Access-Control-Allow-Origin"]
    assert all(word in problem["detail"] for word in ("GET", "query", "Last-Event-ID"))
    method, url, sent = problem["instead"].values()
    response = client.open(url, method=method, headers=sent, buffered=False)
    assert [2] == [json.loads(event.data)["n"] for event in without_positions(read_events(take(response, b'"n":2')))]


def test_pages_of_allowed_origins_may_send_cookies(log):
    """With cors_credentials, a browser sends cookies from these origins only, and lets the page read the response."""
    client = client_of(log, cors_origins=[A], cors_credentials=True)

    for method in ("HEAD", "OPTIONS"):
        answers = [client.open("/streams/t", method=method, headers={"Origin": origin}) for origin in (A, B)]
        assert ["true", None] == [answer.headers.get("Access-Control-Allow-Credentials") for answer in answers]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(ZeroDivisionError(), 429), (ConfigurationError("wrong password"), 429), (KafkaUnavailable("no answer"), 503)],
)
def test_a_request_that_always_fails_is_slowed_down(log, monkeypatch, caplog, error, expected):
    """Except while Kafka is unavailable: then, many clients of one address return at the same time."""
    monkeypatch.setattr(throttle, "MAX_DELAY_S", 0.0)
    monkeypatch.setattr(CountingLog, "describe", mock.Mock(side_effect=error))
    client = client_of(log, max_rejections_per_s=0.001)  # no token is added during the test

    statuses = [
        client.get("/streams/t", environ_base={"REMOTE_ADDR": f"2001:db8::{number}"}).status_code  # one subscriber
        for number in range(throttle.BURST + 1)
    ]

    assert expected == statuses[-1]
    assert 1 >= sum(record.levelno >= logging.ERROR for record in caplog.records)


# Hooks.


def test_a_deserializer_replaces_the_message(log, caplog):
    """A record for which it fails is skipped and counted. The text of its exception cannot imitate a log line."""

    def deserialize(record: TopicRecord) -> object:
        if record.offset != 1:
            return {"upper": record.value.decode().upper()}
        raise ValueError("\r\n[INFO] all is well\x1b[2J" + "x" * 5_000)

    client = client_of(log, logger=logging.getLogger("mine"), deserializer=deserialize)

    seen = events(client, "/streams/t?timestamp=0", b'"offset":2')

    assert ['{"N":0}', '{"N":2}'] == [json.loads(event.data)["upper"] for event in seen]
    [line] = [record for record in caplog.records if "t/0 offset 1" in record.getMessage()]
    assert "mine" == line.name
    assert "\\r\\n[INFO]" in line.getMessage()
    assert line.getMessage().isprintable()
    assert len(line.getMessage()) < 1_000
    streams = client.application.extensions["kafkasse"]["kafkasse"]
    assert 1 == value_of(streams.observer.metrics, "records_skipped", topic="t", reason="deserializer")


def test_ends_the_stream_if_the_filterer_fails(log, caplog):
    """The last event is an error event. The log names the record and the line that failed, without the record's data."""

    def fail(message: dict[str, Any]) -> bool:
        raise ValueError(f"cannot filter {message}")

    client = client_of(log, filterer=fail)

    [event] = events(client, "/streams/t?timestamp=0", b"never")

    [line] = [line for line in caplog.messages if line.startswith("The filter failed")]
    assert line.startswith(f"The filter failed at t/0 offset 0: ValueError in {__file__}, line ")
    assert "cannot filter" not in caplog.text

    assert "error" == event.type
    problem = json.loads(event.data)
    assert schemas.first_error("problem", problem) is None
    assert (500, True) == (problem["status"], bool(problem["request_id"]))


def test_a_filter_that_fails_in_a_shared_feed_is_logged_once(log, caplog):
    client = client_of(log, filterer=lambda message: message["n"] >= 0)
    responses = [client.get("/streams/t", buffered=False) for _ in range(3)]
    reading = [gevent.spawn(take, response, b"event: error") for response in responses]
    registry = streams
    wait_until(lambda: ["live"] * 3 == [status["state"] for status in registry.statuses()])

    log.append("t", b"{}")

    assert all(b'"FilterError"' in greenlet.get(timeout=30) for greenlet in reading)
    assert 1 == caplog.text.count("The filter failed at t/0 offset 3: KeyError in")


def test_on_connect_error_can_replace_the_response(log):
    """It can abort, or return None for kafkasse's own response. CORS headers and `Vary` are added to its response."""
    seen: list[Exception] = []

    def hook(error: Exception) -> object:
        seen.append(error)
        if "aborted" in str(error):
            abort(410)
        return ("Nothing here.", 418, {"Vary": "Accept"}) if isinstance(error, TopicNotAvailable) else None

    client = client_of(log, on_connect_error=hook, cors_origins=[A])

    paths = ("missing", "aborted", "t?timestamp=x")
    replaced, aborted, own = (client.get(f"/streams/{path}", headers={"Origin": A}) for path in paths)
    assert (418, "Nothing here.") == (replaced.status_code, replaced.text)
    assert [A, A] == [response.headers["Access-Control-Allow-Origin"] for response in (replaced, aborted)]
    assert {"accept", "origin"} == {name.lower() for name in replaced.vary}
    assert [410, 400] == [aborted.status_code, own.status_code]
    assert 3 == len(seen)


def test_warns_of_settings_for_endpoints_that_a_blueprint_lacks(log, caplog, monkeypatch):
    """The second address would serve the app, but no endpoint for operators."""
    client_of(log)
    assert "operators" not in caplog.text
    monkeypatch.setenv("KAFKASSE_OPERATIONS_BIND", "127.0.0.1:9090")

    client_of(log, operations_access=["public"])

    assert "so remove operations_access and KAFKASSE_OPERATIONS_BIND." in caplog.text


def test_sends_the_usual_response_if_on_connect_error_fails(log, caplog):
    """A hook that raises an exception, or returns something that is not a response, is logged."""
    for hook in (lambda error: 1 / 0, lambda error: object(), mock.Mock(side_effect=gevent.Timeout(1))):
        rejected = client_of(log, on_connect_error=hook).get("/streams/missing")

        assert (404, "application/problem+json") == (rejected.status_code, rejected.mimetype)
        assert "on_connect_error failed" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("error", [RuntimeError("a handler's own bug"), gevent.Timeout(1)], ids=["error", "timeout"])
def test_calls_ready_and_disconnected_once_per_stream(log, caplog, error):
    """The handlers receive the stream's topics. A handler that raises an exception does not affect the stream."""
    calls: list[tuple[str, object]] = []

    def handle(name: str) -> Any:
        def handler(argument: object) -> None:
            calls.append((name, argument))
            raise error

        return handler

    names = ("ready", "disconnected", "event.error")
    client = client_of(log, kafka_event_handlers={name: handle(name) for name in names}, allowed_topics=["t"])
    events(client, "/streams/t?timestamp=0", b'"n":2')

    assert [("ready", ["t"]), ("disconnected", ["t"])] == calls
    assert "The handler of ready failed." in caplog.text
    assert str(error) in caplog.text
