"""Streams in apps with the usual Flask extensions and WSGI middleware, under a real server. See docs/extensions.md.

tests/extensions/app.py configures the extensions. `make test-long` also runs ddtrace and opentelemetry-instrument.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from threading import Thread
from typing import Any

import flask_login
import pytest
from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

import kafkasse
from tests.extensions.names import ORIGIN, UNCHANGED
from tests.support.any_server import AnyServer
from tests.support.client import Answer, Client, fetch, numbers
from tests.support.docs import example as docs_example
from tests.support.server import ROOT, TOOLS, Server
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def server(processes: None) -> Iterator[Server]:
    with Server("tests.extensions.app:create()") as server:
        yield server


@pytest.fixture(scope="module")
def sentry(processes: None) -> Iterator[Server]:
    with Server("tests.extensions.sentry_app:create()") as server:
        yield server


def status(server: Server | AnyServer) -> Any:
    return fetch(server.port, "/status").json


def write(server: Server, n: int) -> None:
    with Client(server.port, "/records", "POST", None, X_Number=str(n)) as client:
        assert 200 == client.status


def cookie(answer: Answer) -> str:
    return answer.headers["set-cookie"].split(";")[0]


def is_parked(server: Server | AnyServer) -> bool:
    """Return whether there is one stream, which needs no greenlet."""
    return bool(status(server)["state"] == ["parked"])


@pytest.mark.parametrize("name", UNCHANGED)
def test_an_idle_client_needs_no_greenlet(server, name):
    """Hooks of the request run when the stream opens, and those of the response once, when the stream has ended."""
    headers = {"Cookie": cookie(fetch(server.port, "/login/login", "POST"))} if name == "login" else {}
    before = status(server)["calls"]

    with Client(server.port, f"/{name}/streams/t", **headers).ready() as stream:
        wait_until(lambda: is_parked(server))
        write(server, 7)
        assert [7] == numbers(stream.events(1))
        wait_until(lambda: is_parked(server))
        during = status(server)["calls"]
    wait_until(lambda: not status(server)["state"])
    after = status(server)["calls"]

    def counts(hook: str) -> list[int]:
        return [calls.get(f"{name}.{hook}", 0) - before.get(f"{name}.{hook}", 0) for calls in (during, after)]

    assert {"teardown": [1, 1], "close": [0, 1]} == {hook: counts(hook) for hook in ("teardown", "close")}
    assert "Traceback" not in server.log


def test_middleware_that_changes_the_body_costs_a_greenlet(server):
    """The client receives the changed body. The log names the middleware once."""
    for _ in range(2):
        with Client(server.port, "/shouting/streams/t").ready() as stream:
            assert ["live"] == status(server)["state"]
            write(server, 1)
            assert [1] == numbers(stream.events(1))
            assert stream.body.startswith(b":OK")
        wait_until(lambda: not status(server)["state"])

    assert 1 == server.log.count("shouting.<locals>.middleware changes the body of streams.")


def test_a_logout_ends_the_streams_of_the_visitor_in_all_workers(processes):
    """Each of two workers has a stream. A request with the cookie of the logout gets 401."""
    with Server("tests.extensions.app:create()", WEB_CONCURRENCY="2") as server, ExitStack() as streams:
        wait_until(lambda: len(server.workers()) == 2)
        logged_in = cookie(fetch(server.port, "/login/login", "POST"))
        opened = []
        for busy in server.workers():
            os.kill(busy, signal.SIGSTOP)  # so that the other worker accepts the connection
            opened.append(streams.enter_context(Client(server.port, "/login/streams/t", Cookie=logged_in)).ready())
            os.kill(busy, signal.SIGCONT)

        ended = fetch(server.port, "/login/logout", "POST", Cookie=logged_in)

        assert b"2" == ended.body
        for stream in opened:
            stream.rest()
            assert b"retry:" in stream.body
        assert 401 == fetch(server.port, "/login/streams/t", Cookie=cookie(ended)).status


def test_flask_session_stores_the_session_when_a_stream_opens(server):
    """A request with the cookie of a stream's response has the same session."""
    with Client(server.port, "/sessions/streams/t").ready() as stream:
        sent = stream.headers["set-cookie"].split(";")[0]

        assert b"visit 2" == fetch(server.port, "/sessions/page", Cookie=sent).body


