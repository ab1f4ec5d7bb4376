"""The app of wsgi.py: streams, pages, health and metrics, and one form for all errors."""

from __future__ import annotations

import os
import re
import socket
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from kafkasse import schemas
from kafkasse.access import Visitor
from kafkasse.app import create_app
from kafkasse.config import Config
from kafkasse.errors import KafkaUnavailable
from kafkasse.log.memory import MemoryLog
from kafkasse.process import control, runtime
from kafkasse.process.open_streams import streams
from kafkasse.web import throttle


@pytest.fixture
def app() -> Flask:
    log = MemoryLog()
    log.create("t")
    log.append("t", b"{")
    log.append("t", b'{"n":1}')
    return create_app(Config(heartbeat_s=0.05, allowed_topics=["*"], public=True, operations_access=["public"]), log)


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


def client_with(**settings: Any) -> FlaskClient:
    """A client of a public app with the topic `t`."""
    log = MemoryLog()
    log.create("t")
    return create_app(Config(**{"allowed_topics": ["*"], "public": True, **settings}), log).test_client()


def problem(response: TestResponse, status: int) -> dict[str, object]:
    """Return the body of an error, which must match the schema."""
    body = response.get_json()

    assert status == response.status_code == body["status"]
    assert "application/problem+json" == response.mimetype
    assert schemas.first_error("problem", body) is None
    return dict(body)


class _Cluster(MemoryLog):
    is_up = False

    def topic_names(self) -> set[str]:
        if self.is_up:
            return super().topic_names()
        raise KafkaUnavailable("Kafka cannot be reached.")


@pytest.fixture
def kafka() -> _Cluster:
    return _Cluster()


@pytest.fixture
def probed(kafka: _Cluster) -> Flask:
    return create_app(Config(allowed_topics=["*"], public=True), kafka)


def test_is_ready_as_soon_as_kafka_has_answered(probed, kafka):
    """Until Kafka has answered once, the process is alive but not ready. A later failure of Kafka does not count."""
    client = probed.test_client()
    before = client.get("/-/ready")
    health = client.get("/-/health")
    kafka.is_up = True
    reached = client.get("/-/ready")
    kafka.is_up = False
    later = client.get("/-/ready")

    assert "KafkaUnavailableError" == problem(before, 503)["name"]
    assert [200, 200, 200] == [health.status_code, reached.status_code, later.status_code]
    assert "ok" == reached.get_json()["status"]


def test_all_workers_are_ready_after_one_has_reached_kafka(monkeypatch, tmp_path, kafka):
    """A probe may reach any worker, also one that started while Kafka was down, and must not remove the whole process."""
    monkeypatch.setenv(runtime.FOLDER_VARIABLE, str(tmp_path))
    first, second = (create_app(Config(allowed_topics=["*"], public=True), kafka).test_client() for _ in range(2))
    before = [worker.get("/-/ready").status_code for worker in (first, second)]
    kafka.is_up = True
    first.get("/-/ready")
    kafka.is_up = False

    assert ([503, 503], 200) == (before, second.get("/-/ready").status_code)


@pytest.mark.parametrize(
    ("accept", "expected"), [("text/event-stream", rb":ok\n\nretry: \d+\n\n"), ("application/x-ndjson", rb"\n")]
)
def test_a_stream_that_a_stopping_process_receives_ends_at_once(probed, accept, expected):
    """The client reconnects, and keeps its event ID. After a 503, EventSource would give up."""
    streams.drain()

    response = probed.test_client().get("/t", headers={"Accept": accept})

    assert 200 == response.status_code
    assert response.content_type.startswith(accept)
    assert re.fullmatch(expected, response.data)


def test_is_not_ready_while_it_drains(probed, kafka):
    """A process that is stopping is alive, because a restart would not help, but it opens no more streams."""
    client = probed.test_client()
    kafka.is_up = True
    ready = client.get("/-/ready")
    streams.drain()

    assert 200 == ready.status_code
    assert "ServerStoppingError" == problem(client.get("/-/ready"), 503)["name"]
    assert 200 == client.get("/-/health").status_code


