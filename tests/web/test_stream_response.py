"""Hooks of the host app that use the response of a stream, where it mounts the streams, and which server runs it."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from flask import Flask, Response, request
from flask.testing import FlaskClient
from werkzeug.datastructures import Headers
from werkzeug.test import create_environ

import kafkasse
from kafkasse.errors import ConfigurationError
from kafkasse.web.public_url import MAX_ROOTS
from kafkasse.web.wsgi_server import WsgiServer, is_test_client


def app_with(hook: Callable[[Response], Response | None]) -> Flask:
    """Return an app whose hook receives each response, and may replace it."""
    log = kafkasse.MemoryLog()
    log.create("t")
    log.append("t", b'{"n":1}')
    app = Flask("host")
    app.after_request(lambda response: hook(response) or response)
    config = kafkasse.Config(allowed_topics=["t"], public=True, max_streams=1)
    app.register_blueprint(kafkasse.blueprint(config, log), url_prefix="/streams")
    app.testing = True
    app.config["PROPAGATE_EXCEPTIONS"] = False
    return app


@contextmanager
def without_collections() -> Iterator[None]:
    """Keep the garbage collector from closing a stream that a traceback keeps alive."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()  # otherwise a collection within ast.parse() could switch greenlets, which breaks Python 3.11's parser


@pytest.mark.parametrize("passthrough", [True, False])  # Flask's documentation suggests False for files
@pytest.mark.parametrize(
    "read",
    [
        lambda response: response.get_data(),
        lambda response: response.data,
        lambda response: response.make_sequence(),
        lambda response: response.freeze(),
        lambda response: response.add_etag(),
        lambda response: response.get_json(force=True),
    ],
)
def test_a_hook_that_reads_the_body_fails_without_leaking_the_stream(read, passthrough):
    """The stream is closed at once, so that it does not count against max_streams. The request does not hang."""
    must_read = True

    def hook(response: Response) -> None:
        if must_read:
            response.direct_passthrough &= passthrough
            read(response)

    client = app_with(hook).test_client()
    with without_collections():
        failed = [client.get("/streams/t?timestamp=0").status_code for _ in range(3)]
        must_read = False
        opened = client.get("/streams/t?timestamp=0")

    assert ([500] * 3, 200) == (failed, opened.status_code)


@pytest.mark.parametrize(
    "use",
    [
        lambda response: response.calculate_content_length(),
        lambda response: response.content_length,
        lambda response: response.is_streamed,
        lambda response: response.make_conditional({"REQUEST_METHOD": "GET"}),
        lambda response: setattr(response, "direct_passthrough", False),
    ],
)
def test_a_hook_may_inspect_the_response(use):
    def hook(response: Response) -> None:
        use(response)

    client = app_with(hook).test_client()

    assert [True] * 2 == ['"n":1' in client.get("/streams/t?timestamp=0").text for _ in range(2)]


def test_a_hook_that_replaces_the_response_closes_the_stream():
    client = app_with(lambda _: Response("replaced")).test_client()

    assert ["replaced"] * 3 == [client.get("/streams/t").text for _ in range(3)]


def test_call_on_close_runs_once_when_the_stream_has_ended():
    """A hook can release what it needs for the whole stream. If one function fails, the next ones still run."""
    calls: list[str] = []

    def hook(response: Response) -> None:
        for call in (lambda: calls.append("first"), lambda: 1 / 0, lambda: calls.append("last")):
            response.call_on_close(call)

    with app_with(hook).test_client().get("/streams/t?timestamp=0", buffered=False) as response:
        next(iter(response.response))
        during = list(calls)

    assert ([], ["first", "last"]) == (during, calls)


def test_an_app_may_have_its_own_response_class():
    """Streams are instances of this class, and hooks work as with Flask's class."""
    calls: list[type] = []

    class Own(Response):
        def get_wsgi_headers(self, environ: dict[str, Any]) -> Headers:
            headers = super().get_wsgi_headers(environ)
            headers["X-Own"] = "1"
            return headers

    def hook(response: Response) -> None:
        response.call_on_close(lambda: calls.append(type(response)))

    app = app_with(hook)
    app.response_class = Own
    response = app.test_client().get("/streams/t?timestamp=0")

    assert '"n":1' in response.text
    assert "1" == response.headers["X-Own"]
    assert [True] == [issubclass(response_type, Own) for response_type in calls]


def test_the_response_has_no_content_encoding():
    """Extensions that compress see one, so that they do not compress the stream, but the client does not receive it."""
    seen: list[str | None] = []

    app = app_with(lambda response: seen.append(response.content_encoding))

    responses = []
    for method in ("GET", "HEAD"):
        with app.test_client().open("/streams/t", method=method) as response:
            responses.append(response)

    assert ["identity"] * 2 == seen
    assert [None] * 2 == [answer.content_encoding for answer in responses]


# Where an app can mount the streams.


def mounted(**options: Any) -> FlaskClient:
    """Return a client of an app that registers the blueprint with these options."""
    log = kafkasse.MemoryLog()
    log.create("orders")
    log.append("orders", b'{"n":1}', key=b"a")
    app = Flask("host")
    app.testing = True
    app.config["SERVER_NAME"] = "shop.example"
    app.subdomain_matching = True
    routes = {"r": {"path": "/r/{key}", "topics": ["orders"], "where": {"key": "{key}"}, "start": "earliest"}}
    config = kafkasse.Config(allowed_topics=["orders"], public=True, routes=routes)
    app.register_blueprint(kafkasse.blueprint(config, log), **options)
    return app.test_client()