@pytest.mark.parametrize("name", ["cors", "both_cors"])
def test_flask_cors_adds_its_headers_to_streams(server, name):
    """The header occurs once, even if kafkasse allows the same origin. Preflight requests get both headers too."""
    with closing(HTTPConnection("127.0.0.1", server.port)) as connection:
        connection.request("GET", f"/{name}/streams/t", headers={"Origin": ORIGIN})
        origins = connection.getresponse().headers.get_all("Access-Control-Allow-Origin")
    asked = {
        "Access_Control_Request_Method": "GET",
        "Access_Control_Request_Headers": "Last-Event-ID",
        "Origin": ORIGIN,
    }
    preflight = fetch(server.port, f"/{name}/streams/t", "OPTIONS", **asked)

    assert [ORIGIN] == origins
    assert "last-event-id" in preflight.headers["access-control-allow-headers"].lower()


def test_flask_talisman_adds_its_headers_to_streams(server):
    """The headers of streams that forbid caching and transformation stay."""
    with Client(server.port, "/talisman/streams/t") as stream:
        assert "default-src" in stream.headers["content-security-policy"]
        assert "no-store, no-transform" == stream.headers["cache-control"]


def test_flask_limiter_counts_a_stream_as_one_request(server):
    """Open streams are not limited, only their opening."""
    with ExitStack() as streams:
        answers = [streams.enter_context(Client(server.port, "/limited/streams/t")) for _ in range(3)]

        assert [200, 200, 429] == [answer.status for answer in answers]


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson"])
def test_flask_compress_does_not_delay_records(server, accept):
    """The stream is not compressed, because Flask-Compress would keep small records in its buffer."""
    with Client(server.port, "/compress/streams/t", Accept=accept, Accept_Encoding="gzip, br, zstd") as stream:
        wait_until(lambda: is_parked(server))
        write(server, 12345)

        stream.read_until_text(b"12345")

        assert "content-encoding" not in stream.headers
    wait_until(lambda: not status(server)["state"])


def test_flask_sqlalchemy_returns_the_connection_when_a_stream_opens(server):
    """A pool with one connection serves two streams and a page at the same time."""
    with Client(server.port, "/sqlalchemy/streams/t").ready(), Client(server.port, "/sqlalchemy/streams/t").ready():
        assert 200 == fetch(server.port, "/sqlalchemy/page").status


def test_proxy_fix_sets_the_address_of_the_client(server):
    """The limit of streams per client and the log use the address that the proxy recorded."""
    with Client(server.port, "/proxy_fix/streams/t", X_Forwarded_For="203.0.113.9").ready():
        assert ["203.0.113.9"] == status(server)["client"]


@pytest.mark.parametrize("name", ["otel_flask", "otel_wsgi"])
def test_opentelemetry_records_one_span_for_each_stream(server, name):
    """The Flask instrumentation ends the span when the stream opens, and the WSGI middleware when the stream ends."""
    before = len(status(server)["spans"])
    with Client(server.port, f"/{name}/streams/t").ready():
        wait_until(lambda: is_parked(server))
        during = len(status(server)["spans"]) - before
    wait_until(lambda: not status(server)["state"])

    assert (int(name == "otel_flask"), 1) == (during, len(status(server)["spans"]) - before)
    assert "Failed to detach context" not in server.log


def test_the_prometheus_exporter_counts_a_stream_when_it_opens(server):
    """The metrics have the name of the route, not the path. make_wsgi_app() beside the streams works too."""
    with Client(server.port, "/prometheus/streams/t").ready():
        metrics = fetch(server.port, "/prometheus/metrics").body

    assert b'duration_seconds_count{endpoint="kafkasse.topics",method="GET",status="200"}' in metrics
    assert 200 == fetch(server.port, "/metrics").status