@pytest.mark.parametrize(("cluster_of_route", "status"), [("eu", 200), ("", 503)])
def test_one_cluster_that_answers_is_enough(monkeypatch, kafka, cluster_of_route, status):
    """A cluster that cannot be reached does not affect the routes of another. A cluster without routes does not count."""
    answering = _Cluster()
    answering.is_up = True
    monkeypatch.setattr("kafkasse.app.open_kafka_log", lambda config, cluster: answering)
    route = {"path": "/prices", "topics": ["prices"]} | ({"cluster": cluster_of_route} if cluster_of_route else {})
    clusters = {"eu": {"bootstrap_servers": "kafka-eu.example:9092"}}
    config = Config(allowed_topics=["*"], public=True, clusters=clusters, routes={"prices": route})

    assert status == create_app(config, kafka).test_client().get("/-/ready").status_code


def test_probes_are_not_counted_as_rejected_requests(probed):
    """A platform repeats a probe every few seconds, so the counter would show probes instead of clients."""
    service = probed.extensions["kafkasse"]["kafkasse"]

    probed.test_client().get("/-/ready")

    assert b"requests_rejected_total{" not in service.observer.render()


def metric(client: FlaskClient, name: str) -> int:
    lines = client.get("/-/metrics").text.splitlines()
    values = (line for line in lines if line.startswith(name))
    return sum(int(float(line.split()[-1])) for line in values)


def test_counts_streams_errors_and_skipped_records(client):
    client.get("/missing")
    with client.get("/t?timestamp=0", buffered=False) as stream:
        chunks = iter(stream.response)
        while b'"n":1' not in next(chunks):
            pass

        assert 1 == metric(client, "kafkasse_streams_opened_total")
        assert 0 == metric(client, "kafkasse_streams_closed_total")
        assert 1 == client.get("/-/health").get_json()["streams"]

    assert 1 == metric(client, "kafkasse_streams_closed_total")
    assert 1 == metric(client, 'kafkasse_records_skipped_total{reason="not_json",topic="t"}')
    assert 1 == metric(client, 'kafkasse_requests_rejected_total{error="TopicNotAvailable",status="404"}')
    assert 0 == client.get("/-/health").get_json()["streams"]


def test_every_counter_is_described_and_starts_at_0(client):
    text = client.get("/-/metrics").text

    assert text.count("# HELP ") == text.count("# TYPE ") > 3
    assert 'kafkasse_streams_opened_total{route="topics"} 0.0\n' in text


@pytest.mark.parametrize("path", ["/-/demo", "/-/page/page.js"])
@pytest.mark.parametrize(("stream", "status"), [("/topn/updates", 200), ("/other", 404)])
def test_serves_the_demo_page_next_to_its_stream(path, stream, status):
    """Without the stream, the page of the countries could only wait for it, for example on a user's own Kafka."""
    routes = {"topn": {"path": stream, "topics": ["topn"]}}
    client = create_app(Config(routes=routes, public=True), MemoryLog()).test_client()

    assert status == client.get(path).status_code


@pytest.mark.parametrize("path", ["/missing", "/no/such/path"])
def test_slows_down_a_client_that_repeats_rejected_requests(monkeypatch, path):
    """Also if no route has the path. Other requests of the same address succeed, and do not count."""
    monkeypatch.setattr(throttle, "MAX_DELAY_S", 0.0)
    client = client_with(max_rejections_per_s=0.001)

    statuses = [client.head(url).status_code for _ in range(throttle.BURST + 1) for url in ("/t", path)]

    assert [200, 404] * throttle.BURST + [200, 429] == statuses


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/no/such/path", 404), ("PROPFIND", "/t", 405)])
def test_a_page_of_another_origin_can_read_the_errors_of_flask(method, path, status):
    """Otherwise, the server would seem unreachable to the page, and kafkasse.js would retry for ever."""
    client = client_with(cors_origins=["https://a.example"])

    allowed = client.open(path, method=method, headers={"Origin": "https://a.example"})
    other = client.open(path, method=method, headers={"Origin": "https://b.example"})

    problem(allowed, status)
    assert "https://a.example" == allowed.headers["Access-Control-Allow-Origin"]
    assert "Access-Control-Allow-Origin" not in other.headers
    assert ["Origin"] * 2 == [response.headers["Vary"] for response in (allowed, other)]


@pytest.mark.parametrize(
    ("path", "status"), [("//t", 200), ("//evil.example/t", 404), ("/-//health", 404), ("/slash", 200)]
)
def test_no_redirect_repeats_the_host_of_the_request(path, status):
    """A client can forge the Host header, and a shared cache could send the redirect to others."""
    client = client_with(routes={"slash": {"path": "/slash/", "topics": ["t"]}})

    response = client.head(base_url="http://evil.example", environ_overrides={"PATH_INFO": path})

    assert status == response.status_code
    assert "Location" not in response.headers


