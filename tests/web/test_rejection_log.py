"""The log line of a rejected request, which operators find by its request_id."""

from __future__ import annotations

import logging

import pytest
from flask.testing import FlaskClient

from kafkasse import Config, MemoryLog, Visitor
from kafkasse.app import create_app
from kafkasse.web.rejection_log import INTERVAL_S, MAX_LINES, RejectionLog

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


def test_a_client_in_a_loop_does_not_fill_the_log(client, caplog):
    """Only the first request with each error has a line. At the level debug, each request has one."""
    for path in ("/closed", "/closed", "/missing", "/closed"):
        client.get(path)
    at_info = len(caplog.messages)
    caplog.set_level(logging.DEBUG, "kafkasse")
    client.get("/closed")

    assert (2, 3) == (at_info, len(caplog.messages))


def test_the_line_is_repeated_after_the_interval(caplog):
    """Each client and each error has its own interval."""
    caplog.set_level(logging.INFO, LOGGER.name)
    now = 0.0
    rejections = RejectionLog(LOGGER, lambda: now)
    for now, client, error in (
        (0.0, "a", "X"),
        (1.0, "a", "X"),
        (1.0, "b", "X"),
        (2.0, "a", "Y"),
        (INTERVAL_S, "a", "X"),
    ):
        rejections.add(f"{now:g}", "topics", client, 400, error)

    ids = [line.split()[4] for line in caplog.messages]
    assert ["request_id=0", "request_id=1", "request_id=2", f"request_id={INTERVAL_S:g}"] == ids


def test_an_error_of_the_server_has_one_traceback_in_an_interval(caplog):
    """A request that fails in a loop cannot fill the log. Each line of code that fails has its own interval."""
    caplog.set_level(logging.INFO, LOGGER.name)
    rejections = RejectionLog(LOGGER, lambda: 0.0)
    for subject in ("ValueError a.py:1", "ValueError a.py:1", "ValueError a.py:2"):
        rejections.add_failure(subject, "failed: %s", subject, ValueError("secret"))

    assert [("failed: ValueError a.py:1", True), ("failed: ValueError a.py:2", True)] == [
        (record.message, record.exc_info is not None) for record in caplog.records
    ]


def test_many_clients_do_not_fill_the_log(caplog):
    """The number of lines in an interval is limited, and so is the memory."""
    caplog.set_level(logging.INFO, LOGGER.name)
    now = 0.0
    rejections = RejectionLog(LOGGER, lambda: now)
    for now in (0.0, 1.0, INTERVAL_S):
        for number in range(2 * MAX_LINES):
            rejections.add("r", "topics", f"client-{number}-{now}", 400, "X")

    assert 2 * MAX_LINES == len(caplog.messages)