def test_sentry_reports_a_stream_when_it_opens(sentry):
    """sentry-sdk wraps every Flask app of the process. An idle client needs no greenlet."""
    with Client(sentry.port, "/streams/t").ready() as stream:
        wait_until(lambda: is_parked(sentry))
        write(sentry, 7)

        assert [7] == numbers(stream.events(1))
        assert "transaction kafkasse.topics" in fetch(sentry.port, "/sent").json
    wait_until(lambda: not status(sentry)["state"])
    assert "_ScopedResponse wraps the body of streams." in sentry.log


# These are not in requirements-dev.txt, because ddtrace is large. `make tools` installs them.

PROGRAMS = TOOLS / "extensions/bin"
SPAN = "flask.request GET /streams/<topics>"
WORKER = "--worker-class kafkasse.server.worker.Worker"


@pytest.mark.long
@pytest.mark.parametrize("options", [WORKER, "-c python:kafkasse.server.gunicorn_conf"])
def test_ddtrace_ends_its_span_when_the_stream_ends(processes, tmp_path, options):
    """docs/extensions.md has this command and the variable."""
    command = f"{PROGRAMS}/ddtrace-run {PROGRAMS}/gunicorn --bind 127.0.0.1:{{port}} {options}"
    variables = {"DD_UNLOAD_MODULES_FROM_SITECUSTOMIZE": "0", "DD_REMOTE_CONFIGURATION_ENABLED": "0"}
    server = AnyServer(f"{command} tests.extensions.datadog_app:app", tmp_path / "log", **variables)
    try:
        with Client(server.port, "/streams/t").ready() as stream:
            wait_until(lambda: is_parked(server))
            assert 200 == fetch(server.port, "/records", "POST").status
            assert [1] == numbers(stream.events(1))
            assert SPAN not in status(server)["spans"]
        wait_until(lambda: SPAN in status(server)["spans"])
    finally:
        server.stop()