@pytest.mark.parametrize(
    "path",
    ["/t", "/missing", "/-/health", "/-/metrics", "/a/b", "/", "/-/demo", "/-/page/kafkasse.js", "/-/console/app.js"],
)
@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "PROPFIND"])
def test_no_response_may_be_sniffed_or_cached(method, path):
    """Every response has nosniff. The files of the demo's page may be cached, but only if the cache revalidates them."""
    log = MemoryLog()
    log.create("t")
    routes = {"topn": {"path": "/topn/updates", "topics": ["t"]}}

    response = (
        create_app(Config(routes=routes, allowed_topics=["*"], public=True), log)
        .test_client()
        .open(path, method=method)
    )

    assert "nosniff" == response.headers["X-Content-Type-Options"]
    assert response.headers["Cache-Control"].startswith(("no-store", "no-cache"))


# The endpoints for operators.


@pytest.mark.parametrize("path", ["/-/metrics", "/-/streams", "/-/status"])
def test_the_endpoints_for_operators_are_not_public(path):
    """By default, they get the same 404 as an unknown path."""
    problem(client_with().get(path), 404)


@pytest.mark.parametrize(("token", "status"), [("", 401), ("staff", 403), ("operator", 200)])
def test_a_guard_protects_the_endpoints_for_operators(token, status):
    """The streams of the same server may be public."""
    config = Config(
        allowed_topics=["*"],
        public=True,
        guards={"staff": lambda request: Visitor(name=token, claims={"role": token}) if token else None},
        operations_access=[{"guard": "staff", "claims": {"role": ["operator"]}}],
    )
    client = create_app(config, MemoryLog()).test_client()

    assert [status] * 3 == [client.get(path).status_code for path in ("/-/metrics", "/-/streams", "/-/status")]
    assert (404 if status == 200 else status) == client.delete("/-/streams/1-999999").status_code


def test_the_status_contains_workers_and_clusters(kafka):
    config = Config(allowed_topics=["*"], public=True, operations_access=["public"])
    up, down = (create_app(config, log).test_client().get("/-/status").get_json() for log in (MemoryLog(), kafka))

    assert {"workers": [os.getpid()], "clusters": [{"name": "", "state": "reachable", "detail": ""}]} == up
    assert [{"name": "", "state": "unavailable", "detail": "Kafka cannot be reached."}] == down["clusters"]


def test_the_list_of_streams_can_be_limited(client):
    """The console asks for the first ones, because there may be 100,000."""
    with client.get("/t?timestamp=0", buffered=False), client.get("/t?timestamp=0", buffered=False):
        counts = [len(client.get(f"/-/streams?limit={n}").get_json()["streams"]) for n in (0, 1, 2, 3)]
        assert [400] * 3 == [client.get(f"/-/streams?limit={n}").status_code for n in ("abc", "-1", "9" * 4301)]

    assert [0, 1, 2, 2] == counts


def test_lists_and_ends_the_streams_of_a_process(client):
    """Without gunicorn.conf.py, these are the streams of the process that answers."""
    with client.get("/t?timestamp=0", buffered=False) as stream:
        chunks = iter(stream.response)
        next(chunks)
        (listed,) = client.get("/-/streams").get_json()["streams"]

        assert ("topics", "127.0.0.1", 1) == (
            listed["route"],
            listed["client"],
            client.get("/-/health").json["streams"],
        )
        assert 204 == client.delete(f"/-/streams/{listed['id']}").status_code
        assert b"retry: " in b"".join(chunks)

    problem(client.delete(f"/-/streams/{listed['id']}"), 404)


def test_names_the_workers_that_do_not_answer(client, tmp_path, monkeypatch):
    """The list lacks their streams. One of these workers may have the stream that no other worker has."""
    monkeypatch.setattr(control, "TIMEOUT_S", 0.1)
    path = tmp_path / "worker-12345.sock"
    with socket.socket(socket.AF_UNIX) as hangs:
        hangs.bind(str(path))
        hangs.listen()
        monkeypatch.setattr(runtime, "worker_sockets", lambda: [path])

        assert {"streams": [], "silent_workers": [12345]} == client.get("/-/streams").get_json()
        problem(client.delete("/-/streams/12345-1"), 503)

    assert {"streams": [], "silent_workers": []} == client.get("/-/streams").get_json()  # the worker has exited
    problem(client.delete("/-/streams/12345-1"), 404)