@pytest.mark.parametrize("path", ["/orders?timestamp=0", "/r/a"])
@pytest.mark.parametrize(
    ("options", "host", "prefix"),
    [
        ({"url_prefix": "/<tenant>/streams"}, "shop.example", "/acme/streams"),
        ({"url_prefix": "/<int:shop>/streams"}, "shop.example", "/7/streams"),
        ({"subdomain": "streams"}, "streams.shop.example", ""),
        ({"subdomain": "<tenant>"}, "acme.shop.example", ""),
        ({"subdomain": "<tenant>", "url_prefix": "/<int:shop>"}, "acme.shop.example", "/7"),
    ],
)
def test_a_prefix_and_a_subdomain_may_have_parameters(options, host, prefix, path):
    """The app's own hooks receive the parameters in request.view_args."""
    response = mounted(**options).get(f"{prefix}{path}", base_url=f"http://{host}")

    assert '"n":1' in response.text


def test_the_app_may_remove_the_parameters_of_the_prefix():
    """For example the tenant or the language, in a url_value_preprocessor() for all of its URLs."""
    client = mounted(url_prefix="/<tenant>/streams")
    client.application.url_value_preprocessor(lambda _, values: values.pop("tenant"))

    response, missing = (client.get(f"/acme/streams/{path}") for path in ("orders?timestamp=0", "missing"))

    assert '"n":1' in response.text
    assert "/acme/streams/-/problems/topic-not-available" == missing.json["type"]


def test_the_pages_of_errors_are_below_the_prefix_of_each_request():
    """An app may register the blueprint at several prefixes, and proxies may add others."""
    app, streams = (
        Flask("host"),
        kafkasse.blueprint(kafkasse.Config(allowed_topics=["t"], public=True), kafkasse.MemoryLog()),
    )
    for prefix in ("/a", "/b", "/<tenant>/c"):
        app.register_blueprint(streams, url_prefix=prefix, name=prefix[-1])
    mounts = [(script, prefix) for script in ("", "/x", "/y") for prefix in ("/a", "/b", "/acme/c", "/other/c")]

    types = [
        app.test_client().get(f"{prefix}/missing", environ_overrides={"SCRIPT_NAME": script}).json["type"]
        for script, prefix in mounts
    ]

    assert [f"{script}{prefix}/-/problems/topic-not-available" for script, prefix in mounts] == types


def test_urls_contain_no_values_of_a_visitor():
    """The app's own url_defaults() may add them to all of its URLs."""
    client = mounted(url_prefix="/streams")
    client.application.url_defaults(lambda endpoint, values: values.setdefault("customer", request.headers["Customer"]))

    types = {client.get("/streams/missing", headers={"Customer": name}).json["type"] for name in ("alice", "bob")}

    assert {"/streams/-/problems/topic-not-available"} == types


def test_the_number_of_prefixes_that_are_cached_is_limited():
    """Some servers take the prefix from a header."""
    client = mounted()
    for number in range(MAX_ROOTS + 2):
        environ = {"SCRIPT_NAME": f"/{number}", "REMOTE_ADDR": f"10.0.0.{number}"}  # rejections of one address are slow
        client.get("/missing", base_url="http://shop.example", environ_overrides=environ)

    assert MAX_ROOTS == len(client.application.extensions["kafkasse"]["kafkasse"].urls._roots)


@pytest.mark.parametrize("path", ["/", "/-/demo", "/-/page/kafkasse.js", "/topn/updates", "/-/health", "/-/metrics"])
def test_the_pages_and_routes_of_the_demo_are_not_mounted(path):
    """A host app gets only the streams of its own configuration, even if the setting `pages` is on."""
    assert 404 == mounted(url_prefix="/streams").get(f"/streams{path}", base_url="http://shop.example").status_code
    assert 404 == mounted().get(path, base_url="http://shop.example").status_code


# Unit tests of a host app.


def test_a_stream_ends_in_a_unit_test():
    """For Flask's test client in an app with TESTING, a stream contains the records that exist, then it ends."""
    client = mounted()

    bodies = [client.get(path, base_url="http://shop.example").text for path in ("/orders?timestamp=0", "/orders")]

    assert [1, 0] == [body.count('"n":1') for body in bodies]


@pytest.mark.parametrize(
    "server",
    [
        {"SERVER_SOFTWARE": "gunicorn/26.0"},
        {"wsgi.multithread": True},
        {"wsgi.multiprocess": True},  # Tornado and bjoern
        {"uwsgi.version": b"2.0"},
    ],
)
def test_a_stream_under_a_server_has_no_end(server):
    """Not even if TESTING was set in production by mistake."""
    environ = create_environ()

    assert is_test_client(environ)
    assert not is_test_client(environ | server)


def test_mod_wsgi_names_the_command_to_use(monkeypatch, caplog):
    """The log names it when the app is loaded, and each request is rejected. server/test_wsgi_servers.py runs the others."""
    monkeypatch.setitem(sys.modules, "mod_wsgi", ModuleType("mod_wsgi"))

    server = WsgiServer(1, logging.getLogger("kafkasse"))

    command = "gunicorn --worker-class kafkasse.server.worker.Worker"
    assert command in caplog.text
    with pytest.raises(ConfigurationError, match=command):
        server.check({"wsgi.multithread": True, "wsgi.multiprocess": True, "SERVER_SOFTWARE": "Apache/2.4.62"})