@pytest.mark.long
def test_opentelemetry_exports_the_span_of_an_open_stream(processes, tmp_path, collector):
    """docs/operations.md has this command and the variables."""
    sample = docs_example("docs/operations.md", "opentelemetry-instrument")
    *_, command = sample.splitlines()
    command = command.replace(
        "opentelemetry-instrument gunicorn", f"{PROGRAMS}/opentelemetry-instrument {PROGRAMS}/gunicorn"
    )
    command = command.replace("shop:app", "--bind 127.0.0.1:{port} tests.support.shop:app")
    variables = dict(re.findall(r"\b(OTEL_\w+)=(\S+)", sample)) | {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    server = AnyServer(command, tmp_path / "log", **variables)
    try:
        with Client(server.port, "/streams/t").ready():
            wait_until(lambda: b"kafkasse open stream" in collector.received)
    finally:
        server.expect("KeyError")  # gevent, when the exporter's threads end in a process that was forked
        server.stop()


class Collector:
    """A server for OpenTelemetry's exporters: `received` has the bodies of all requests."""

    def __init__(self) -> None:
        self.received = b""
        self._server = HTTPServer(("127.0.0.1", 0), self._handler())
        self.port = self._server.server_port
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.received += self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.end_headers()

        return Handler

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with closing(Collector()) as collector:
        yield collector


PAGE = "".join((ROOT / f"docs/{page}.md").read_text() for page in ("extensions", "flask"))
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
BLUEPRINT = kafkasse.blueprint


def example(text: str) -> str:
    (code,) = [code for code in EXAMPLES if text in code]
    return str(code)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the examples do not define: an app, a configuration and, instead of Kafka, a log in memory."""
    log = kafkasse.MemoryLog()
    log.create("orders")
    log.append("orders", b'{"n":1}')
    monkeypatch.setattr(
        kafkasse, "blueprint", lambda config, **options: BLUEPRINT(config, log, **options), raising=False
    )
    app = Flask("shop")
    app.testing = True
    app.secret_key = "for a test"  # noqa: S105
    config = kafkasse.Config(allowed_topics=["orders"], public=True)
    limiter = Limiter(get_remote_address, app=app, default_limits=["1 per hour"], storage_uri="memory://")
    return {"app": app, "config": config, "kafkasse": kafkasse, "limiter": limiter}


def run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "docs/extensions.md", "exec"), names)  # noqa: S102 - our own docs


def test_the_example_of_a_unit_test_passes(processes, tmp_path):
    """It runs in a process of its own, in which gevent has not patched the standard library."""
    (tmp_path / "streams.py").write_text(example("def add_streams"))
    (tmp_path / "test_streams.py").write_text(example("def test_a_stream_needs_a_login"))

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_streams.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_the_example_of_a_login_protects_the_streams(names):
    """A logout ends the streams that are open, and one that another tab opens before the response has been sent."""
    app = names["app"]
    app.testing = False  # otherwise, each stream ends at the end of its topic
    flask_login.LoginManager(app).user_loader(lambda name: _User(name))
    names["limiter"].enabled = False
    app.add_url_rule("/login", view_func=lambda: str(flask_login.login_user(_User("ada"))))
    run(example("current_user.is_authenticated"), names)
    route = {"path": "/orders", "topics": ["orders"], "access": ["session"]}
    config = kafkasse.Config.load(guards={"session": names["login"]}, routes={"my_orders": route})
    app.register_blueprint(kafkasse.blueprint(config), url_prefix="/streams")
    client, other_tab = app.test_client(), app.test_client()

    answers = [client.get(path) for path in ("/streams/orders", "/login", "/streams/orders")]
    other_tab.set_cookie("session", client.get_cookie("session").value)
    answers += [client.post("/logout"), other_tab.get("/streams/orders"), client.get("/streams/orders")]
    answers[3].close()
    for stream in (answers[2], answers[4]):
        stream.get_data()

    assert [401, 200, 200, 302, 200, 401] == [answer.status_code for answer in answers]


class _User(flask_login.UserMixin):
    def __init__(self, name: str) -> None:
        self.id = name


def test_the_example_of_rate_limits_exempts_the_streams(names):
    """The limit of one request per hour still applies to other paths."""
    run(example("limiter.exempt"), names)
    names["app"].add_url_rule("/page", view_func=lambda: "page")
    client = names["app"].test_client()

    answers = [client.get(path).status_code for path in ("/streams/orders", "/streams/orders", "/page", "/page")]

    assert [200, 200, 200, 429] == answers


def test_the_example_of_a_hook_skips_streams(names):
    """Without the check, the client would get 500."""
    run(example("def log_body"), names)
    names["app"].register_blueprint(kafkasse.blueprint(names["config"]), url_prefix="/streams")

    assert '"n":1' in names["app"].test_client().get("/streams/orders?timestamp=0").text


def test_the_example_of_prefixes_mounts_the_streams(names):
    """The first blueprint has a prefix with a parameter, and the second a subdomain."""
    app = names["app"]
    names["limiter"].enabled = False
    app.config["SERVER_NAME"] = "shop.example"
    app.subdomain_matching = True
    run(example("<tenant>"), names)
    client = app.test_client()

    urls = ("http://shop.example/acme/streams/orders", "http://live.shop.example/orders")

    assert [200, 200] == [client.get(url).status_code for url in urls]


def test_the_example_of_middleware_leaves_streams_alone(names):
    body = [b"body"]
    names["change"] = lambda parts: [b"changed"]
    run(example("class Middleware"), names)
    middleware = names["Middleware"](lambda *_: body)

    assert body is middleware({"PATH_INFO": "/streams/orders"}, None)
    assert [b"changed"] == middleware({"PATH_INFO": "/page"}, None)


def test_the_table_names_the_installed_versions():
    rows = re.findall(r"^\| ([A-Za-z-]+)[^|]*\| ([\d.b]+) \|", PAGE, re.MULTILINE)
    special = {"OpenTelemetry": "opentelemetry-instrumentation-flask"}
    pins = dict(
        re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "tests/extensions/requirements.txt").read_text(), re.MULTILINE)
    )

    assert {name: pins.get(name) or metadata.version(special.get(name, name)) for name, _ in rows} == dict(rows)
    assert 13 == len(rows)
