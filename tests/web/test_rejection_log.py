"""The log line of a rejected request, which operators find by its request_id."""

from __future__ import annotations

import logging
import re
from functools import partial

import pytest
from flask.testing import FlaskClient

from kafkasse import Config, MemoryLog, Visitor
from kafkasse.app import create_app
from kafkasse.process.limited_log import INTERVAL_S, MAX_LINES, LimitedLog
from kafkasse.web.observer import Observer

LOGGER = logging.getLogger("test.rejections")


@pytest.fixture
def client(caplog: pytest.LogCaptureFixture) -> FlaskClient:
    """A server with a guard that knows every visitor, and the topic `t`."""
    caplog.set_level(logging.INFO, "kafkasse")
    log = MemoryLog()
    log.create("t")
    guards = {"strangers": lambda _: None, "all": lambda _: Visitor(name="ada")}
    routes = {
        "closed": {"path": "/closed", "topics": ["t"], "access": ["strangers"]},
        "admins": {"path": "/admins", "topics": ["t"], "access": [{"guard": "all", "claims": {"role": ["admin"]}}]},
    }
    return create_app(Config(guards=guards, routes=routes, allowed_topics=["t"], access=["all"]), log).test_client()


@pytest.mark.parametrize(
    ("path", "route", "status", "error"),
    [
        ("/closed", " route=closed", 401, "Unauthorized"),
        ("/admins", " route=admins", 403, "Forbidden"),
        ("/<missing>", " route=topics", 404, "TopicNotAvailable"),
        ("/no/such/page", "", 404, "NotFound"),
        ("/t?timestamp=never", " route=topics", 400, "InvalidParameter"),
    ],
)
def test_a_rejected_request_has_a_line_with_its_id(client, caplog, path, route, status, error):
    """The line contains no text from the client, which may be a ticket or a part of another line."""
    rejected = client.get(path, headers={"X-Request-ID": "req-1"})

    assert (status, "req-1") == (rejected.status_code, rejected.json["request_id"])
    assert "req-1" == rejected.headers["X-Request-ID"]
    assert caplog.messages == [
        f"A request was rejected: request_id=req-1{route} client=127.0.0.1 status={status} error={error}"
    ]


def test_the_line_of_a_rejected_token_says_why_without_the_token(caplog, tmp_path):
    caplog.set_level(logging.INFO, "kafkasse")
    (tmp_path / "keys").write_text(f"a:{'0' * 64}\n")
    log = MemoryLog()
    log.create("t")
    guards = {"keys": {"api_keys": {"file": str(tmp_path / "keys")}}}
    client = create_app(Config(guards=guards, allowed_topics=["t"], access=["keys"]), log).test_client()

    client.get("/t", headers={"X-Request-ID": "req-1", "Authorization": f"Bearer kafkasse_{'A' * 43}"})

    assert caplog.messages == [
        "A request was rejected: request_id=req-1 route=topics client=127.0.0.1 status=401 error=Unauthorized "
        'reason="The API key is unknown or was revoked."'
    ]


@pytest.mark.parametrize(("name", "text"), [("max_streams", "This route"), ("max_streams_per_client", "You")])
def test_the_line_of_a_request_above_a_limit_names_the_limit(caplog, name, text):
    """The name of the error does not say which limit was reached."""
    caplog.set_level(logging.INFO, "kafkasse")
    log = MemoryLog()
    log.create("t")
    routes = {"r": {"path": "/r", "topics": ["t"], name: 1}}
    client = create_app(Config(routes=routes, public=True), log).test_client()

    with client.get("/r", buffered=False):
        client.get("/r")

    assert re.search(rf' reason="{text} .*\({name}=1\)', caplog.text)


def test_a_client_in_a_loop_does_not_fill_the_log(client, caplog):
    """Only the first request with each error has a line. At the level debug, each request has one."""
    for path in ("/closed", "/closed", "/missing", "/closed"):
        client.get(path)
    at_info = len(caplog.messages)
    caplog.set_level(logging.DEBUG, "kafkasse")
    client.get("/closed")

    assert (2, 3) == (at_info, len(caplog.messages))


def test_each_client_and_each_error_has_a_line(caplog):
    caplog.set_level(logging.INFO, LOGGER.name)
    observer = Observer([], LOGGER)
    for number, (client, error) in enumerate([("a", "X"), ("a", "X"), ("b", "X"), ("a", "Y")]):
        observer.rejected(f"{number}", "topics", client, 400, error)

    assert ["request_id=0", "request_id=2", "request_id=3"] == [line.split()[4] for line in caplog.messages]


def test_an_error_of_the_server_has_one_traceback_in_an_interval(caplog):
    """A request that fails in a loop cannot fill the log. Each line of code that fails has its own interval."""
    caplog.set_level(logging.INFO, LOGGER.name)
    observer = Observer([], LOGGER)
    for text, number in (("x", 1), ("y", 2), ("3", 0)):
        try:
            int(text)
            1 / number
        except (ValueError, ArithmeticError) as error:
            observer.failed("r", error)
    for detail in ("no packages", "no packages"):
        observer.misconfigured(detail)

    unexpected = "A request failed unexpectedly: request_id=r count=1"
    assert [
        (unexpected, True),
        (unexpected, True),
        ("A request failed because of the server's configuration: no packages", False),
    ] == [(record.message, record.exc_info is not None) for record in caplog.records]


def test_a_logged_error_counts_those_not_logged(caplog, monkeypatch):
    """The next line after the interval has the number of all failures at this line of code. Rejections hide no error."""
    seconds = [0.0]
    monkeypatch.setattr("kafkasse.web.observer.LimitedLog", partial(LimitedLog, lambda: seconds[0]))
    observer = Observer([], LOGGER)
    for number in range(2 * MAX_LINES):
        observer.rejected("r", "topics", f"client-{number}", 401, "Unauthorized")

    def fail(times: int) -> None:
        for _ in range(times):
            try:
                int("x")
            except ValueError as error:
                observer.failed("r", error)

    fail(13)
    seconds[0] = INTERVAL_S
    fail(1)

    assert ["request_id=r count=1", "request_id=r count=14"] == [line.partition(": ")[2] for line in caplog.messages]
